#pragma once
// A copy into GPU memory that lets kernels go which would wait for ever.  If the process that makes
// copies has ended, this one makes it after all: the driver may hold that up
// (plugin/gpu/README.md), but nothing else is left that could end those kernels.
//
// Threads: submit by any; `over` is called as CopyJob::done is.
#include <utility>

#include "plugin/gpu/engine.h"

namespace twinpath::gda {

struct ReleaseJob : gpu::CopyJob {
  // In place of `done`; must be set.
  void (*over)(ReleaseJob* job, Status status) = nullptr;
  bool here = false;  // made by this process
};

inline void submit_release(ReleaseJob& job) {
  job.here = false;
  job.done = [](gpu::CopyJob* base, Status status) {
    auto& ended = *static_cast<ReleaseJob*>(base);
    if (status == Status::closed && !std::exchange(ended.here, true)) {
      status = gpu::submit_copy_here(&ended);
      if (status == Status::ok) return;
    }
    ended.over(&ended, status);
  };
  if (const Status status = gpu::submit_copy(&job); status != Status::ok) job.done(&job, status);
}

}  // namespace twinpath::gda
