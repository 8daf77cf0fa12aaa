// TWINPATH_SOFT_HCAS and TWINPATH_SOFT_FAULTS.
#include <cstdint>
#include <cstdlib>
#include <string>

#include "plugin/fabric/soft/device_spec.h"
#include "plugin/fabric/soft/faults.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string text(data, data + size);
  std::string why;
  const auto specs = twinpath::soft::parse_device_specs(text, why);
  if (!specs && why.empty()) std::abort();
  if (specs) {
    for (const auto& s : *specs) {
      if (s.name.empty() || s.ports < 1 || s.ports > 8 || s.speed_gbps < 1) std::abort();
    }
  }
  why.clear();
  twinpath::soft::Faults faults;
  if (!faults.set(text, why) && (why.empty() || faults.any())) std::abort();
  return 0;
}
