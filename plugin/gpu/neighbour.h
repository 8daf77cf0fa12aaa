#pragma once
// Memory on another GPU of this process, through which copies within one GPU go: two peer copies
// need no SM, and NVLink is several times faster than the way through host memory.
//
// Of the program, only a GPU that it uses anyway serves: a context made for this alone would cost
// hundreds of megabytes, and slices of time of the process that owns that GPU.  The copy process,
// which has contexts on few GPUs and whose words need the way too, maps memory of any that can be
// reached without a context there.
//
// Threads: any, one at a time.  The destructor gives the memory back; nothing may use it then.
#include <cstdint>
#include <memory>

#include "plugin/gpu/driver.h"

namespace twinpath::gpu {

class NeighbourMemory {
 public:
  // `bytes` on the next GPU after `gpu` that reaches it and is reached by it.  Not on a data path:
  // it may wait for what runs on either.  `again`: the program uses no such GPU (yet);
  // `no_memory`: none of them gave it, which was logged.
  static Result<std::unique_ptr<NeighbourMemory>> make(const cuda::Driver& d, int gpu,
                                                       std::uint64_t bytes);
  // The same of any other GPU, mapped without a context there.
  static Result<std::unique_ptr<NeighbourMemory>> map(const cuda::Driver& d, int gpu,
                                                      std::uint64_t bytes);
  NeighbourMemory(const cuda::Driver& d, int gpu, cuda::Address address)
      : d_(d), gpu_(gpu), address_(address) {}
  NeighbourMemory(const cuda::Driver& d, int gpu, cuda::Address address, std::uint64_t mapped,
                  cuda::Handle handle)
      : d_(d), gpu_(gpu), address_(address), mapped_(mapped), handle_(handle) {}
  ~NeighbourMemory();
  NeighbourMemory(const NeighbourMemory&) = delete;
  NeighbourMemory& operator=(const NeighbourMemory&) = delete;

  std::uint64_t address() const { return address_; }
  // At process end the driver may have been shut down already: nothing is given back.
  void forget() { address_ = 0; }

 private:
  const cuda::Driver& d_;
  const int gpu_;
  cuda::Address address_;
  const std::uint64_t mapped_ = 0;  // bytes; 0: allocated
  const cuda::Handle handle_ = 0;
};

}  // namespace twinpath::gpu
