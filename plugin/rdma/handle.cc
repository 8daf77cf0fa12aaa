#include "plugin/rdma/handle.h"

#include <algorithm>
#include <cstring>

#include "plugin/base/wire.h"

namespace twinpath {
namespace {

constexpr std::uint32_t kHandleMagic = 0x4c485054;  // "TPHL"
constexpr std::size_t kStaticBytes = 112;
constexpr std::size_t kConnectionAt = 112;
static_assert(kConnectionAt + 16 <= kHandleBytes);

std::uint64_t fnv(std::span<const std::uint8_t> bytes, std::uint64_t h = 0xcbf29ce484222325u) {
  for (std::uint8_t b : bytes) h = (h ^ b) * 0x100000001b3u;
  return h;
}
std::uint32_t checksum(std::span<const std::uint8_t> bytes) {
  const std::uint64_t h = fnv(bytes);
  return static_cast<std::uint32_t>(h ^ (h >> 32));
}
std::uint64_t connection_check(std::span<const std::uint8_t> bytes, std::uint64_t connection) {
  return fnv(bytes.first(kStaticBytes)) ^ (connection * 0x9e3779b97f4a7c15u);
}

}  // namespace

void encode_handle(const Handle& handle, HandleBytes out) {
  Writer w;
  w.integer(kHandleMagic);
  w.integer(kProtocolVersion);
  std::vector<ibv_gid> all = handle.gids;
  all.resize(std::min(all.size(), kMostHandleGids));
  const std::size_t own = all.size(),
                    others = std::min(handle.others.size(), kMostHandleGids - own);
  all.insert(all.end(), handle.others.begin(),
             handle.others.begin() + static_cast<std::ptrdiff_t>(others));
  w.integer(static_cast<std::uint8_t>(own));
  w.integer(static_cast<std::uint8_t>(others));
  w.raw(handle.nonce.data(), handle.nonce.size());
  const SocketAddress& a = handle.address;
  std::array<std::uint8_t, 16> ip{};
  std::uint32_t scope = 0;
  std::uint16_t port = 0;
  if (a.sa.sa_family == AF_INET6) {
    std::memcpy(ip.data(), &a.in6.sin6_addr, 16);
    scope = a.in6.sin6_scope_id;
    port = ntohs(a.in6.sin6_port);
  } else {
    std::memcpy(ip.data(), &a.in4.sin_addr, 4);
    port = ntohs(a.in4.sin_port);
  }
  w.integer(std::uint16_t{a.sa.sa_family == AF_INET6 ? std::uint16_t{6} : std::uint16_t{4}});
  w.integer(port);
  w.raw(ip.data(), ip.size());
  w.integer(scope);
  w.integer(handle.host_hash);
  w.integer(handle.pid);
  for (std::size_t i = 0; i < kMostHandleGids; ++i) {
    const ibv_gid gid = i < all.size() ? all[i] : ibv_gid{};
    w.raw(gid.raw, sizeof gid.raw);
  }
  w.integer(checksum(w.bytes()));
  static_assert(kStaticBytes <= kConnectionAt);
  std::fill(out.begin(), out.end(), std::uint8_t{0});
  std::copy(w.bytes().begin(), w.bytes().end(), out.begin());
}

bool decode_handle(std::span<const std::uint8_t> bytes, Handle& handle, std::string& why) {
  Reader r(bytes);
  const auto magic = r.integer<std::uint32_t>();
  const auto version = r.integer<std::uint16_t>();
  const std::size_t gids = std::min<std::size_t>(r.integer<std::uint8_t>(), kMostHandleGids);
  const std::size_t others =
      std::min<std::size_t>(r.integer<std::uint8_t>(), kMostHandleGids - gids);
  r.raw(handle.nonce.data(), handle.nonce.size());
  const auto family = r.integer<std::uint16_t>();
  const auto port = r.integer<std::uint16_t>();
  std::array<std::uint8_t, 16> ip{};
  r.raw(ip.data(), ip.size());
  const auto scope = r.integer<std::uint32_t>();
  handle.host_hash = r.integer<std::uint64_t>();
  handle.pid = r.integer<std::uint32_t>();
  handle.gids.clear();
  handle.others.clear();
  for (std::size_t i = 0; i < kMostHandleGids; ++i) {
    ibv_gid gid{};
    r.raw(gid.raw, sizeof gid.raw);
    if (i < gids + others) (i < gids ? handle.gids : handle.others).push_back(gid);
  }
  const auto sum = r.integer<std::uint32_t>();
  if (magic != kHandleMagic) {
    why = "these bytes are not a handle of this plugin (does the peer load another net plugin?)";
    return false;
  }
  if (version != kProtocolVersion) {
    why = "the listener speaks protocol " + std::to_string(version) + ", this side " +
          std::to_string(kProtocolVersion) + ": install the same plugin version on all hosts";
    return false;
  }
  if (!r.ok() || sum != checksum(bytes.first(kStaticBytes - 4)) || (family != 4 && family != 6)) {
    why = "the handle is truncated or damaged (its checksum does not fit)";
    return false;
  }
  handle.address = SocketAddress();
  if (family == 6) {
    handle.address.in6.sin6_family = AF_INET6;
    handle.address.in6.sin6_port = htons(port);
    handle.address.in6.sin6_scope_id = scope;
    std::memcpy(&handle.address.in6.sin6_addr, ip.data(), 16);
  } else {
    handle.address.in4.sin_family = AF_INET;
    handle.address.in4.sin_port = htons(port);
    std::memcpy(&handle.address.in4.sin_addr, ip.data(), 4);
  }
  return true;
}

bool load_connection(std::span<const std::uint8_t, kHandleBytes> bytes, std::uint64_t& connection) {
  Reader r(bytes.subspan(kConnectionAt));
  connection = r.integer<std::uint64_t>();
  const auto check = r.integer<std::uint64_t>();
  if (connection == 0) return check == 0;
  return check == connection_check(bytes, connection);
}

void store_connection(HandleBytes bytes, std::uint64_t connection) {
  Writer w;
  w.integer(connection);
  w.integer(connection == 0 ? 0 : connection_check(bytes, connection));
  std::copy(w.bytes().begin(), w.bytes().end(), bytes.begin() + kConnectionAt);
}

}  // namespace twinpath
