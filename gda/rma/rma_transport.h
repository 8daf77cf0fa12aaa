#pragma once
// One-sided transfers by the host, over any fabric.
#include <memory>

#include "gda/rma/rma.h"

namespace twinpath {
class Devices;
}

namespace twinpath::gda {

// Over the devices that the process's Transport uses, too; the numbers are its.
Result<std::unique_ptr<RmaTransport>> make_rma_transport(std::shared_ptr<Devices> devices);

}  // namespace twinpath::gda
