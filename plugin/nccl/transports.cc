#include "plugin/nccl/transports.h"

#include <cstdlib>
#include <string>

#include "gda/gin_transport.h"
#include "gda/rma/rma_transport.h"
#include "plugin/base/host.h"
#include "plugin/base/log.h"
#include "plugin/base/own_folder.h"
#include "plugin/base/version.h"
#include "plugin/fabric/by_network.h"
#include "plugin/gpu/engine.h"
#include "plugin/rdma/devices.h"
#include "proxy/transport.h"

namespace twinpath {

namespace {

Config for_these_ports(const Config& read, const Fabric& fabric) {
  const Config config = with_choice_by_network(read, fabric.ports, own_networks(),
                                               [](const char* name) { return std::getenv(name); });
  if (config.ib_subnet_aware != read.ib_subnet_aware)
    TP_INFO(net,
            "each port has a network of its own, and no router: connections take the port on the "
            "peer's network (NCCL_IB_SUBNET_AWARE_ROUTING=0 takes the one that NCCL names)");
  return config;
}

}  // namespace

Result<Transports> open_transports(const Config& read) {
  auto fabric = open_fabric(read);
  if (!fabric) return fabric.status();
  const Config config = for_these_ports(read, **fabric);
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
