#pragma once
// Memory of one context call, and the device structures in it, in the layout of the kernels that
// will use them.
//
//   queues   shared: doorbells (8 bytes each, dense: a scan of 64 idle queues is 8 cache lines),
//            then all SQs, then all CQs (or, in a block of their own, GPU)
//   tables   shared and registered: signals, counters, the sink of fetched values, scratch memory
//            (kScratchSlot bytes for each work request of each main queue)
//   device   GPU: queue structs, context structs, arrays of keys
//
// Queues are numbered: context * ranks + rank; companions come after all main queues.
//
// Threads: setup only.
#include <cstdint>
#include <memory>
#include <vector>

#include "gda/device_memory.h"
#include "gda/gin.h"
#include "gda/shared_tables.h"

namespace twinpath::gda {

struct ContextShape {
  DeviceLayout layout = DeviceLayout::v2_28;
  int ranks = 1;
  int contexts = 1;
  std::uint32_t depth = 0;
  std::uint64_t signals = 0, counters = 0;  // of each context
  bool gpu_cqs = false;                     // CQs in GPU memory
  bool counted = false;                     // some peers' signals come without atomics

  std::size_t pairs() const {
    return static_cast<std::size_t>(ranks) * static_cast<std::size_t>(contexts);
  }
  std::size_t queues() const { return counters != 0 ? 2 * pairs() : pairs(); }
};

// Numbers that the device structures carry.
struct ContextNumbers {
  std::uint32_t first_queue = 0;  // QPN and CQN of queue 0; the others follow
  std::uint32_t signals_key = 0, counters_key = 0, sink_key = 0;
};

class ContextMemory {
 public:
  static constexpr std::size_t kScratchSlot = 32;

  // `share`: other processes of this host may map the tables (shared_tables.h), where possible.
  static Result<std::unique_ptr<ContextMemory>> make(int gpu, const ContextShape& shape,
                                                     bool share = false);
  TableOffer tables_offer() const { return offer_; }

  std::uint64_t* doorbell(std::size_t queue) const;
  std::uint8_t* sq(std::size_t queue) const;
  std::uint8_t* cq(std::size_t queue) const;  // null where the CPU cannot reach it
  std::uint64_t cq_address(std::size_t queue) const;
  Status fill_cqs();  // those that the CPU cannot reach, with entries of no lap

  std::uint8_t* tables() const { return tables_->host(); }
  std::size_t tables_bytes() const { return tables_->bytes(); }
  std::uint64_t signals_address() const;
  std::uint64_t counters_address() const;
  std::uint64_t sink_address() const;
  std::uint8_t* scratch(std::size_t pair) const;
  // Rows of all signals, one a pair, which its peer alone writes; see counted_signals.h.
  std::uint64_t inbox_address() const;
  std::uint64_t inbox_bytes() const {
    return shape_.counted ? shape_.pairs() * signals_bytes() : 0;
  }
  std::uint64_t signals_bytes() const { return shape_.signals * 8 * contexts(); }
  std::uint64_t counters_bytes() const { return shape_.counters * 8 * contexts(); }

  // Writes the device structures.  `used[rank]`: whether that rank is spoken to.
  Status fill(const ContextNumbers& numbers, const std::vector<bool>& used);
  std::uint64_t device_handle() const;

  DeviceBlock& device() { return *device_; }
  std::vector<std::size_t> consumed_offsets() const;  // in device(), of each queue
  std::uint64_t* release_source() const;
  bool on_gpu() const { return device_->host() == nullptr; }
  // Ends waits for signals and counters, see signal_release.h.
  void release_waiters() const;
  // Frees what is GPU memory, which the driver does when no kernel runs any more (retired.h).  Ends
  // the use of device().
  void free_gpu_memory();

 private:
  explicit ContextMemory(const ContextShape& shape) : shape_(shape) {}
  struct Layout;  // offsets in device_
  Layout layout() const;
  std::uint64_t contexts() const { return static_cast<std::uint64_t>(shape_.contexts); }
  std::size_t queue_bytes() const { return std::size_t{shape_.depth} * 64; }
  std::size_t bells_bytes() const;
  template <class Qp>
  void fill_queues(std::uint8_t* to, const ContextNumbers& numbers,
                   const std::vector<bool>& used) const;

  const ContextShape shape_;
  std::unique_ptr<DeviceBlock> queues_, tables_, device_;
  std::unique_ptr<DeviceBlock> cqs_;  // null: at the end of queues_
  TableOffer offer_;
};

}  // namespace twinpath::gda
