#pragma once
// What engine.h's functions of the same kind do where copies are made in this process.
#include <memory>

#include "plugin/gpu/engine.h"

namespace twinpath::gpu {

Result<std::shared_ptr<ImportedAllocation>> import_here(ExportedAllocation exported);
Result<std::shared_ptr<ImportedAllocation>> import_local_here(const PointerInfo& info);

}  // namespace twinpath::gpu
