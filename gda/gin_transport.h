#pragma once
// The GPU-initiated transport over any fabric, in `proxy` mode: see gda/README.md for one put step
// by step.
#include <memory>

#include "gda/gin.h"

namespace twinpath {
class Devices;
}

namespace twinpath::gda {

// Over the devices that the process's Transport uses, too.  Kernels are those of the GPU that is
// current on the thread that calls connect; without one, CPU threads play the GPU.
Result<std::unique_ptr<GinTransport>> make_gin_transport(std::shared_ptr<Devices> devices);

}  // namespace twinpath::gda
