#include "plugin/nccl/transports.h"

#include "gda/gin_transport.h"
#include "proxy/memory/devices.h"
#include "proxy/transport.h"

namespace twinpath {

Result<Transports> open_transports(const Config& config) {
  auto fabric = open_fabric(config);
  if (!fabric) return fabric.status();
  Transports transports;
  transports.kind = (*fabric)->kind;
  const auto devices = std::make_shared<Devices>(std::move(fabric).take(), config);
  transports.proxy = make_proxy_transport(devices);
  transports.make_gin = [devices] { return gda::make_gin_transport(devices); };
  return transports;
}

}  // namespace twinpath
