// See word_updates.h.
#include "plugin/gpu/word_updates.h"

#include <algorithm>
#include <atomic>
#include <utility>

namespace twinpath::gpu {
namespace {

// Orders of their own: reads may meet large copies in their lane, writes keep the tiny one.
constexpr std::uint64_t kReadOrder = 0x7265616400000000, kWriteOrder = 0x7772697400000000;
// One word may have several addresses (memory mapped twice), but only whole pages do.
constexpr std::uint64_t kInPage = 4095;

}  // namespace

void WordUpdates::open(int gpu, std::uint64_t* words) {
  gpu_ = gpu;
  for (Word& w : words_) {
    w.updates = this;
    w.value = words++;
  }
}

void WordUpdates::copy_done(CopyJob* job, Status status) {
  auto* word = static_cast<Word*>(job);
  if (status != Status::ok) word->ended = status;
  --word->updates->under_way_;
}

WordUpdates::Word* WordUpdates::word_of(std::uint64_t address) {
  auto* const end = words_.begin() + used_;
  auto* at = std::find_if(words_.begin(), end, [&](Word& w) { return w.address == address; });
  return at != end ? at : nullptr;
}

// False: it has to wait for the next group.
bool WordUpdates::take(WordUpdate* update) {
  const std::uint64_t address = update->to.address;
  if (word_of(address) != nullptr) return true;
  if (used_ == kWords) return false;
  const auto* const end = words_.begin() + used_;
  if (std::any_of(words_.cbegin(), end,
                  [&](const Word& w) { return (w.address & kInPage) == (address & kInPage); }))
    return false;
  words_[used_++].address = address;
  return true;
}

JobList WordUpdates::read() {
  used_ = 0;
  for (std::size_t n = 0; n < kGroup && !waiting_.empty(); ++n) {
    if (!take(static_cast<WordUpdate*>(waiting_.front()))) break;
    group_.push(waiting_.pop());
  }
  JobList jobs;
  for (std::size_t i = 0; i < used_; ++i) {
    Word& w = words_[i];
    w.changed = false;
    w.ended = Status::ok;
    w.to = {reinterpret_cast<std::uintptr_t>(w.value), -1};
    w.from = {w.address, gpu_};
    w.bytes = sizeof *w.value;
    w.executor = gpu_;
    w.order = kReadOrder;
    w.done = copy_done;
    jobs.push(&w);
    ++under_way_;
  }
  phase_ = Phase::reading;
  return jobs;
}

JobList WordUpdates::write() {
  JobList over;
  while (!group_.empty()) {
    auto* update = static_cast<WordUpdate*>(group_.pop());
    over.push(update);
    Word& w = *word_of(update->to.address);
    if (w.ended != Status::ok) continue;
    // Written by a copy engine; its batch's end was seen with acquire.
    std::atomic_ref<std::uint64_t> value(*w.value);
    update->old = value.load(std::memory_order_relaxed);
    const std::uint64_t result = update->result(update->old);
    if (update->compare && result == update->old) continue;
    value.store(result, std::memory_order_relaxed);
    w.changed = true;
  }
  group_ = over;
  JobList jobs;
  for (std::size_t i = 0; i < used_; ++i) {
    Word& w = words_[i];
    if (!w.changed) continue;
    std::swap(w.to, w.from);
    w.order = kWriteOrder;
    jobs.push(&w);
    ++under_way_;
  }
  phase_ = Phase::writing;
  return jobs;
}

void WordUpdates::end() {
  while (!group_.empty()) {
    auto* update = static_cast<WordUpdate*>(group_.pop());
    update->ended = word_of(update->to.address)->ended;
    ended_.push(update);
  }
  phase_ = Phase::idle;
}

JobList WordUpdates::begin() {
  if (under_way_ != 0) return {};
  if (phase_ == Phase::reading)
    if (JobList jobs = write(); !jobs.empty()) return jobs;
  if (phase_ == Phase::writing) end();
  return waiting_.empty() ? JobList{} : read();
}

JobList WordUpdates::take_ended() { return std::exchange(ended_, {}); }

void WordUpdates::give_up(Status status) {
  if (phase_ != Phase::idle) {
    for (std::size_t i = 0; i < used_; ++i) words_[i].ended = status;
    end();
  }
  while (!waiting_.empty()) {
    auto* update = static_cast<WordUpdate*>(waiting_.pop());
    update->ended = status;
    ended_.push(update);
  }
}

}  // namespace twinpath::gpu
