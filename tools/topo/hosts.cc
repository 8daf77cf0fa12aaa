#include "tools/topo/hosts.h"

#include <algorithm>

#include "tools/topo/rail_tries.h"

namespace twinpath::tools::topo {
namespace {

// What waits for whom: a host may still be asking its GPU, or trying pairs that do not answer.
double control_timeout(const Options& o) { return 60 + 4 * o.patience_s; }

// The ranks that stand for a host: the first of each; all where there is only one host, so that it
// can be tried there.
std::vector<int> ends_of(const Hosts& hosts, int size) {
  std::vector<int> out;
  for (int r = 0; r < size; ++r)
    if (hosts.one() || hosts.local_rank(r) == 0) out.push_back(r);
  return out;
}

// The plugin numbers its devices as the facts name them; a card says what can be tried.
int devices_of(NetPlugin* plugin) {
  int count = 0;
  if (plugin == nullptr || plugin->devices(count) != 0) return 0;
  return std::min(count, kMostRails);
}

}  // namespace

std::optional<HostsReport> check_as_rank(const Options& o, const Place& place, const Report& own) {
  HostCard mine = make_card(own, check(own));
  std::unique_ptr<NetPlugin> plugin;
  // Before others are waited for: that this host has none is a finding, and all are told.
  try {
    plugin = open_for_tries(own.job->plugin, o.patience_s);
  } catch (const Failure& failure) {
    mine.found.push_back(
        {"", "plugin", {}, Level::fail, failure.what(), "install it on all hosts"});
  }
  const auto devices = static_cast<std::size_t>(devices_of(plugin.get()));
  if (mine.rails.size() > devices) mine.rails.resize(devices);

  Group group(place.rank, place.size, rendezvous(place, o.rendezvous, control_timeout(o)),
              control_timeout(o));
  const Hosts hosts(group);
  const std::vector<int> ends = ends_of(hosts, place.size);
  const std::vector<std::string> texts =
      gather_texts(group, card_json(mine).dump(-1, ' ', false, Json::error_handler_t::replace));
  HostsReport report;
  std::vector<int> rails;
  for (const int rank : ends) {
    report.cards.push_back(parse_card(texts.at(static_cast<std::size_t>(rank))));
    rails.push_back(static_cast<int>(report.cards.back().rails.size()));
  }
  tell_apart(report.cards);
  const auto card = [&report](int host) -> const HostCard& {
    return report.cards.at(static_cast<std::size_t>(host));
  };
  const auto use = [&card](int host, int rail, int peer, int peer_rail) {
    return use_of(card(host), rail, card(peer), peer_rail);
  };
  report.tries = try_rails(plugin.get(), group, ends, rails, use, o.patience_s);
  if (place.rank != 0) return std::nullopt;
  report.checks = check_hosts(report.cards, report.tries);
  return report;
}

}  // namespace twinpath::tools::topo
