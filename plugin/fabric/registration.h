#pragma once
// Memory registered with an adapter.  That of a GPU in the best way that the adapter takes:
//
//   data direct  a dma-buf of the PCIe mapping, by the adapter's data-direct function
//   dma-buf      by the adapter's own function
//   address      nvidia_peermem
//
// All memory of one GPU must go the same way to one adapter, or a signal could pass its data.
// The dma-buf is the caller's, or is exported here: whole pages of the host around the range (the
// memory behind an allocation has them), and closed again, for the registration holds the memory.
//
// Threads: any.  Setup only.
#include <cstddef>
#include <cstdint>
#include <string>

#include "plugin/fabric/verbs.h"

namespace twinpath {

enum class GpuWay : std::uint8_t { data_direct, dmabuf, address };

struct RangeRequest {
  std::uint64_t address = 0;
  std::size_t bytes = 0;
  std::uint64_t iova = 0;
  int access = 0;
  bool relaxed_ordering = false;  // wanted; goes without where that is refused
  bool data_direct = false;       // wanted, if the table has it
  int dmabuf_fd = -1;             // the caller's
  std::uint64_t dmabuf_offset = 0;
  bool exported = false;    // without a descriptor: by a dma-buf of our own
  bool by_address = false;  // where no dma-buf is left to try, or none is wanted
};

struct RangeMr {
  ibv_mr* mr = nullptr;  // the caller's
  GpuWay way = GpuWay::address;
  bool relaxed_ordering = false;  // as granted
  int error = 0;                  // errno of the last way that was refused
  int data_direct_error = 0;      // of that one
  // What was refused, "by dma-buf: Bad address (errno 14), by its address: ...", and behind it,
  // where nothing was left, cause and remedy of the first.
  std::string refused;
};

RangeMr register_gpu_range(const Verbs& verbs, ibv_pd* pd, const RangeRequest& range);
// By its address; what the request says of dma-bufs means nothing.
RangeMr register_host_range(const Verbs& verbs, ibv_pd* pd, const RangeRequest& range);

}  // namespace twinpath
