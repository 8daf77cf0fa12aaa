#include "plugin/gpu/near_cpus.h"

#include <cstdio>
#include <fstream>

#include "plugin/gpu/driver.h"

namespace twinpath::gpu {

std::string near_cpus(int gpu) {
  const cuda::Driver* d = gpu >= 0 ? cuda::driver() : nullptr;
  if (d == nullptr || d->device_attribute == nullptr) return {};
  int domain = 0, bus = 0, device = 0;
  if (d->device_attribute(&domain, cuda::kPciDomain, gpu) != cuda::kSuccess ||
      d->device_attribute(&bus, cuda::kPciBus, gpu) != cuda::kSuccess ||
      d->device_attribute(&device, cuda::kPciDevice, gpu) != cuda::kSuccess)
    return {};
  char path[96];
  std::snprintf(path, sizeof path, "/sys/bus/pci/devices/%04x:%02x:%02x.0/local_cpulist",
                static_cast<unsigned>(domain), static_cast<unsigned>(bus),
                static_cast<unsigned>(device));
  std::ifstream file(path);
  std::string list;
  std::getline(file, list);
  return list;
}

}  // namespace twinpath::gpu
