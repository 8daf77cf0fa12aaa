#pragma once
// Memory that kernels name in queues that an adapter serves: registered with addresses from 0, for
// the entries hold places in it (abi.h), and with the fabric's own keys.
//
// Threads: any.
#include <cstddef>
#include <cstdint>

#include "gda/mlx5/adapter.h"

namespace twinpath::gda::mlx5 {

struct RegionRequest {
  void* data = nullptr;  // of the host or of a GPU
  std::size_t bytes = 0;
  int dmabuf_fd = -1;  // -1: none
  std::uint64_t dmabuf_offset = 0;
  // Never for what kernels wait for: only strict order keeps a signal behind its data.
  bool relaxed_ordering = false;
};
// By dma-buf where there is one and the fabric takes it, else by address.  Logs what is wrong.
Result<Owned<ibv_mr>> register_region(const Adapter& adapter, const RegionRequest& request);

}  // namespace twinpath::gda::mlx5
