#include "tools/common/units.h"

#include <cctype>
#include <charconv>
#include <cstdio>
#include <limits>

namespace twinpath::tools {

std::optional<std::size_t> parse_bytes(std::string_view text) {
  std::size_t value = 0;
  const auto [rest, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{}) return std::nullopt;
  std::string unit;
  for (const char* c = rest; c != text.data() + text.size(); ++c)
    unit += static_cast<char>(std::tolower(static_cast<unsigned char>(*c)));
  int shift = 0;
  if (unit == "k" || unit == "kb" || unit == "kib")
    shift = 10;
  else if (unit == "m" || unit == "mb" || unit == "mib")
    shift = 20;
  else if (unit == "g" || unit == "gb" || unit == "gib")
    shift = 30;
  else if (!unit.empty() && unit != "b")
    return std::nullopt;
  if (value > (std::numeric_limits<std::size_t>::max() >> shift)) return std::nullopt;
  return value << shift;
}

bool parse_byte_list(std::string_view text, std::vector<std::size_t>& out, std::string& why) {
  out.clear();
  while (true) {
    const std::size_t comma = text.find(',');
    const std::string_view item = text.substr(0, comma);
    const auto bytes = parse_bytes(item);
    if (!bytes) {
      why = "'" + std::string(item) + "' is not a size; write 8, 64k, 1m or 2g";
      return false;
    }
    out.push_back(*bytes);
    if (comma == std::string_view::npos) return true;
    text.remove_prefix(comma + 1);
  }
}

std::vector<std::size_t> size_steps(std::size_t begin, std::size_t end, std::size_t factor) {
  std::vector<std::size_t> sizes;
  for (std::size_t s = begin; s <= end; s *= factor) {
    sizes.push_back(s);
    if (s == 0 || factor < 2 || s > end / factor) break;
  }
  return sizes;
}

std::string format_bytes(std::size_t bytes) {
  static constexpr const char* kUnits[] = {"", "k", "m", "g"};
  int unit = 0;
  while (unit < 3 && bytes != 0 && bytes % 1024 == 0) {
    bytes /= 1024;
    ++unit;
  }
  return std::to_string(bytes) + kUnits[unit];
}

std::string fixed(double value, int digits) {
  char text[64];
  std::snprintf(text, sizeof text, "%.*f", digits, value);
  return text;
}

}  // namespace twinpath::tools
