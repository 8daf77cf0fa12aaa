#pragma once
// The copy process: makes all copies of GPU memory of one program.
//
// Why a process: the driver lets a thread that frees memory hold a lock of its process for as long
// as kernels run, and copies of other threads wait for it; the kernel may wait for such a copy.
// The lock ends with the process.
//
// Threads: run() on one; each GPU has a copy thread.
#include <map>
#include <memory>
#include <vector>

#include "plugin/gpu/process/served_gpu.h"
#include "plugin/gpu/process/wire.h"

namespace twinpath::gpu::process {

class Server {
 public:
  // `near`: copy threads move to the processors near to their GPUs.
  Server(UniqueFd socket, bool near) : socket_(std::move(socket)), near_(near) {}
  // Says `ready` (or `why` not), then answers until the program has gone.
  void run(Status status, const std::string& why);
  // A line for the program's log; any thread.
  void log(int level, const char* text) const;

 private:
  void answer(const Question& question, UniqueFd fd);
  Answer open_gpu(const Question& question, UniqueFd fd);
  Answer import(const Question& question, UniqueFd fd);

  const UniqueFd socket_;
  const bool near_;
  std::map<std::uint64_t, std::shared_ptr<ImportedAllocation>> allocations_;
  std::vector<std::unique_ptr<ServedGpu>> gpus_;  // ends first: copies use allocations
};

}  // namespace twinpath::gpu::process
