#pragma once
// GPU memory as a dma-buf, for adapters that register it without nvidia_peermem.
//
// Threads: any.
#include <cstddef>
#include <cstdint>

namespace twinpath::gpu {

// Whether the driver has the call; whether it works for a GPU is seen by trying.
bool exports_dmabufs();
// How devices are to reach it.  An adapter's data-direct function does so by PCIe, also where GPU
// and CPU have a link of their own (CU_MEM_RANGE_FLAG_DMA_BUF_MAPPING_TYPE_PCIE, CUDA 12.8).
enum class DmabufMapping : std::uint8_t { usual, pcie };
constexpr unsigned long long export_flags(DmabufMapping m) {
  return m == DmabufMapping::pcie ? 1 : 0;
}
// A descriptor, the caller's, of [address, address + bytes), both multiples of the host's page size
// (page_size.h); -1 where that is no GPU's memory, or the driver refuses.
int export_dmabuf(std::uint64_t address, std::size_t bytes,
                  DmabufMapping mapping = DmabufMapping::usual);

// What a dma-buf that export_dmabuf made is of: the soft HCA finds memory by its address.  Of the
// last few hundred.  False: somebody else's, or no dma-buf.
struct DmabufMemory {
  std::uint64_t address = 0;
  std::uint64_t bytes = 0;
};
bool find_dmabuf(int fd, DmabufMemory& out);

}  // namespace twinpath::gpu
