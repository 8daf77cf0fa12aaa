#include "topology/read/config_space.h"

#include <cstddef>

namespace twinpath {
namespace {

constexpr std::uint8_t kExpressCapability = 0x10;
constexpr std::uint16_t kAcsCapability = 0x000d;
constexpr std::size_t kExtendedStart = 0x100;

std::uint32_t little(std::span<const std::uint8_t> bytes, std::size_t at, std::size_t size) {
  std::uint32_t v = 0;
  for (std::size_t i = 0; i < size; ++i) v |= std::uint32_t{bytes[at + i]} << (8 * i);
  return v;
}

}  // namespace

BridgeKind port_kind(std::span<const std::uint8_t> config) {
  if (config.size() < 0x40 || (config[0x06] & 0x10) == 0) return BridgeKind::unknown;
  std::size_t at = config[0x34] & 0xfcu;
  // A list has no more entries than fit; the bound ends a circle.
  for (int left = 48; left > 0 && at >= 0x40 && at + 4 <= config.size(); --left) {
    if (config[at] == kExpressCapability) {
      switch (config[at + 2] >> 4) {
        case 4:
          return BridgeKind::root_port;
        case 5:
          return BridgeKind::upstream;
        case 6:
          return BridgeKind::downstream;
        default:
          return BridgeKind::unknown;
      }
    }
    at = config[at + 1] & 0xfcu;
  }
  return BridgeKind::unknown;
}

std::optional<BusNumbers> bus_numbers(std::span<const std::uint8_t> config) {
  if (config.size() < 0x1b || (config[0x0e] & 0x7f) != 0x01) return std::nullopt;
  return BusNumbers{config[0x19], config[0x1a]};
}

std::optional<AcsControl> acs_control(std::span<const std::uint8_t> config) {
  std::size_t at = kExtendedStart;
  for (int left = 96; left > 0 && at >= kExtendedStart && at + 8 <= config.size(); --left) {
    const std::uint32_t header = little(config, at, 4);
    if ((header & 0xffff) == kAcsCapability)
      return AcsControl{static_cast<std::uint16_t>(little(config, at + 6, 2))};
    at = header >> 20 & 0xffcu;
  }
  return std::nullopt;
}

std::optional<std::string> vpd_keyword(std::span<const std::uint8_t> vpd, const char* keyword) {
  std::size_t at = 0;
  while (at < vpd.size()) {
    const std::uint8_t tag = vpd[at];
    if ((tag & 0x80) == 0) {                        // small resource
      if ((tag >> 3) == 0x0f) return std::nullopt;  // end tag
      at += 1u + (tag & 0x07u);
      continue;
    }
    if (at + 3 > vpd.size()) return std::nullopt;
    const std::size_t size = little(vpd, at + 1, 2);
    at += 3;
    const std::size_t end = at + size < vpd.size() ? at + size : vpd.size();
    if (tag == 0x90) {
      for (std::size_t key = at; key + 3 <= end;) {
        const std::size_t length = vpd[key + 2];
        if (key + 3 + length > end) return std::nullopt;
        if (vpd[key] == static_cast<std::uint8_t>(keyword[0]) &&
            vpd[key + 1] == static_cast<std::uint8_t>(keyword[1]))
          return std::string(vpd.begin() + static_cast<std::ptrdiff_t>(key + 3),
                             vpd.begin() + static_cast<std::ptrdiff_t>(key + 3 + length));
        key += 3 + length;
      }
    }
    at = end;
  }
  return std::nullopt;
}

}  // namespace twinpath
