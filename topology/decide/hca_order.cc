#include "topology/decide/hca_order.h"

#include <algorithm>
#include <map>
#include <tuple>

namespace twinpath {
namespace {

Reason refusal(const HcaCandidate& c) {
  if (c.excluded) return Reason::hca_excluded;
  if (c.foreign) return Reason::hca_transport;
  if (!c.active) return Reason::port_down;
  if (c.management || looks_like_management(c.port_gbps, c.pcie_gbs)) return Reason::mgmt_nic;
  return Reason::none;
}

// Gb/s that the HCA can carry.  Not knowing is no reason to pass it over.
double bandwidth(const HcaCandidate& c) {
  constexpr double kUnknown = 1e9;
  const double port = c.port_gbps > 0 ? c.port_gbps : kUnknown;
  return std::min(port, c.pcie_gbs > 0 ? c.pcie_gbs * 8 : kUnknown);
}

}  // namespace

bool looks_like_management(double port_gbps, double pcie_gbs) {
  return port_gbps > 0 && pcie_gbs > 0 && pcie_gbs * 8 < port_gbps / 4;
}

std::vector<HcaChoice> order_hcas(std::span<const HcaCandidate> candidates,
                                  std::optional<int> peer_rail) {
  const auto key = [&](const HcaCandidate& c) {
    const bool off_rail = peer_rail && c.rail && *c.rail != *peer_rail;
    return std::tuple(off_rail, c.distance, -bandwidth(c), c.load, c.bus, c.hca);
  };
  std::vector<const HcaCandidate*> order;
  for (const HcaCandidate& c : candidates) order.push_back(&c);
  std::sort(order.begin(), order.end(), [&](const HcaCandidate* a, const HcaCandidate* b) {
    const bool out_a = refusal(*a) != Reason::none, out_b = refusal(*b) != Reason::none;
    if (out_a != out_b) return out_b;
    if (out_a) return std::tuple(a->bus, a->hca) < std::tuple(b->bus, b->hca);
    return key(*a) < key(*b);
  });
  std::vector<HcaChoice> out;
  for (const HcaCandidate* c : order) out.push_back({c->hca, refusal(*c)});
  return out;
}

std::vector<int> assign_hcas(std::vector<std::vector<HcaCandidate>> rows) {
  std::vector<int> out;
  std::map<int, int> load;
  for (std::vector<HcaCandidate>& row : rows) {
    for (HcaCandidate& c : row) c.load = load[c.hca];
    const std::vector<HcaChoice> order = order_hcas(row);
    const bool usable = !order.empty() && order.front().refused == Reason::none;
    out.push_back(usable ? order.front().hca : -1);
    if (usable) ++load[out.back()];
  }
  return out;
}

}  // namespace twinpath
