#pragma once
// Memory that kernels name in queues that an adapter serves: registered with addresses from 0, for
// the entries hold places in it (abi.h), and with the fabric's own keys.  Where addresses are from
// 0, memory begins where a page of the host does: Linux refuses another place in the page.
//
// Threads: any.
#include <cstddef>
#include <cstdint>

#include "gda/adapter/mlx5/adapter.h"

namespace twinpath::gda::mlx5 {

struct RegionRequest {
  void* data = nullptr;  // of the host or of a GPU
  std::size_t bytes = 0;
  bool on_gpu = false;
  int dmabuf_fd = -1;  // the caller's, of GPU memory; -1: one is made where the driver can
  std::uint64_t dmabuf_offset = 0;
  // Never for what kernels wait for: only strict order keeps a signal behind its data.
  bool relaxed_ordering = false;
};
// GPU memory as registration.h has it.  Logs what is wrong.
Result<Owned<ibv_mr>> register_region(const Adapter& adapter, const RegionRequest& request);

}  // namespace twinpath::gda::mlx5
