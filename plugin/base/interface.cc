// Which network interface carries the control connections: NCCL_SOCKET_IFNAME,
// NCCL_SOCKET_FAMILY and NCCL_COMM_ID with NCCL's meaning (2.19 to 2.32, socket.cc), and within
// what they leave open the address that reaches furthest.
#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <cerrno>
#include <cstring>
#include <memory>
#include <optional>
#include <string_view>

#include "plugin/base/ip_range.h"
#include "plugin/base/links.h"
#include "plugin/base/log.h"
#include "plugin/base/reach.h"
#include "plugin/base/refused.h"
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

const std::uint8_t* bytes_of(const SocketAddress& a) {
  return a.sa.sa_family == AF_INET ? reinterpret_cast<const std::uint8_t*>(&a.in4.sin_addr)
                                   : reinterpret_cast<const std::uint8_t*>(&a.in6.sin6_addr);
}

Reach address_reach(const SocketAddress& a) { return reach_of(a.sa.sa_family, bytes_of(a)); }

bool is_link_local_ipv6(const SocketAddress& a) {
  return a.sa.sa_family == AF_INET6 && address_reach(a) == Reach::link;
}

// Docker Compose and "docker network create" name a bridge by twelve hexadecimal digits.
bool is_compose_bridge(std::string_view name) {
  return name.size() == 15 && name.starts_with("br-") &&
         name.substr(3).find_first_not_of("0123456789abcdef") == std::string_view::npos;
}

// Networks that container engines, hypervisors and Kubernetes make on each host for itself, as a
// rule with the same addresses everywhere.
bool is_host_bridge(std::string_view name) {
  constexpr std::string_view kPrefixes[] = {
      "docker", "podman",  "cni",     "virbr",   "lxcbr", "lxdbr",        "incusbr",  "nerdctl",
      "cbr",    "vboxnet", "flannel", "cilium_", "kube-", "nodelocaldns", "mpqemubr", "vmnet"};
  return is_compose_bridge(name) ||
         std::any_of(std::begin(kPrefixes), std::end(kPrefixes),
                     [&](std::string_view prefix) { return name.starts_with(prefix); });
}

Reach reach_on(const Interface& i) {
  const Reach address = address_reach(i.address);
  if (address != Reach::network) return address;
  if (is_host_bridge(i.name)) return Reach::host_bridge;
  // An address of lo may be routed to (a host with several uplinks), or be a service's that every
  // host has.
  return i.aside || i.name == "lo" ? Reach::aside : Reach::network;
}

// The numeric address of NCCL_COMM_ID, "10.0.0.1:1234" or "[fd00::1%eth0]:1234"; a host's name is
// not looked up.
std::optional<SocketAddress> address_of_comm_id(std::string_view text) {
  SocketAddress a;
  if (text.starts_with('[')) {
    const std::string host(text.substr(1, text.find(']') - 1));
    const std::size_t mark = host.find('%');
    a.in6.sin6_family = AF_INET6;
    if (mark != std::string::npos) a.in6.sin6_scope_id = if_nametoindex(host.c_str() + mark + 1);
    if (inet_pton(AF_INET6, host.substr(0, mark).c_str(), &a.in6.sin6_addr) == 1) return a;
  } else {
    const std::string host(text.substr(0, text.find(':')));
    a.in4.sin_family = AF_INET;
    if (inet_pton(AF_INET, host.c_str(), &a.in4.sin_addr) == 1) return a;
  }
  return std::nullopt;
}

bool on_network_of(const Interface& i, const std::optional<SocketAddress>& peer) {
  if (!peer || i.prefix <= 0 || peer->sa.sa_family != i.address.sa.sa_family) return false;
  if (i.address.sa.sa_family == AF_INET6 && i.address.in6.sin6_scope_id != peer->in6.sin6_scope_id)
    return false;
  IpRange network{i.address.sa.sa_family, {}, i.prefix};
  std::copy_n(bytes_of(i.address), network.family == AF_INET ? 4 : 16, network.address.begin());
  return network.contains(peer->sa.sa_family, bytes_of(*peer));
}

// What an interface is worth where no name was asked for; greater is better.
struct Worth {
  Reach reach;
  int by_name_or_network;
  friend auto operator<=>(const Worth&, const Worth&) = default;
};

Worth worth_of(const Interface& i, const std::optional<SocketAddress>& comm_id) {
  Worth w{reach_on(i), 0};
  const bool with_rank_0 = on_network_of(i, comm_id);
  // A peer is known to be there, whatever the interface is called.
  if (with_rank_0 && w.reach > Reach::link) w.reach = Reach::network;
  w.by_name_or_network = i.name.starts_with("ib") ? 2 : with_rank_0 ? 1 : 0;
  return w;
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
  // NCCL asks NCCL_COMM_ID only where NCCL_SOCKET_IFNAME is silent.
  const auto comm_id =
      config.socket_ifname.empty() ? address_of_comm_id(config.comm_id) : std::nullopt;
  // By names that are wanted, what the names stand for is not second-guessed, and addresses are.
  const auto worth = [&](const Interface& i) {
    return filter.names_wanted() ? Worth{address_reach(i.address), 0} : worth_of(i, comm_id);
  };
  std::vector<Interface> chosen;
  for (const Interface& candidate : all) {
    const int its_family = candidate.address.sa.sa_family;
    if (family != AF_UNSPEC && its_family != family) continue;
    if (!filter.accepts(candidate.name) || address_reach(candidate.address) == Reach::nowhere)
      continue;
    // One address per interface: the best, the first among equals.
    auto same = std::find_if(chosen.begin(), chosen.end(),
                             [&](const Interface& c) { return c.name == candidate.name; });
    if (same == chosen.end()) {
      chosen.push_back(candidate);
    } else if (worth(*same) < worth(candidate)) {
      *same = candidate;
    }
  }
  std::stable_sort(chosen.begin(), chosen.end(),
                   [&](const Interface& a, const Interface& b) { return worth(a) > worth(b); });
  if (filter.names_wanted() || chosen.empty()) return chosen;
  // What reaches less far is for want of anything better only: a rank that announced 127.0.0.1
  // would not be found by other hosts.
  const Reach best = worth(chosen.front()).reach;
  std::erase_if(chosen, [&](const Interface& i) { return worth(i).reach < best; });
  return chosen;
}

namespace {

int prefix_of(const sockaddr* mask) {
  if (mask == nullptr) return -1;
  SocketAddress a;
  int bytes = 4;
  if (mask->sa_family == AF_INET) {
    a.in4 = *reinterpret_cast<const sockaddr_in*>(mask);
  } else {
    a.in6 = *reinterpret_cast<const sockaddr_in6*>(mask);
    bytes = 16;
  }
  int bits = 0;
  for (int i = 0; i < bytes; ++i) bits += std::popcount(bytes_of(a)[i]);
  return bits;
}

// 0 or an errno.
int read_interfaces(std::vector<Interface>& out) {
  ifaddrs* first = nullptr;
  if (getifaddrs(&first) != 0) return errno;
  const std::unique_ptr<ifaddrs, void (*)(ifaddrs*)> owner(first, &freeifaddrs);
  std::vector<Link> links;
  for (const ifaddrs* i = first; i != nullptr; i = i->ifa_next) {
    // Up, and with a carrier, as NCCL wants them: without one nobody is reached.
    constexpr unsigned kUsable = IFF_UP | IFF_RUNNING;
    if (i->ifa_addr == nullptr || (i->ifa_flags & kUsable) != kUsable) continue;
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
    interface.prefix = prefix_of(i->ifa_netmask);
    if (links.empty()) links = system_links();
    interface.aside = (i->ifa_flags & IFF_POINTOPOINT) != 0 || is_aside(links, interface.name);
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

namespace {

void warn_of_link_local(const Interface& chosen) {
  // Once in a process, which listens hundreds of times; relaxed, for nothing hangs on it.
  static std::atomic<bool> told{false};
  if (!is_link_local_ipv6(chosen.address) || told.exchange(true, std::memory_order_relaxed)) return;
  TP_WARN(
      "the control connections go over %s (%s), for no interface has another address: peers reach "
      "it only over that very link; give an interface an address that all hosts can reach, or name "
      "one in NCCL_SOCKET_IFNAME",
      chosen.name.c_str(), chosen.address.text().c_str());
}

}  // namespace

Result<Interface> control_interface(const Config& config) {
  std::vector<Interface> all;
  if (const int error = read_interfaces(all); error != 0) {
    TP_WARN("the network interfaces cannot be read: %s",
            why_no_network(error, "see the kernel log (dmesg)").c_str());
    return Status::system;
  }
  const std::vector<Interface> chosen = choose_interfaces(all, config);
  if (!chosen.empty()) {
    warn_of_link_local(chosen.front());
    return chosen.front();
  }
  TP_WARN(
      "no network interface for control connections: NCCL_SOCKET_IFNAME='%s' NCCL_SOCKET_FAMILY="
      "'%s' fits none of those that are up: %s; name one of them or unset the variables",
      config.socket_ifname.c_str(), config.socket_family.c_str(), list(all).c_str());
  return Status::system;
}

void use_own_scope(SocketAddress& to, const Config& config) {
  if (!is_link_local_ipv6(to)) return;
  const std::vector<Interface> chosen = choose_interfaces(system_interfaces(), config);
  if (!chosen.empty() && is_link_local_ipv6(chosen.front().address))
    to.in6.sin6_scope_id = chosen.front().address.in6.sin6_scope_id;
}

}  // namespace twinpath
