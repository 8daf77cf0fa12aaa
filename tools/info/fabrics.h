#pragma once
// What twinpath-info finds out: each fabric with its devices, or the reason why it has none.
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "plugin/base/config.h"
#include "plugin/transport.h"

namespace twinpath::tools {

struct FabricReport {
  std::string kind;                   // "verbs", "soft"
  bool selected = false;              // what the plugin would use with these settings
  std::string why_not;                // no devices: what the plugin said
  std::vector<DeviceProps> devices;   // as NCCL would see them
  std::vector<std::string> messages;  // all that was logged meanwhile
  std::vector<std::string> warnings;  // of these the warnings
  bool refused = false;               // a setting kept it from being opened
};

// Opens both fabrics, one after the other.
std::vector<FabricReport> look_at_fabrics(const Config& config);

// What was found wrong with settings, each once: warnings of the fabric that would be used, and of
// one that a setting keeps from being opened.
std::vector<std::string> refused_settings(const std::vector<FabricReport>& fabrics);

nlohmann::json fabrics_json(const std::vector<FabricReport>& fabrics);
void print_fabrics(const std::vector<FabricReport>& fabrics, const Config& config, bool verbose);

}  // namespace twinpath::tools
