#pragma once
// Memory of one context call, and the device structures in it, in the layout of the kernels that
// will use them.
//
//   queues   shared: doorbells (8 bytes each, dense: a scan of 64 idle queues is 8 cache lines),
//            then all SQs, then all CQs (or, in a block of their own, GPU)
//   signals  in the tables, or GPU memory of their own (gpu_signals.h)
//   tables   shared and registered: signals, counters, the sink of fetched values, scratch memory
//            (kScratchSlot bytes for each work request of each main queue)
//   device   GPU: queue structs, context structs, arrays of keys (device_image.h)
//
// Where an adapter serves the queues (ContextShape::adapter) only the doorbells are here, for those
// that a thread rings; and the tables are GPU memory, each part on pages of its own: the adapter
// writes data and signals into the same memory then, in order, and registers the parts apart, with
// addresses from 0, which must begin where a page does. The sink is there, too: what a kernel
// fetches into it pushes what is on its way into that GPU's memory before it.
//
// Threads: setup only.
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "gda/context/device_image.h"
#include "gda/gin.h"
#include "gda/memory/device_memory.h"
#include "gda/memory/shared_tables.h"
#include "gda/memory/table_release.h"
#include "gda/served/back/counted_signals.h"
#include "plugin/gpu/gdrcopy.h"

namespace twinpath::gda {

class ContextMemory {
 public:
  static constexpr std::size_t kScratchSlot = 32;
  static constexpr std::size_t kWordBytes = 256;

  // `share`: other processes of this host may map the tables (shared_tables.h), where possible.
  // `signals`: where they shall lie; null: in the tables.
  static Result<std::unique_ptr<ContextMemory>> make(
      int gpu, const ContextShape& shape, bool share = false,
      std::unique_ptr<DeviceBlock> signals = nullptr);
  TableOffer tables_offer() const { return offer_; }

  std::uint64_t* doorbell(std::size_t queue) const;
  std::uint8_t* sq(std::size_t queue) const;
  std::uint8_t* cq(std::size_t queue) const;  // null in GPU memory
  // There, as the CPU stores to it; null where only copies reach it.
  std::uint8_t* cq_mapping(std::size_t queue) const;
  std::uint64_t cq_address(std::size_t queue) const;
  Status fill_cqs();  // those in GPU memory, with entries of no lap

  std::uint8_t* tables() const { return tables_->host(); }
  std::size_t tables_bytes() const { return tables_->bytes(); }
  std::uint64_t signals_address() const;
  std::uint64_t counters_address() const;
  std::uint64_t tables_end() const;  // of counters, and signals if they are there
  std::uint64_t sink_address() const { return tables_end(); }
  std::uint8_t* scratch(std::size_t pair) const;
  // Rows, one a pair, which its peer alone writes; see counted_signals.h.
  std::uint64_t inbox_address() const;
  std::uint64_t inbox_row() const {  // entries
    return shape_.counted ? CountedInbox::room_for(shape_.depth) : 0;
  }
  std::size_t pairs() const { return shape_.pairs(); }
  std::uint64_t rows_bytes() const { return shape_.pairs() * inbox_row() * sizeof(CountedEntry); }
  // Behind the rows, for each pair: a word from its peer; then one to it (queue_maker.h).
  std::uint64_t inbox_bytes() const {
    if (!shape_.counted) return 0;
    return rows_bytes() + 2 * shape_.pairs() * kWordBytes + GpuWords::kValuesBytes;
  }
  // Last, for the adapter's part in adding to words in GPU memory.
  std::uint64_t values_address() const {
    return inbox_address() + inbox_bytes() - GpuWords::kValuesBytes;
  }
  std::uint64_t signals_bytes() const { return shape_.signals * 8 * contexts(); }
  std::uint64_t counters_bytes() const { return shape_.counters * 8 * contexts(); }

  // One of its queues, that has this number.
  DeviceQueue device_queue(std::size_t queue, std::uint32_t number) const;
  // Writes the device structures.
  Status fill(std::span<const DeviceQueue> queues, const DeviceKeys& keys);
  std::uint64_t device_handle() const { return device_->device_address() + image_.contexts(); }

  DeviceBlock& device() { return *device_; }
  // In device(), of each queue.
  std::vector<std::size_t> consumed_offsets() const { return image_.consumed_offsets(); }
  std::uint64_t* release_source() const;
  bool on_gpu() const { return device_->host() == nullptr; }
  // Ends waits for signals and counters, see signal_release.h.  In GPU memory: begins to.
  void release_waiters() const;
  // Whether signals lie in GPU memory of their own.
  bool gpu_signals() const { return signals_ != nullptr && signals_->host() == nullptr; }
  // Until what was begun has ended; false after the time limit: the tables must stay.
  bool wait(std::int64_t limit_ns) const {
    return table_release_ == nullptr || table_release_->wait(limit_ns);
  }
  // Frees what is GPU memory, which the driver does when no kernel runs any more (retired.h).  Ends
  // the use of device().
  void free_gpu_memory();

 private:
  explicit ContextMemory(const ContextShape& shape) : shape_(shape), image_(shape) {}
  std::uint64_t contexts() const { return static_cast<std::uint64_t>(shape_.contexts); }
  std::size_t queue_bytes() const { return std::size_t{shape_.depth} * 64; }
  std::size_t bells_bytes() const;
  std::size_t part(std::size_t bytes) const;  // of the tables
  std::size_t tables_size() const;
  std::size_t words_bytes() const { return tables_end() - tables_->device_address(); }
  Status place_cqs(int gpu);

  const ContextShape shape_;
  const DeviceImage image_;
  std::unique_ptr<DeviceBlock> queues_, tables_, device_;
  std::unique_ptr<DeviceBlock> signals_;  // null: at the beginning of tables_
  std::unique_ptr<DeviceBlock> cqs_;      // null: at the end of queues_
  std::size_t cqs_at_ = 0;                // in it
  // Of cqs_ in GPU memory one is there, and goes before it.
  std::unique_ptr<gpu::GdrMapping> cqs_mapping_;
  std::shared_ptr<gpu::ImportedAllocation> cqs_reach_;
  // What of signals and counters the CPU reaches: looked at while GPU memory is being freed.
  std::span<std::uint64_t> host_words_, host_signals_;
  TableOffer offer_;
  std::unique_ptr<TableRelease> table_release_;  // of what lies in GPU memory
};

}  // namespace twinpath::gda
