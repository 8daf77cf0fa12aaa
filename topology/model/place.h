#pragma once
// Facts that sources outside the readers bring: the place of a soft HCA, the data-direct function
// that libmlx5 names, what the CUDA driver says about a GPU.  Pure.
#include <optional>
#include <string>
#include <string_view>

#include "topology/model/machine.h"

namespace twinpath {

// Where a soft HCA sits, in words:
//   0000:a1:00.0            that function; below the same bridge when the machine knows it
//   /sys/devices/.../BDF    the same by sysfs path; the bridges above are entered from the path
//   below=0000:a1:00.0      on the switch (or root port) that this device hangs on, as its sibling
//   bridge=0000:a0:00.0     below this bridge, which may be a host bridge
//   numa=1                  on a host bridge of its own at this NUMA node
//   none                    not placed: every distance is unknown
// Enters or moves the HCA `name` (kind soft).  False and `why` when the place does not exist.
bool place_soft_hca(Machine& machine, std::string_view name, std::string_view place,
                    std::string& why);

// Ties a data-direct function to an HCA; `path` is what mlx5dv_get_data_direct_sysfs_path gives,
// or just the bus id.  False when machine has no such HCA or function.
bool set_data_direct(Machine& machine, std::string_view hca, std::string_view path);

// What the CUDA driver says about the device at `bus`.  Enters the GPU, without a parent, when no
// source saw it (a container without its sysfs entry).
struct CudaFacts {
  std::optional<int> index;
  std::string name;
  std::optional<int> compute_capability;
  std::optional<bool> gdr;
  std::optional<int> host_numa;  // CPU node of a coherent GPU (HOST_NUMA_ID), C2C
};
Gpu& set_cuda_facts(Machine& machine, const BusId& bus, const CudaFacts& facts);

}  // namespace twinpath
