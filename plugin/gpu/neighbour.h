#pragma once
// Memory on another GPU of this process, through which copies within one GPU go: two peer copies
// need no SM, and NVLink is several times faster than the way through host memory.
//
// Of the program, only a GPU that it uses anyway serves: a context made for this alone would cost
// hundreds of megabytes, and slices of time of the process that owns that GPU.  The copy process,
// which has contexts on few GPUs and whose words need the way too, maps memory of any that can be
// reached without a context there.
//
// Threads: NeighbourMemory: any, one at a time.  NeighbourStage: see there.
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>

#include "plugin/gpu/driver.h"

namespace twinpath::gpu {

// The destructor gives the memory back; nothing may use it then.
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

// The neighbour's memory of one copy thread, for as long as that runs: had once, or found once not
// to be had.
//
// Threads: any.  close: when no copy uses the memory any more.
class NeighbourStage {
 public:
  // From now on prepare() looks.
  void open();
  // Looks for `bytes` if there are none yet; allocates.  `map`: of any GPU, see NeighbourMemory.
  void prepare(const cuda::Driver& d, int gpu, std::uint64_t bytes, bool map);
  // Waits for who prepares, and gives the memory back.
  void close();
  // The same at process end: nothing is given back.
  void leave();
  // 0: there is none (yet).
  std::uint64_t address() const { return address_.load(std::memory_order_acquire); }

 private:
  std::mutex mutex_;  // of its own, as allocating may take long
  bool open_ = false;
  bool alone_ = false;  // it could not be had
  std::unique_ptr<NeighbourMemory> memory_;
  std::atomic<std::uint64_t> address_{0};
};

}  // namespace twinpath::gpu
