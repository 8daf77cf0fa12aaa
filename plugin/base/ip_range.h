#pragma once
// An address range in CIDR notation ("10.1.0.0/16", "fd00::/8"): the value of
// NCCL_IB_ADDR_RANGE, checked by the option table and applied by the GID choice.
//
// Threads: plain values.
#include <arpa/inet.h>
#include <netinet/in.h>

#include <array>
#include <charconv>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace twinpath {

struct IpRange {
  int family = AF_INET;
  std::array<std::uint8_t, 16> address{};  // network order; the first 4 bytes for AF_INET
  int prefix = 0;                          // leading bits that count

  // Whether an address of `other_family` lies in the range.
  bool contains(int other_family, const std::uint8_t* other) const {
    if (other_family != family) return false;
    for (int bit = 0; bit < prefix; ++bit) {
      const auto byte = static_cast<std::size_t>(bit / 8);
      const int mask = 0x80 >> (bit % 8);
      if ((address[byte] & mask) != (other[byte] & mask)) return false;
    }
    return true;
  }
};

// nullopt for anything but "address/prefix".
inline std::optional<IpRange> parse_ip_range(std::string_view text) {
  const std::size_t slash = text.find('/');
  if (slash == std::string_view::npos) return std::nullopt;
  const std::string address(text.substr(0, slash));
  const std::string_view bits = text.substr(slash + 1);
  IpRange range;
  const auto [end, error] = std::from_chars(bits.data(), bits.data() + bits.size(), range.prefix);
  if (error != std::errc{} || end != bits.data() + bits.size()) return std::nullopt;
  range.family = address.find(':') == std::string::npos ? AF_INET : AF_INET6;
  const int most = range.family == AF_INET ? 32 : 128;
  if (range.prefix < 0 || range.prefix > most) return std::nullopt;
  if (inet_pton(range.family, address.c_str(), range.address.data()) != 1) return std::nullopt;
  return range;
}

}  // namespace twinpath
