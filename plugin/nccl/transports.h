#pragma once
// What the Context opens: all transports over the same devices.  A seam: tests of the tables
// supply their own at link time.
#include <functional>
#include <memory>

#include "gda/gin.h"
#include "gda/rma/rma.h"
#include "plugin/base/config.h"
#include "plugin/base/counter_page.h"
#include "plugin/base/status.h"
#include "plugin/fabric/fabric.h"
#include "plugin/transport.h"

namespace twinpath {

struct Transports {
  FabricKind kind = FabricKind::soft;
  std::shared_ptr<CounterPage> counters;  // null: nothing is counted for readers
  std::unique_ptr<Transport> proxy;
  // Called once, when NCCL first wants a GIN connection: most programs never do, and their init
  // must not pay for it.
  std::function<Result<std::unique_ptr<gda::GinTransport>>()> make_gin;
  // The same for RMA.
  std::function<Result<std::unique_ptr<gda::RmaTransport>>()> make_rma;
};

Result<Transports> open_transports(const Config& config);

}  // namespace twinpath
