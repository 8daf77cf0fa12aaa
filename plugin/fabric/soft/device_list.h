#pragma once
// The devices of a process: what ibv_get_device_list shows, and what it has ever shown.
//
// Threads: whoever holds Hca::lock_; a device may be used by any.
#include <memory>
#include <vector>

#include "plugin/fabric/soft/device_spec.h"
#include "plugin/fabric/soft/objects.h"

namespace twinpath::soft {

class DeviceList {
 public:
  // These are shown from now on.  One that was shown before in that place, with the same
  // specification, is the same device; others live on, for users hold pointers to them.
  void show(std::vector<DeviceSpec> specs, Hca* hca);
  const std::vector<SoftDevice*>& shown() const { return shown_; }

 private:
  std::vector<SoftDevice*> shown_;
  std::vector<std::unique_ptr<SoftDevice>> all_;
};

}  // namespace twinpath::soft
