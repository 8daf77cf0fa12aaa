#pragma once
// Host staging: GPU memory that the adapter may not (or should not) reach is mirrored by pinned
// host memory of the same size.  What a message at GPU address a carries lies in the mirror at the
// same offset, so the data path allocates nothing; copies between the two run on the GPU's copy
// thread (plugin/gpu), in chunks, so that copying and sending overlap.
//
// Staging is each end's own business: the other end sees host memory.  Two sends of the same bytes
// at once share their place in the mirror: the second copy writes what is there already.
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "plugin/gpu/engine.h"
#include "plugin/rdma/devices.h"
#include "topology/decide/decision.h"

namespace twinpath {

// Writes of messages of several chunks that one comm has under way; its send queues have room for
// them besides one write per request.
inline constexpr int kStagedWrites = 64;
// What a receive queue has besides (recv_comm.h), as one cell may now bring several immediates.
// They rarely need it; a sender that meets an empty queue waits and tries again (RNR), at a cost.
inline constexpr int kStagedReceives = 224;
// Copies that one send comm has under way.
inline constexpr int kStagedCopies = 64;
inline constexpr std::size_t kStagedChunk = std::size_t{256} << 10;
inline constexpr int kMostChunks = 32;  // what an immediate can count

// How a message is cut: equal chunks, the last one shorter.  Pure.
struct ChunkPlan {
  std::size_t bytes = 0;
  std::size_t chunk_bytes = 0;
  int count = 1;
  std::size_t offset(int i) const { return static_cast<std::size_t>(i) * chunk_bytes; }
  std::size_t size(int i) const { return i + 1 < count ? chunk_bytes : bytes - offset(i); }
};
ChunkPlan plan_chunks(std::size_t bytes);

// Which registrations an end with that plan needs.
Staging staging_of(const EndPlan& plan);

// Logs that `memory` was registered on a comm with another plan, and so lacks what this one needs
// for that many bytes; bad_argument.
Status not_reachable(const char* call, const std::string& peer, const ProxyMemory& memory,
                     std::size_t bytes);

// The host memory that stands in for one registration of GPU memory.
//
// Threads: any.  The data path keeps it by shared_ptr and brackets each use by enter and leave, for
// NCCL may give the memory back while a transfer is under way when it aborts: Devices then shuts
// the gate, waits for those inside (copies end by themselves) and frees the memory, outside all
// locks.
class Mirror {
 public:
  // Of [address, address + bytes) of one GPU's memory.  What fails is logged.
  static Result<std::shared_ptr<Mirror>> make(std::uint64_t address, std::size_t bytes);
  Mirror(const Mirror&) = delete;
  Mirror& operator=(const Mirror&) = delete;

  int gpu() const { return gpu_; }
  std::uint8_t* data() const { return data_; }
  // Where a GPU address of the registration has its bytes here.
  std::uint8_t* at(std::uint64_t gpu_address) const { return data_ + (gpu_address - address_); }

  // False once the memory was given back: it must not be touched any more.
  bool enter() {
    inside_.fetch_add(1);  // before the look: either we see the gate shut or shut() sees us
    if (!shut_.load()) return true;
    leave();
    return false;
  }
  void leave() { inside_.fetch_sub(1); }
  // Shuts the gate and waits; false when somebody stayed inside and the memory must be left alone.
  bool shut();
  // After shut() or before the first use: gives the host memory back.
  void free();

  ProxyMemory memory;  // the registration of the mirror itself, made and released by Devices

 private:
  Mirror() = default;
  int gpu_ = -1;
  std::uint64_t address_ = 0;
  std::uint8_t* data_ = nullptr;
  std::shared_ptr<gpu::ImportedAllocation> reach_;  // copies may use the GPU's side
  std::atomic<bool> shut_{false};
  std::atomic<int> inside_{0};
};

// Waits until `count` is 0: copies end by themselves, also when the driver dies.  False, and a
// warning that names `what`, after ten seconds; what copies may still touch must then be leaked.
bool wait_for_copies(const std::atomic<int>& count, const char* what);

}  // namespace twinpath
