// Which GID a RoCE port uses: the entry that peers can reach, by the order that interfaces are
// chosen by (plugin/base/reach.h), and NCCL's wishes within that.
#include <arpa/inet.h>

#include <algorithm>
#include <cstring>
#include <tuple>

#include "plugin/base/ip_range.h"
#include "plugin/base/reach.h"
#include "plugin/fabric/fabric.h"
#include "plugin/fabric/gid.h"

namespace twinpath {
namespace {

// What is asked for of a RoCE port's address.
struct Wishes {
  int family = AF_INET;
  int version = 2;
  std::optional<IpRange> range;
};

// What an entry is worth; greater is better.
auto worth_of(const GidEntry& g, const Wishes& wishes) {
  const int family = family_of(g.gid);
  const bool in_range = !wishes.range || wishes.range->contains(family, address_in(g.gid));
  const Reach address = reach_of(family, address_in(g.gid));
  // RoCE v1 is Ethernet alone, which no router passes on, whatever the address.
  const Reach reach =
      g.roce_version == 1 && wishes.version != 1 ? std::min(address, Reach::link) : address;
  return std::tuple(in_range,
                    // The kernel refuses to tell the version of another network namespace's
                    // entries, which as a rule cannot be used.
                    g.roce_version != 0,
                    // Who asks for version 1 has a network for it.
                    wishes.version == 1 && g.roce_version == 1, reach, family == wishes.family,
                    g.roce_version == wishes.version, address);
}

// "3 is 10.1.2.3 (RoCE v2), ..."
std::string entry_list(const std::vector<GidEntry>& gids) {
  constexpr std::size_t kMost = 16;
  std::string out;
  std::size_t shown = 0;
  for (const GidEntry& g : gids) {
    if (is_zero(g.gid)) continue;
    if (shown++ == kMost) return out + ", ...";
    char text[INET6_ADDRSTRLEN] = {};
    (void)inet_ntop(family_of(g.gid), address_in(g.gid), text, sizeof text);
    out += (out.empty() ? "" : ", ") + std::to_string(g.index) + " is " + text;
    out += g.roce_version == 0 ? "" : " (RoCE v" + std::to_string(g.roce_version) + ")";
  }
  return out;
}

// Which wish the chosen entry does not fulfil; empty: it fulfils all.
std::string unfulfilled(const GidEntry& g, const Wishes& wishes, const Config& config) {
  const int family = family_of(g.gid);
  if (!config.ib_addr_range.empty() && !wishes.range)
    return "NCCL_IB_ADDR_RANGE=" + config.ib_addr_range +
           " is no range of NCCL_IB_ADDR_FAMILY=" + config.ib_addr_family + " and does not count";
  if (wishes.range && !wishes.range->contains(family, address_in(g.gid)))
    return "no address is in NCCL_IB_ADDR_RANGE=" + config.ib_addr_range;
  // IPv4 is what NCCL looks for unless told otherwise, and no wish of the user's.
  if (wishes.family == AF_INET6 && family != AF_INET6)
    return "no better address is of NCCL_IB_ADDR_FAMILY=" + config.ib_addr_family;
  if (g.roce_version != 0 && g.roce_version != wishes.version)
    return "no better address has NCCL_IB_ROCE_VERSION_NUM=" + std::to_string(wishes.version);
  return {};
}

// "0, 1, 3-7"
std::string index_list(const std::vector<GidEntry>& gids) {
  std::string out;
  for (std::size_t i = 0; i < gids.size();) {
    if (is_zero(gids[i].gid)) {
      ++i;
      continue;
    }
    std::size_t last = i;
    while (last + 1 < gids.size() && gids[last + 1].index == gids[last].index + 1 &&
           !is_zero(gids[last + 1].gid)) {
      ++last;
    }
    out += (out.empty() ? "" : ", ") + std::to_string(gids[i].index);
    if (last > i) out += "-" + std::to_string(gids[last].index);
    i = last + 1;
  }
  return out.empty() ? "none" : out;
}

}  // namespace

Result<GidEntry> choose_gid(const Port& port, const Config& config, std::string& why) {
  const auto at_index = [&](int index) -> const GidEntry* {
    for (const GidEntry& g : port.gids) {
      if (g.index == index && !is_zero(g.gid)) return &g;
    }
    return nullptr;
  };
  const std::string where = port.device + ":" + std::to_string(port.number);

  if (!port.roce) {
    // An InfiniBand port's first GID is its own, and a routable one goes before it;
    // NCCL_IB_GID_INDEX is for RoCE, as in NCCL.
    const GidEntry* routable = at_index(config.ib_flid_gid_index);
    if (routable != nullptr && flid_of(routable->gid) != 0) return *routable;
    const GidEntry* first = at_index(0);
    return first != nullptr ? *first : GidEntry{};
  }
  if (config.ib_gid_index >= 0) {
    if (const GidEntry* wanted = at_index(config.ib_gid_index)) return *wanted;
    why = where + ": NCCL_IB_GID_INDEX=" + std::to_string(config.ib_gid_index) +
          " holds no GID; indices in use: " + index_list(port.gids) +
          "; unset the variable to choose automatically";
    return Status::bad_argument;
  }

  Wishes wishes;
  wishes.family = config.ib_addr_family == "AF_INET6" ? AF_INET6 : AF_INET;
  wishes.version = config.ib_roce_version;
  wishes.range = parse_ip_range(config.ib_addr_range);
  // A range of the other family cannot be meant for this one; NCCL drops it too.
  if (wishes.range && wishes.range->family != wishes.family) wishes.range.reset();

  const GidEntry* best = nullptr;
  for (const GidEntry& g : port.gids) {
    if (is_zero(g.gid)) continue;
    // The lowest index among equals.
    if (best == nullptr || worth_of(*best, wishes) < worth_of(g, wishes)) best = &g;
  }
  if (best == nullptr) {
    why = where + ": the GID table is empty; give the network interface of this port an address";
    return Status::bad_argument;
  }
  if (const std::string wish = unfulfilled(*best, wishes, config); !wish.empty())
    why = where + ": " + wish + "; GID index " + std::to_string(best->index) +
          " of these is taken: " + entry_list(port.gids);
  return *best;
}

}  // namespace twinpath
