#pragma once
// Every run-time option in one table.  The table is the single source: it parses and
// validates the environment, prints `twinpath-info --options` and writes the table of
// plugin/SETTINGS.md.
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "plugin/base/config.h"

namespace twinpath {

struct Option {
  std::string_view name;   // full environment variable, e.g. "TWINPATH_FABRIC"
  std::string_view group;  // heading: Fabric, Soft HCA, Connections, Data path, GPU, Sockets
  std::string_view
      values;  // what a value looks like, with units: "auto|verbs|soft", "ms, 100..600000"
  std::string_view doc;  // one or two full sentences
  // Returns false and says why when `text` is not a value (wrong type or out of range);
  // the config then keeps its value.
  bool (*set)(Config& config, std::string_view text, std::string& why);
  std::string (*get)(const Config& config);  // inverse of set; also prints defaults
};

std::span<const Option> options();

// NCCL_IB_* variables that NCCL's transport knows and we do not act on: name and reason.
struct UnsupportedOption {
  std::string_view name;
  std::string_view reason;
};
std::span<const UnsupportedOption> unsupported_options();

// One setting as found: its text, and whether it came from the environment.
struct OptionState {
  const Option* option;
  std::string value;
  std::string default_value;
  bool from_environment;
  std::string error;  // non-empty: the environment's value was refused and the default kept
};

// Lookup as getenv; tests pass a map.
using EnvLookup = std::function<const char*(const char*)>;

// Reads all options.  A refused value leaves the default; `states` (optional) receives one
// entry per option in table order.  Never fails.
Config read_config(const EnvLookup& lookup, std::vector<OptionState>* states = nullptr);

// A variable of the environment that looks like a setting of ours and is none, or has its old name.
struct UnreadSetting {
  std::string text;  // the whole complaint
  bool mistake;      // nobody reads it, or soon; else one of NCCL's that has no effect here
};
std::vector<UnreadSetting> unread_settings();

// read_config(getenv), a warning per refused value, an info line per set but unsupported
// NCCL_IB_* variable, a warning with the nearest name for an unknown TWINPATH_* variable.
Config config_from_environment();

// Markdown table of all options, as it stands in plugin/SETTINGS.md.
std::string options_markdown();

}  // namespace twinpath
