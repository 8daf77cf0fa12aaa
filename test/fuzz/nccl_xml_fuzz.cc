// A topology file of NCCL: whatever it says, every Machine that comes out is sound, and writing it
// gives a file that reads back with the same devices.
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "topology/model/distance_rule.h"
#include "topology/read/nccl_xml.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace twinpath;
  std::string why;
  const auto hosts = parse_nccl_xml({reinterpret_cast<const char*>(data), size}, why);
  if (!hosts) {
    if (why.empty()) std::abort();
    return 0;
  }
  for (const Machine& m : *hosts) {
    if (!check_machine(m).empty()) std::abort();
    for (const Gpu& g : m.gpus)
      for (const Hca& h : m.hcas)
        if (nccl_letter(m, g, h).empty() ||
            (h.data_path() != nullptr &&
             relate(m, g.pci, *h.data_path()).pcie != relate(m, *h.data_path(), g.pci).pcie))
          std::abort();
    const auto back = parse_nccl_xml(write_nccl_xml(m), why);
    // A machine without CPUs and devices has nothing to write.
    if (!back ? !m.numa_nodes.empty() || !m.gpus.empty()
              : back->front().gpus.size() != m.gpus.size())
      std::abort();
  }
  if (hosts->size() >= 2) {
    Machine first = hosts->front();
    (void)apply_nccl_placement(first, hosts->back(), "the other host");
    if (!check_machine(first).empty()) std::abort();
  }
  return 0;
}
