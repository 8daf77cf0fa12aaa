#include "plugin/nccl/transports.h"

#include <string>

#include "gda/gin_transport.h"
#include "gda/rma/rma_transport.h"
#include "plugin/base/version.h"
#include "plugin/gpu/engine.h"
#include "plugin/nccl/own_folder.h"
#include "proxy/memory/devices.h"
#include "proxy/transport.h"
#include "proxy/wire/handle.h"

namespace twinpath {

Result<Transports> open_transports(const Config& config) {
  auto fabric = open_fabric(config);
  if (!fabric) return fabric.status();
  if (config.soft_cuda == SoftCuda::process)
    gpu::copy_elsewhere(config.copier.empty() ? own_folder() + "/twinpath-copier" : config.copier,
                        config.helper_cpus);
  Transports transports;
  transports.kind = (*fabric)->kind;
  if (config.counters)
    transports.counters = CounterPage::create(host_name(), built_from(), config.metrics_dir);
  const auto devices = std::make_shared<Devices>(std::move(fabric).take(), config, std::nullopt,
                                                 transports.counters);
  transports.proxy = make_proxy_transport(devices);
  transports.make_gin = [devices] { return gda::make_gin_transport(devices); };
  transports.make_rma = [devices] { return gda::make_rma_transport(devices); };
  return transports;
}

}  // namespace twinpath
