#include "plugin/fabric/soft/port_addresses.h"

#include <cstring>

namespace twinpath::soft {
namespace {

// A device has 8 ports at most, a process 32 devices; the rest of what is no multicast address is
// the job's.
constexpr unsigned kPortBits = 9;
unsigned job_lids(std::uint32_t job_hash) { return 1 + job_hash % (0xbfff >> kPortBits); }

}  // namespace

ibv_gid PortAddresses::gid(int device, int port, const GidKind& kind) const {
  ibv_gid g{};
  if (!kind.used) return g;
  const auto d = static_cast<std::uint8_t>(device), p = static_cast<std::uint8_t>(port);
  if (!kind.mapped) {
    g.raw[0] = 0xfe;
    g.raw[1] = 0x80;
    for (unsigned i = 0; i < 4; ++i) g.raw[8 + i] = static_cast<std::uint8_t>(job_hash_ >> (8 * i));
    g.raw[13] = d;
    g.raw[15] = p;
  } else {
    g.raw[10] = g.raw[11] = 0xff;
    g.raw[12] = static_cast<std::uint8_t>(1 + job_hash_ % 126);  // a class A address, never 127
    g.raw[13] = static_cast<std::uint8_t>(job_hash_ >> 16);
    g.raw[14] = d;
    g.raw[15] = p;
  }
  return g;
}

std::uint16_t PortAddresses::lid(int device, int port) const {
  return static_cast<std::uint16_t>(job_lids(job_hash_) << kPortBits |
                                    static_cast<unsigned>(device * 8 + port));
}

bool PortAddresses::is_own(const ibv_gid& gid, const GidKind& kind) const {
  // Up to the last byte of the hash.
  return std::memcmp(this->gid(0, 1, kind).raw, gid.raw, kind.mapped ? 14 : 12) == 0;
}

bool PortAddresses::is_own(std::uint16_t lid) const {
  return lid >> kPortBits == job_lids(job_hash_);
}

bool PortAddresses::is_of(int device, std::uint16_t lid) const {
  return lid >= this->lid(device, 1) && lid <= this->lid(device, 8);
}

}  // namespace twinpath::soft
