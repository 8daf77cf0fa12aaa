// Which network interface carries the control connections: NCCL_SOCKET_IFNAME and
// NCCL_SOCKET_FAMILY with NCCL's meaning, and a sensible order without them.
#include <ifaddrs.h>
#include <net/if.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>
#include <string_view>

#include "plugin/base/log.h"
#include "plugin/base/socket.h"

namespace twinpath {
namespace {

struct NameFilter {
  bool exclude = false;
  bool exact = false;
  std::vector<std::string_view> names;

  explicit NameFilter(std::string_view text) {
    if (text.starts_with('^')) {
      exclude = true;
      text.remove_prefix(1);
    }
    if (text.starts_with('=')) {
      exact = true;
      text.remove_prefix(1);
    }
    while (!text.empty()) {
      const std::size_t comma = text.find(',');
      const std::string_view name = text.substr(0, comma);
      if (!name.empty()) names.push_back(name);
      text = comma == std::string_view::npos ? std::string_view{} : text.substr(comma + 1);
    }
  }
  bool accepts(std::string_view name) const {
    if (names.empty()) return true;
    const bool found = std::any_of(names.begin(), names.end(), [&](std::string_view n) {
      return exact ? name == n : name.starts_with(n);
    });
    return found != exclude;
  }
  // The user named what is wanted, so no interface is second-guessed.
  bool names_wanted() const { return !exclude && !names.empty(); }
};

bool is_link_local(const SocketAddress& a) {
  return a.sa.sa_family == AF_INET6 && IN6_IS_ADDR_LINKLOCAL(&a.in6.sin6_addr);
}

// Lower is better: InfiniBand's IP interfaces first as in NCCL, then the rest; container bridges
// and loopback reach no other host and come last.
int rank(std::string_view name) {
  if (name == "lo") return 3;
  if (name.starts_with("docker")) return 2;
  return name.starts_with("ib") ? 0 : 1;
}

std::string list(const std::vector<Interface>& interfaces) {
  std::string out;
  for (const Interface& i : interfaces) {
    out += (out.empty() ? "" : ", ") + i.name + " (" + i.address.text() + ")";
  }
  return out.empty() ? "none" : out;
}

}  // namespace

std::vector<Interface> choose_interfaces(const std::vector<Interface>& all, const Config& config) {
  const NameFilter filter(config.socket_ifname);
  const int family = config.socket_family == "AF_INET"    ? AF_INET
                     : config.socket_family == "AF_INET6" ? AF_INET6
                                                          : AF_UNSPEC;
  std::vector<Interface> chosen;
  for (const Interface& candidate : all) {
    const int its_family = candidate.address.sa.sa_family;
    if (family != AF_UNSPEC && its_family != family) continue;
    if (!filter.accepts(candidate.name)) continue;
    // One address per interface: the first, except that a global address beats a link-local one,
    // which a peer could not reach without knowing our scope.
    auto same = std::find_if(chosen.begin(), chosen.end(),
                             [&](const Interface& c) { return c.name == candidate.name; });
    if (same == chosen.end()) {
      chosen.push_back(candidate);
    } else if (is_link_local(same->address) && !is_link_local(candidate.address)) {
      *same = candidate;
    }
  }
  if (filter.names_wanted()) return chosen;
  std::stable_sort(chosen.begin(), chosen.end(), [](const Interface& a, const Interface& b) {
    return rank(a.name) < rank(b.name);
  });
  // Bridges and loopback are for want of anything better only: a rank that announced 127.0.0.1
  // would not be reachable from other hosts.
  if (!chosen.empty()) {
    const int best = std::max(rank(chosen.front().name), 1);
    std::erase_if(chosen, [&](const Interface& i) { return rank(i.name) > best; });
  }
  return chosen;
}

namespace {

// 0 or an errno.
int read_interfaces(std::vector<Interface>& out) {
  ifaddrs* first = nullptr;
  if (getifaddrs(&first) != 0) return errno;
  const std::unique_ptr<ifaddrs, void (*)(ifaddrs*)> owner(first, &freeifaddrs);
  for (const ifaddrs* i = first; i != nullptr; i = i->ifa_next) {
    if (i->ifa_addr == nullptr || (i->ifa_flags & IFF_UP) == 0) continue;
    Interface interface;
    interface.name = i->ifa_name;
    if (i->ifa_addr->sa_family == AF_INET) {
      interface.address.in4 = *reinterpret_cast<const sockaddr_in*>(i->ifa_addr);
      interface.address.in4.sin_port = 0;
    } else if (i->ifa_addr->sa_family == AF_INET6) {
      interface.address.in6 = *reinterpret_cast<const sockaddr_in6*>(i->ifa_addr);
      interface.address.in6.sin6_port = 0;
    } else {
      continue;
    }
    out.push_back(std::move(interface));
  }
  return 0;
}

bool same_host(const SocketAddress& a, const SocketAddress& b) {
  if (a.sa.sa_family != b.sa.sa_family) return false;
  if (a.sa.sa_family == AF_INET) return a.in4.sin_addr.s_addr == b.in4.sin_addr.s_addr;
  return std::memcmp(&a.in6.sin6_addr, &b.in6.sin6_addr, sizeof(in6_addr)) == 0;
}

}  // namespace

std::vector<Interface> system_interfaces() {
  std::vector<Interface> all;
  (void)read_interfaces(all);
  return all;
}

std::string interface_text(const SocketAddress& local) {
  for (const Interface& i : system_interfaces())
    if (same_host(i.address, local)) return i.name + " (" + local.text() + ")";
  return local.text();
}

Result<Interface> control_interface(const Config& config) {
  std::vector<Interface> all;
  if (const int error = read_interfaces(all); error != 0) {
    TP_WARN(
        "the network interfaces cannot be read: %s%s", std::strerror(error),
        error == EMFILE || error == ENFILE ? "; raise the limit of open files (ulimit -n)" : "");
    return Status::system;
  }
  const std::vector<Interface> chosen = choose_interfaces(all, config);
  if (!chosen.empty()) return chosen.front();
  TP_WARN(
      "no network interface for control connections: NCCL_SOCKET_IFNAME='%s' NCCL_SOCKET_FAMILY="
      "'%s' fits none of those that are up: %s; name one of them or unset the variables",
      config.socket_ifname.c_str(), config.socket_family.c_str(), list(all).c_str());
  return Status::system;
}

}  // namespace twinpath
