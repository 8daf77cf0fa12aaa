#pragma once
// Words of 64 bits into GPU memory beside kernels that spin, in the order in which they are given,
// by who makes all copies of that GPU.  That is a process of its own by default, as behind the
// first launch of a kernel, or a module that is loaded, the driver holds calls of the program's
// process up until the kernel ends that waits for these words.
//
// Threads: made and destroyed by the owner, used by one thread.
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "plugin/gpu/engine.h"

namespace twinpath::gda {

class WordStream {
 public:
  static constexpr std::size_t kWords = 256;  // under way at most

  // The memory is in reach of copies, see gpu::keep_in_reach().
  explicit WordStream(int gpu) : gpu_(gpu) {}
  // Nothing may be under way: wait() first.
  ~WordStream() = default;
  WordStream(const WordStream&) = delete;
  WordStream& operator=(const WordStream&) = delete;

  // How many more words it takes now; 0: ask again later.
  std::size_t room() const;
  // Where there is room.  Arrives after all that the CPU wrote before.
  void add(std::uint64_t address, std::uint64_t value);
  // A word could not be written; the log says why.
  bool dead() const { return dead_.load(std::memory_order_relaxed); }
  // Until all that was given is there, or has failed; false after the time limit.
  bool wait(std::int64_t limit_ns) const;

 private:
  struct Word : gpu::CopyJob {
    std::uint64_t value = 0;
    WordStream* stream = nullptr;
  };
  void refuse(Status status);

  const int gpu_;
  std::array<Word, kWords> words_;  // as they end in order, a ring
  std::uint64_t given_ = 0;
  std::atomic<std::uint64_t> ended_{0};  // partner of a job's end, which frees its place
  std::atomic<bool> dead_{false};
};

}  // namespace twinpath::gda
