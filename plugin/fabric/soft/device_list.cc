#include "plugin/fabric/soft/device_list.h"

#include <algorithm>
#include <cstdio>

namespace twinpath::soft {
namespace {

std::unique_ptr<SoftDevice> new_device(DeviceSpec spec, int index, Hca* hca) {
  auto device = std::make_unique<SoftDevice>();
  static_cast<ibv_device&>(*device) = ibv_device{};
  device->node_type = IBV_NODE_CA;
  device->transport_type = IBV_TRANSPORT_IB;
  std::snprintf(device->name, sizeof device->name, "%s", spec.name.c_str());
  std::snprintf(device->dev_name, sizeof device->dev_name, "uverbs-%s", spec.name.c_str());
  std::snprintf(device->ibdev_path, sizeof device->ibdev_path, "%s", spec.pci_path.c_str());
  device->hca = hca;
  device->index = index;
  if (!spec.up) device->ports_down = ~0u;
  device->spec = std::move(spec);
  return device;
}

}  // namespace

void DeviceList::show(std::vector<DeviceSpec> specs, Hca* hca) {
  shown_.clear();
  for (DeviceSpec& spec : specs) {
    const auto index = static_cast<int>(shown_.size());
    // Asked for again, an adapter is the same one: its ports are, too.
    const auto known = std::find_if(all_.begin(), all_.end(), [&](const auto& device) {
      return device->index == index && device->spec == spec;
    });
    shown_.push_back(known != all_.end()
                         ? known->get()
                         : all_.emplace_back(new_device(std::move(spec), index, hca)).get());
  }
}

}  // namespace twinpath::soft
