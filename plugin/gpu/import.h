#pragma once
// GPUs by their identity, and what engine.h's functions of the same kind do where copies are made
// in this process.
#include <memory>

#include "plugin/gpu/driver.h"

namespace twinpath::gpu {

// Its ordinal in this process; kGpuNotVisible.
int find_gpu(const cuda::Driver& d, const GpuUuid& uuid);

Result<std::shared_ptr<ImportedAllocation>> import_here(ExportedAllocation exported);
Result<std::shared_ptr<ImportedAllocation>> import_local_here(const PointerInfo& info);

}  // namespace twinpath::gpu
