// See word_stream.h.
#include "gda/memory/word_stream.h"

#include "plugin/base/log.h"
#include "plugin/base/wait_within.h"

namespace twinpath::gda {

void WordStream::refuse(Status status) {
  if (dead_.exchange(true, std::memory_order_relaxed)) return;
  TP_WARN("GPU %d: completions no longer reach its kernels (%s)", gpu_, status_name(status));
}

std::size_t WordStream::room() const {
  if (dead()) return 0;
  return kWords - (given_ - ended_.load(std::memory_order_acquire));
}

void WordStream::add(std::uint64_t address, std::uint64_t value) {
  Word& word = words_[given_ % kWords];
  word.value = value;
  word.stream = this;
  word.to = {address, gpu_};
  word.from = {reinterpret_cast<std::uintptr_t>(&word.value), -1};
  word.bytes = sizeof word.value;
  word.executor = gpu_;
  word.order = reinterpret_cast<std::uintptr_t>(this);
  word.done = [](gpu::CopyJob* job, Status status) {
    WordStream& stream = *static_cast<Word*>(job)->stream;
    if (status != Status::ok) stream.refuse(status);
    stream.ended_.fetch_add(1, std::memory_order_release);
  };
  ++given_;
  if (const Status status = gpu::submit_copy(&word); status != Status::ok) word.done(&word, status);
}

bool WordStream::wait(std::int64_t limit_ns) const {
  return wait_within(limit_ns, [this] { return ended_.load(std::memory_order_acquire) == given_; });
}

}  // namespace twinpath::gda
