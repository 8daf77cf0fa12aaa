// Which GID a RoCE port uses: NCCL's rules, as an order of preference over the whole table
// instead of a walk that depends on what stands first.
#include <arpa/inet.h>

#include <algorithm>
#include <cstring>

#include "plugin/base/ip_range.h"
#include "plugin/fabric/fabric.h"
#include "plugin/fabric/gid.h"

namespace twinpath {
namespace {

// fe80::/64 without a subnet: reaches no other network, and every port has one.
bool is_link_local(const ibv_gid& g) {
  constexpr std::uint8_t kPrefix[8] = {0xfe, 0x80, 0, 0, 0, 0, 0, 0};
  return std::memcmp(g.raw, kPrefix, sizeof kPrefix) == 0;
}

bool in_range(const ibv_gid& g, const std::optional<IpRange>& range) {
  return !range || range->contains(family_of(g), address_in(g));
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
    // An InfiniBand port's first GID is its own; NCCL_IB_GID_INDEX is for RoCE, as in NCCL.
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

  const int family = config.ib_addr_family == "AF_INET6" ? AF_INET6 : AF_INET;
  std::optional<IpRange> range = parse_ip_range(config.ib_addr_range);
  // A range of the other family cannot be meant for this one; NCCL drops it too.
  if (range && range->family != family) range.reset();

  // The greatest rank wins, the lowest index among equals.  An unknown version (the kernel
  // refuses to say for entries of another network namespace) comes after any known one, because
  // such an entry usually cannot be used at all.
  const GidEntry* best = nullptr;
  int best_rank = 0;
  for (const GidEntry& g : port.gids) {
    if (is_zero(g.gid) || is_link_local(g.gid)) continue;
    if (family_of(g.gid) != family || !in_range(g.gid, range)) continue;
    const int rank = g.roce_version == config.ib_roce_version ? 3 : g.roce_version != 0 ? 2 : 1;
    if (rank > best_rank) {
      best = &g;
      best_rank = rank;
    }
  }
  if (best != nullptr) return *best;

  // Nothing fits: index 0 as in NCCL, else whatever there is.
  if (const GidEntry* first = at_index(0)) return *first;
  for (const GidEntry& g : port.gids) {
    if (!is_zero(g.gid)) return g;
  }
  why = where + ": the GID table is empty; give the network interface of this port an address";
  return Status::bad_argument;
}

}  // namespace twinpath
