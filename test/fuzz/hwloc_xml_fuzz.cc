// XML of hwloc: whatever it says, it is refused with a reason or gives a sound Machine whose pairs
// have distances.
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "topology/model/distance_rule.h"
#include "topology/read/hwloc_xml.h"
#include "topology/read/nccl_xml.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace twinpath;
  std::string why;
  const auto m = parse_hwloc_xml({reinterpret_cast<const char*>(data), size}, why);
  if (!m) {
    if (why.empty() || why.find('\n') != std::string::npos) std::abort();
    return 0;
  }
  if (!check_machine(*m).empty()) std::abort();
  for (const Gpu& g : m->gpus)
    for (const Hca& h : m->hcas)
      if (nccl_letter(*m, g, h).empty() ||
          (h.data_path() != nullptr &&
           relate(*m, g.pci, *h.data_path()).pcie != relate(*m, *h.data_path(), g.pci).pcie))
        std::abort();
  if (write_nccl_xml(*m).empty()) std::abort();
  return 0;
}
