#pragma once
// The memory of one context's queues: one block, one umem.
//
//   SQs      2^log_depth entries of 64 bytes each, each SQ 4 KiB-aligned (an adapter's page)
//   CQs      likewise (collapsed: one entry)
//   records  8 bytes of each queue pair, then 8 of each completion queue
//
// Where a GPU writes the queues they are its memory.  Not the host's: a kernel's fence before the
// doorbell is of the GPU's scope, which orders what the adapter then reads from the GPU, but not
// stores of two kinds on their way through PCIe; the doorbell could come before the entry.  Where a
// CPU rings for the GPU it writes the records, too: these lie in host memory then, as a block and a
// umem of their own.
//
// An adapter tells a queue's place in 64ths of the umem's page, so 4 KiB-aligned queues fit with
// pages up to 256 KiB; the umem is asked for with the host's.  The block is whole pages of the
// host, for the driver exports no others.
//
// Threads: setup only.
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "gda/adapter/mlx5/adapter.h"
#include "gda/memory/device_memory.h"
#include "plugin/base/page_size.h"

namespace twinpath::gda::mlx5 {

struct BlockPlan {
  std::size_t queues = 0;
  unsigned log_depth = 0;
  bool collapsed = false;

  std::size_t sq(std::size_t queue) const { return queue * sq_bytes(); }
  std::size_t cq(std::size_t queue) const { return queues * sq_bytes() + queue * cq_bytes(); }
  // Receive counter, then (4 bytes on) the send counter, which is the one used.
  std::size_t qp_record(std::size_t queue) const {
    return queues * (sq_bytes() + cq_bytes()) + 8 * queue;
  }
  std::size_t cq_record(std::size_t queue) const { return qp_record(queues) + 8 * queue; }
  std::size_t bytes() const { return page_end(cq_record(queues)); }
  std::size_t records() const { return qp_record(0); }  // where they begin
  std::size_t cq_used() const { return std::size_t{64} << (collapsed ? 0 : log_depth); }

 private:
  static constexpr std::size_t rounded(std::size_t n) { return (n + 4095) / 4096 * 4096; }
  std::size_t sq_bytes() const { return rounded(std::size_t{64} << log_depth); }
  std::size_t cq_bytes() const { return rounded(cq_used()); }
};

// How an adapter is told of memory, best first.
enum class UmemWay : std::uint8_t {
  gpu_dmabuf,   // GPU memory, exported
  gpu_address,  // GPU memory by its address: nvidia_peermem
  host,         // a CPU thread plays the GPU
};
struct UmemFacts {
  bool gpu = false;           // a GPU writes the queues; else a CPU thread plays it
  bool exported = false;      // the driver exports its memory as dma-bufs
  bool takes_dmabuf = false;  // mlx5dv_devx_umem_reg_ex
  bool peermem = false;
};
std::vector<UmemWay> umem_ways(const UmemFacts& facts);
const char* name_of(UmemWay way);

struct QueueWish {
  bool rung_by_cpu = false;  // records in host memory
  // A descriptor of a dma-buf of the block (the caller's from then on), or -1; null: there are
  // none.
  std::function<int(const DeviceBlock& block)> exporter;
};

class QueueMemory {
 public:
  // Completion entries are those of no lap; all else is 0.  `gpu`: CUDA ordinal, or -1.  Logs which
  // ways failed, and why, if none is left.
  static Result<std::unique_ptr<QueueMemory>> make(const Adapter& adapter, int gpu,
                                                   const BlockPlan& plan, const QueueWish& wish);

  const BlockPlan& plan() const { return plan_; }
  UmemWay way() const { return way_; }
  // For commands: which umem, and places in it.
  std::uint32_t umem() const { return umem_->umem_id; }
  std::uint32_t record_umem() const { return (apart() ? record_umem_ : umem_)->umem_id; }
  std::uint64_t qp_record(std::size_t queue) const { return place_of(plan_.qp_record(queue)); }
  std::uint64_t cq_record(std::size_t queue) const { return place_of(plan_.cq_record(queue)); }
  // Of a queue in the plan, as kernels see it.
  std::uint64_t address(std::size_t place) const { return block_->device_address() + place; }
  // Of a queue pair's record, as who writes it sees it.
  std::uint64_t record(std::size_t queue) const {
    return (apart() ? records_ : block_)->device_address() + qp_record(queue);
  }
  // As the CPU sees it; null for GPU memory.
  std::uint8_t* host(std::size_t place) const {
    return block_->host() == nullptr ? nullptr : block_->host() + place;
  }

  // The adapter knows it no more.  What it was, for kernels may still look at it: freeing GPU
  // memory waits for them.  After the queues; ends the use of this.
  std::vector<std::unique_ptr<DeviceBlock>> take();

 private:
  explicit QueueMemory(const BlockPlan& plan) : plan_(plan) {}
  bool apart() const { return records_ != nullptr; }
  std::uint64_t place_of(std::size_t record) const {
    return apart() ? record - plan_.records() : record;
  }
  Status fill();
  int attempt(const Adapter& adapter, int gpu, UmemWay way, const QueueWish& wish);

  const BlockPlan plan_;
  UmemWay way_ = UmemWay::host;
  std::unique_ptr<DeviceBlock> block_, records_;  // no records_: they are in block_
  Handle<mlx5dv_devx_umem> umem_, record_umem_;
};

}  // namespace twinpath::gda::mlx5
