#pragma once
// Words for the values of a machine: the same in the text, the JSON and the picture.
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "topology/model/distance_rule.h"
#include "topology/model/machine.h"

namespace twinpath::tools::topo {

std::string gpu_name(const Gpu& gpu);                         // "GPU0"
std::string gpu_model(const Gpu& gpu);                        // "NVIDIA H100", "NVIDIA GPU 2330"
std::string hca_model(const Hca& hca);                        // "ConnectX-7", "soft", "other"
std::string bridge_name(const Machine& machine, int bridge);  // "switch 0000:11:00.0"
std::string link_text(const PcieLink& link);                  // "Gen5 x16, 63.0 GB/s", "not known"
std::string generation(double gts);                           // "Gen5"
std::string number(double value, int digits);                 // "63.0"
std::string numa_text(std::optional<int> node);               // "n0", "n?"
std::string hca_numa_text(const Hca& hca);                    // "-" without a place
std::string ports_text(const Hca& hca);                       // "400 Gb/s InfiniBand ACTIVE"
std::string rates_text(const Hca& hca);                       // "400", "2x200", "?"
// The fastest active port in Gb/s; nullopt when no port tells.
std::optional<int> port_rate(const Hca& hca);
bool any_port_active(const Hca& hca);  // or not told
std::string cpu_text(const CpuModel& cpu);
// "the dump" has no host name: "node".
std::string node_name(const Machine& machine);
// "0-2,5" of ascending numbers.
std::string ranges(const std::vector<int>& numbers);
std::string joined(const std::vector<std::string>& parts, std::string_view between);
// "a, b" of few, "32 (a ... z)" of many.
std::string few(const std::vector<std::string>& names);
std::string padded(std::string text, std::size_t width);
// Whether the machine was read from a sysfs, ours or a captured one: other sources know nothing of
// drivers, limits and settings, so what is missing there is unknown, not absent.
bool has_host_facts(const Machine& machine);

}  // namespace twinpath::tools::topo
