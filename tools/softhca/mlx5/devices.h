#pragma once
// The modelled devices behind the contexts that libibverbs opened.
#include <infiniband/verbs.h>

#include <cstdint>

#include "plugin/fabric/soft/mlx5/device.h"
#include "tools/softhca/mlx5/execution.h"

namespace twinpath::softhca::mlx5 {

namespace model = soft::mlx5;

// The one of `context`, made when it is first asked for.  Any thread.  It stays: libmlx5 is not
// told when a context is closed.
model::Device& device_of(ibv_context* context);

// Who carries out what is in that device's queues.
Execution& execution_of(ibv_context* context);

// A number for what libibverbs made, from the space that the devices' objects have theirs from.
std::uint32_t next_number();

}  // namespace twinpath::softhca::mlx5
