#pragma once
// GPU memory as a dma-buf, for adapters that register it without nvidia_peermem.
//
// Threads: any.
#include <cstddef>
#include <cstdint>

namespace twinpath::gpu {

// Whether the driver has the call; whether it works for a GPU is seen by trying.
bool exports_dmabufs();
// A descriptor, the caller's, of [address, address + bytes), both multiples of the page size; -1
// where the driver refuses.
int export_dmabuf(int gpu, std::uint64_t address, std::size_t bytes);

// What a dma-buf that export_dmabuf made is of: the soft HCA finds memory by its address.  Of the
// last few hundred.  False: somebody else's, or no dma-buf.
struct DmabufMemory {
  std::uint64_t address = 0;
  std::uint64_t bytes = 0;
  bool holds(std::uint64_t offset, std::uint64_t size) const {
    return offset <= bytes && size <= bytes - offset;
  }
};
bool find_dmabuf(int fd, DmabufMemory& out);

}  // namespace twinpath::gpu
