#pragma once
// GPU memory that nobody uses any more, kept until freeing it can hang nobody.
//
// Freeing CUDA memory waits for kernels, and while it waits other threads of the process get
// nothing from the driver either: cuStreamCreate does not, copies do not.  The kernel waited for
// may be one that needs our copies, or that only the next context's end lets go (NCCL's abort ends
// the contexts of a process one after the other, with driver calls of its own between).  So memory
// is freed when the process has no context left.
//
// Until then kernels that were let go are let go again, every millisecond: they set words back and
// wait once more.
//
// Threads: any that sets up or tears down.
#include <condition_variable>
#include <cstddef>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>

#include "gda/memory/free_behind.h"

namespace twinpath::gda {

class Retired {
 public:
  // A program that goes on making contexts while others live frees the oldest all the same.
  static constexpr std::size_t kMost = 32;

  struct Memory {
    std::function<void()> free;     // owns what it frees; called once, in some thread
    std::function<void()> release;  // lets kernels go, neither blocks nor allocates; may be empty
  };

  static Retired& of_process();
  Retired() = default;
  ~Retired();
  Retired(const Retired&) = delete;
  Retired& operator=(const Retired&) = delete;

  // A context begins, and ends.
  void enter();
  void leave();
  // False: it is being freed, which takes longer than `limit_ns` and goes on behind the caller.
  bool put(Memory memory, std::int64_t limit_ns = kFreeLimit);
  std::size_t kept() const;

 private:
  void run();
  static void free_all(std::deque<Memory>& memories);

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Memory> kept_;
  std::size_t contexts_ = 0;
  bool ending_ = false;
  std::thread releasing_;
};

}  // namespace twinpath::gda
