#pragma once
// Texts that sysfs and hwloc write the same way.
#include <charconv>
#include <cstdint>
#include <optional>
#include <string_view>

#include "topology/model/machine.h"

namespace twinpath {

// "7e9c:f000:0349:9ee8" or "0x7e9cf00003499ee8"; nullopt for zero and for anything else.
inline std::optional<std::uint64_t> parse_guid(std::string_view text) {
  if (text.starts_with("0x")) text.remove_prefix(2);
  std::uint64_t v = 0;
  int digits = 0;
  for (const char c : text) {
    if (c == ':') continue;
    const int d = c >= '0' && c <= '9'   ? c - '0'
                  : c >= 'a' && c <= 'f' ? c - 'a' + 10
                  : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                         : -1;
    if (d < 0 || ++digits > 16) return std::nullopt;
    v = v << 4 | static_cast<std::uint64_t>(d);
  }
  if (digits == 0 || v == 0) return std::nullopt;
  return v;
}

// "4: ACTIVE" or "4".
inline std::optional<PortState> parse_port_state(std::string_view text) {
  if (text.empty() || text.front() < '1' || text.front() > '4') return std::nullopt;
  return static_cast<PortState>(text.front() - '1');
}

}  // namespace twinpath
