#pragma once
// A process that holds memory of a GPU and shares it, since CUDA opens no handle in the process
// that made it.  It ends when its Exporter does, or this process.
#include <cuda_runtime.h>
#include <sys/types.h>

#include "plugin/base/owned.h"

namespace twinpath::behind {

class Exporter {
 public:
  // Starts this program anew as the exporter.  Throws tools::Failure.
  explicit Exporter(int device);
  ~Exporter();
  Exporter(const Exporter&) = delete;
  Exporter& operator=(const Exporter&) = delete;
  const cudaIpcMemHandle_t& handle() const { return handle_; }

 private:
  UniqueFd leash_;  // the exporter ends when it is closed
  pid_t pid_ = -1;
  cudaIpcMemHandle_t handle_{};
};

// What the exporter does: the handle to stdout, then waits for the end of stdin.
int play_exporter(int device);

}  // namespace twinpath::behind
