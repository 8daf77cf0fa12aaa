#pragma once
// Threads that help with large copies of host memory.  One core copies some 10 GB/s, whichever way;
// a process that moves its queues by one thread, as NCCL's proxy does, has no more than that.
//
// Who owns a copy (a queue pair, with its lock held) offers it, copies itself, too (between
// processes only what no helper is at), and is done when no chunk is left and no helper is at one.
// Nothing depends on a helper: without any, or when none gets a core, the owner copies all.
//
// Helpers keep apart as long as there are copies enough, those of the process at the other end too:
// threads that copy neighbouring chunks of one message to or from another process wait for each
// other in the kernel, which counts the users of the pages around them (8 threads: 10 GB/s, each at
// a message of its own 22).
//
// The threads are started by the first offer and end with rest().  Those that find nothing sleep.
// None takes a queue pair's lock, allocates, or touches a copy that was taken back.
//
// No helper touches a copy that is gone.  A helper counts itself in at the slot (u), then reads
// which copy is there (c); the owner clears that (C), then reads the count (U).  All four are
// sequentially consistent: either c sees C, and the helper leaves, or U sees u, and the owner
// waits. What helpers wrote is there when the owner has seen the count at 0: each counts itself out
// with release, the owner reads with acquire, and all changes of the count are read-modify-writes,
// so that it synchronizes with every one of them.  Its completion, acknowledgement or immediate
// data is published after that, with release.
//
// Threads: any, but one at a time for one copy.
#include <pthread.h>
#include <sched.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <mutex>

#include "plugin/base/sync.h"
#include "plugin/fabric/soft/team_copy.h"

namespace twinpath::soft {

// How many threads suit a process that may use `cpus` processors together with `processes` - 1
// others, each of which has a thread that copies, and programs of their own: none where they would
// only take the place of those.
constexpr int suitable_copy_threads(int cpus, int processes) {
  constexpr int kEnough = 4;  // more made two processes slower (32 cores; test/MEASUREMENTS.md)
  const int own = cpus / std::max(processes, 1) - 2;
  return std::clamp(own / 2, 0, kEnough);
}

class CopyTeam {
 public:
  // `threads`: -1 chooses.
  explicit CopyTeam(int threads);

  // Processes that share the processors with this one, itself counted.
  void know_processes(int n);
  // Another number of threads from now on (-1: chooses); those that run end.  For tests and
  // measurements: `share` is what the owner copies by itself at each look, in bytes (0: a chunk, of
  // copies that no helper is at; kFitting: that between processes, else a chunk), and `stream`
  // whether copies within the process go past the caches.
  static constexpr std::uint64_t kFitting = ~std::uint64_t{0};
  void set(int threads, std::uint64_t share = kFitting, bool stream = false);
  int wanted() const { return wanted_.load(std::memory_order_relaxed); }
  int running() const { return running_.load(std::memory_order_acquire); }

  // The owner's look at its copy: offers it, copies a share of it.
  enum class Look : std::uint8_t {
    done,    // all chunks of ours are in place, and it is not offered any more
    more,    // a share was copied, or is being
    wait,    // helpers are at the last chunks
    failed,  // the system refused some: take_failed() has them; it is not offered any more
  };
  Look look(TeamCopy& c);
  // Takes it back; helpers are waited for, which takes a chunk's time at most.
  void cancel(TeamCopy& c);

  // Ends the threads; the next offer starts them again.
  void rest();

  // Around fork(), in the thread that forks.  A child has no helpers.
  void before_fork() { control_.lock(); }
  void after_fork(bool in_child);

 private:
  static constexpr int kSlots = 64;
  struct alignas(kCacheLine) Slot {
    std::atomic<TeamCopy*> copy{nullptr};
    std::atomic<std::uint32_t> users{0};
  };
  struct Helper {
    CopyTeam* team = nullptr;
    int index = 0;
    pthread_t thread{};
  };

  bool offer(TeamCopy& c);
  // Whether chunks of an offered copy can be left to them: they are at it, and get further.
  bool helpers_get_on(TeamCopy& c);
  bool take_back(TeamCopy& c);  // false: helpers are still there
  bool start();
  void end_helpers();  // control_ held
  void wake_one();
  void run(int index);
  bool help(int index, int& at);
  // Which copies a helper takes up: its own process's message that nobody has begun, one that no
  // other helper is at, any.
  enum class Company : std::uint8_t { begun_by_none, helped_by_none, any };
  bool help_at(Slot& slot, int index, std::uint64_t bit, Company company);

  const int cpus_;
  cpu_set_t process_cpus_{};  // of the thread that made us
  std::atomic<int> wanted_{0}, running_{0};
  std::atomic<std::uint64_t> share_{kFitting};
  std::atomic<bool> stream_{false};
  // Bits by slot: in use, and worth a helper's look.
  alignas(kCacheLine) std::atomic<std::uint64_t> taken_{0};
  alignas(kCacheLine) std::atomic<std::uint64_t> offered_{0};
  alignas(kCacheLine) std::atomic<std::uint32_t> calls_{0};
  std::atomic<std::uint32_t> asleep_{0};
  std::atomic<bool> ending_{false};
  std::array<Slot, kSlots> slots_;

  std::mutex control_;  // the following, start and end
  bool chooses_ = false;
  int processes_ = 1;
  std::array<Helper, kMaxCopyThreads> helpers_;
};

}  // namespace twinpath::soft
