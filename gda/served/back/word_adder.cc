// See word_adder.h.
#include "gda/served/back/word_adder.h"

#include <algorithm>
#include <array>
#include <bit>
#include <utility>

#include "plugin/base/log.h"

namespace twinpath::gda {

WordAdder::WordAdder(Owner& owner, GpuFlush* flush, std::size_t most)
    : owner_(owner), flush_(flush), waiting_(std::bit_ceil(most)) {}

Status WordAdder::reach_gpu(TeamCore& team, WordTurn& turn, const GpuWords::Values& values) {
  auto words = GpuWords::make(team, turn, flush_, values);
  if (!words) return words.status();
  words_ = std::move(words).take();
  return Status::ok;
}

void WordAdder::add(const GpuWords::Word& word, const Receipt& receipt) {
  if (dead_) return;
  came_.store(came_.load(std::memory_order_relaxed) + 1, std::memory_order_release);
  // What adds to words in GPU memory pushes itself what has come over its port.
  const bool flush = flush_ != nullptr && flush_->needed() &&
                     (word.gpu < 0 || words_ == nullptr || flush_->beyond(words_->port()));
  // While others wait, this one does, too: who sees it may rely on what its sender signalled
  // before.  The READ of the flush is posted after the completion that brought this.
  waiting_.push({word, receipt, flush ? flush_->request() : 0});
  add_in_host();
}

bool WordAdder::turn() {
  if (taken_ > waiting_.first()) {
    switch (words_->look()) {
      case GpuWords::State::busy:
        return true;
      case GpuWords::State::failed:
        drop();
        return false;
      case GpuWords::State::idle:
        while (waiting_.first() != taken_) end();
        if (flush_ != nullptr && flush_->needed()) pushed_ = flush_->request_own(words_->port());
        break;
    }
  }
  add_in_host();
  if (waiting_.empty() || waiting_.front().word.gpu < 0 || !pushed(waiting_.front().ticket))
    return true;
  return begin_words();
}

bool WordAdder::pushed(std::uint64_t ticket) const {
  return flush_ == nullptr || ticket <= flush_->done();
}

// As many of the signals in front as are for words in the host's memory and wait for no flush.
void WordAdder::add_in_host() {
  for (; !waiting_.empty(); end()) {
    const auto& [word, receipt, ticket] = waiting_.front();
    if (word.gpu >= 0) return;
    if (!pushed(std::max(ticket, pushed_))) return;
    // Partner: the acquire of whoever waits for the signal.
    std::atomic_ref<std::uint64_t>(
        *reinterpret_cast<std::uint64_t*>(static_cast<std::uintptr_t>(word.address)))
        .fetch_add(word.add, std::memory_order_release);
  }
}

// As many of the signals in front as are for words in GPU memory, each word once.
bool WordAdder::begin_words() {
  if (words_ == nullptr) {
    TP_WARN("a signal came for a word in memory of GPU %d, which this communicator does not use",
            waiting_.front().word.gpu);
    drop();
    return false;
  }
  std::array<GpuWords::Word, GpuWords::kBatch> words;
  std::size_t count = 0;
  std::uint64_t next = waiting_.first();
  for (; next != waiting_.end() && waiting_[next].word.gpu >= 0; ++next) {
    if (!pushed(waiting_[next].ticket)) break;
    const GpuWords::Word& word = waiting_[next].word;
    auto* const end = words.begin() + count;
    auto* const known = std::find_if(
        words.begin(), end, [&](const GpuWords::Word& o) { return o.address == word.address; });
    if (known != end) {
      known->add += word.add;
      continue;
    }
    if (count == words.size()) break;
    words[count++] = word;
  }
  switch (words_->begin({words.data(), count})) {
    case GpuWords::State::busy:
      taken_ = next;
      break;
    case GpuWords::State::failed:
      drop();
      return false;
    case GpuWords::State::idle:
      break;
  }
  return true;
}

void WordAdder::end() {
  const Receipt receipt = waiting_.front().receipt;
  waiting_.pop();
  added_.store(added_.load(std::memory_order_relaxed) + 1, std::memory_order_release);
  owner_.added(receipt);
}

void WordAdder::drop() {
  dead_ = true;
  while (!waiting_.empty()) waiting_.pop();
  added_.store(came_.load(std::memory_order_relaxed), std::memory_order_release);
}

void WordAdder::stop() {
  if (words_ != nullptr) words_->stop();
  drop();
}

}  // namespace twinpath::gda
