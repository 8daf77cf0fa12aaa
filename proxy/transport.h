#pragma once
// The CPU-proxy transport: see proxy/README.md for one send and one receive step by step.
#include <memory>

#include "plugin/base/config.h"
#include "plugin/base/status.h"
#include "plugin/fabric/fabric.h"
#include "plugin/transport.h"

namespace twinpath {

// Takes over the fabric; the Config is copied.  Never fails for a fabric without ports: the
// transport then has no device.
Result<std::unique_ptr<Transport>> make_proxy_transport(std::unique_ptr<Fabric> fabric,
                                                        const Config& config);

// The same over devices that another transport uses, too.
class Devices;
std::unique_ptr<Transport> make_proxy_transport(std::shared_ptr<Devices> devices);

}  // namespace twinpath
