#pragma once
// GPU memory as a dma-buf, for adapters that register it without nvidia_peermem.
//
// Threads: any.
#include <cstddef>
#include <cstdint>

namespace twinpath::gda {

// Whether the driver has the call; whether it works for a GPU is seen by trying.
bool exports_dmabufs();
// A descriptor, the caller's, of [address, address + bytes), both multiples of the page size; -1
// where the driver refuses.
int export_dmabuf(int gpu, std::uint64_t address, std::size_t bytes);

}  // namespace twinpath::gda
