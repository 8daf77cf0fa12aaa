#pragma once
// The one model of the process behind libmlx5's calls.
#include "plugin/fabric/soft/mlx5/library.h"

namespace twinpath::softhca::mlx5 {

namespace model = soft::mlx5;

// Made by the first caller; it stays, because programs destroy objects from exit handlers. Contexts
// stay in it, too: libmlx5 is not told when one is closed.  Any thread.
model::Library& library();

}  // namespace twinpath::softhca::mlx5
