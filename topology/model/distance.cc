#include "topology/model/distance.h"

#include <array>
#include <cctype>
#include <cstddef>

namespace twinpath {
namespace {

constexpr std::array<std::string_view, kDistances> kNames = {"SELF", "PIX",  "PXB", "C2C", "PHB",
                                                             "NODE", "SOCK", "SYS", "UNK"};

bool equal_in_any_case(std::string_view text, std::string_view upper) {
  if (text.size() != upper.size()) return false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (std::toupper(static_cast<unsigned char>(text[i])) != upper[i]) return false;
  }
  return true;
}

}  // namespace

std::string_view name_of(Distance d) {
  const auto i = static_cast<std::size_t>(d);
  return i < kNames.size() ? kNames[i] : kNames.back();
}

std::optional<Distance> parse_distance(std::string_view text) {
  if (equal_in_any_case(text, "LOC")) return Distance::self;
  if (equal_in_any_case(text, "P2C")) return Distance::c2c;
  for (std::size_t i = 0; i < kNames.size(); ++i) {
    if (equal_in_any_case(text, kNames[i])) return static_cast<Distance>(i);
  }
  return std::nullopt;
}

}  // namespace twinpath
