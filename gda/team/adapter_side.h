#pragma once
// An mlx5 adapter as a GIN comm uses it when the adapter itself serves the queues of kernels: what
// its windows and contexts share.
//
// Threads: see gda/adapter/mlx5/adapter.h.
#include <memory>
#include <string>

#include "gda/adapter/mlx5/adapter.h"
#include "plugin/rdma/devices.h"

namespace twinpath::gda {

struct AdapterSide {
  // Null, and `why_not` in words, where the rail's adapter is no mlx5 adapter or lacks what queues
  // of kernels need.
  static std::shared_ptr<AdapterSide> open(std::shared_ptr<Devices> devices, const Rail& rail,
                                           std::string& why_not);

  // Its registers are memory.
  bool software() const { return devices->config().fabric == FabricChoice::soft; }

  const std::shared_ptr<Devices> devices;  // first: the adapter is one of them
  Mlx5 table;
  std::unique_ptr<mlx5::Adapter> adapter;
};

}  // namespace twinpath::gda
