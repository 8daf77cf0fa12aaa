// See gin_core.h.
#include "gda/team/gin_core.h"

#include "gda/memory/retired.h"
#include "plugin/base/log.h"

namespace twinpath::gda {

GinCore::~GinCore() {
  if (spare_handles.empty() || spare_handles.front()->host() != nullptr) return;
  const auto handles = std::make_shared<decltype(spare_handles)>(std::move(spare_handles));
  (void)Retired::of_process().put({.free = [handles] { handles->clear(); }, .release = {}});
}

void GinCore::warn_of_lost_port(const std::string& why) const {
  TP_WARN("GIN of rank %d: %s; all kernels are let go", rank(), why.c_str());
}

}  // namespace twinpath::gda
