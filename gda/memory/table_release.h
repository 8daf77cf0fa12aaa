#pragma once
// Lets waiters go (signal_release.h) whose words lie in GPU memory: a round copies them out, raises
// them, and copies them back.  What an adapter or a kernel writes to a word meanwhile may be lost,
// which is no matter: the communicator has failed or is closed.
//
// Threads: begin by one at a time, it neither waits nor allocates; the rest by the owner.
#include <atomic>
#include <cstdint>
#include <memory>

#include "gda/memory/device_memory.h"
#include "gda/memory/release_job.h"

namespace twinpath::gda {

class TableRelease {
 public:
  // The first `bytes` of `tables`, which is GPU memory and outlives it; 0: nothing is there.
  static Result<std::unique_ptr<TableRelease>> make(int gpu, DeviceBlock& tables,
                                                    std::size_t bytes);

  // Begins a round, unless one is under way or it has been stopped.
  void begin();
  // Until no round is under way; false after the time limit.
  bool wait(std::int64_t limit_ns) const;
  // Nothing begins any more, and what is under way has ended: the tables may be freed.  False after
  // the time limit: they must not.
  bool stop(std::int64_t limit_ns);

 private:
  struct Job : ReleaseJob {
    TableRelease* owner = nullptr;
  };
  TableRelease(int gpu, std::uint64_t tables, std::size_t bytes)
      : gpu_(gpu), tables_(tables), bytes_(bytes) {}
  void submit(Job& job, bool out);
  void raise();

  const int gpu_;
  const std::uint64_t tables_;
  const std::size_t bytes_;
  std::unique_ptr<DeviceBlock> stage_;  // pinned
  std::shared_ptr<gpu::ImportedAllocation> reach_;
  Job out_, back_;
  std::atomic<bool> busy_{false}, stopped_{false};
};

}  // namespace twinpath::gda
