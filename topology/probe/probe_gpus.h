#pragma once
// What the CUDA driver says about the program's GPUs, where the program has loaded and initialised
// it; nothing otherwise.  No context is made and nothing is allocated.
//
// Threads: any.
#include <optional>
#include <string>
#include <vector>

#include "topology/model/machine.h"

namespace twinpath {

struct CudaGpu {
  int ordinal = 0;  // in the program's numbering (CUDA_VISIBLE_DEVICES)
  BusId bus;
  std::string name;
  int compute_capability = 0;    // 90 is 9.0
  std::optional<bool> gdr;       // GPUDirect RDMA supported
  std::optional<bool> dmabuf;    // its memory can be exported
  bool ordered = false;          // HCA writes are visible to it without a flush
  std::optional<int> host_numa;  // CPU node at the other end of NVLink-C2C
};
std::vector<CudaGpu> cuda_gpus();

// The GPU that is current on this thread: NCCL's proxy threads have their communicator's.
std::optional<int> current_cuda_gpu();

// Enters all of them into a machine.
void enter_cuda_gpus(Machine& machine, const std::vector<CudaGpu>& gpus);

}  // namespace twinpath
