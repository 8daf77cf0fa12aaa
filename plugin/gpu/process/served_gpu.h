#pragma once
// One GPU of the copy process: the rings that the program fills, and the thread that empties them.
//
// Threads: made and destroyed by the server; take and sleep: the copy thread.
#include <array>
#include <memory>

#include "plugin/base/shared_memory.h"
#include "plugin/gpu/copy_thread.h"
#include "plugin/gpu/process/rings.h"

namespace twinpath::gpu::process {

class ServedGpu final : public JobSource {
 public:
  // `memory`: kSharedBytes, made by the program.  `near`: CopyThread's.
  static Result<std::unique_ptr<ServedGpu>> open(int gpu, SharedMemory memory, bool near);
  ~ServedGpu() override;
  void prepare() { thread_.prepare(); }

  CopyJob* take() override;
  void sleep() override;
  void wake() override;

 private:
  struct Job : WordUpdate {
    ServedGpu* owner = nullptr;
    std::array<std::uint64_t, 4> words{};
    std::uint32_t slot = 0;
  };
  ServedGpu(int gpu, SharedMemory memory, bool near);
  static void job_done(CopyJob* job, Status status);
  bool fill(Job& job, const Entry& entry);
  bool resolve(std::uint64_t address, int gpu, std::uint64_t bytes, CopyEnd& end) const;
  void complete(const Job& job, Status status);

  const int gpu_;
  const SharedMemory memory_;
  Rings& rings_;
  std::byte* const passage_;
  bool registered_ = false;
  std::atomic<bool> woken_{false};
  std::uint32_t taken_ = 0, completed_ = 0;
  std::array<Job, kEntries> jobs_;
  CopyThread thread_;
};

}  // namespace twinpath::gpu::process
