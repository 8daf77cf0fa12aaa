// What several rails of one connection get of its messages.
#include "tools/common/units.h"
#include "tools/counters/summary.h"

namespace twinpath::tools {
namespace {

std::uint32_t speed_of(const ProcessSample& p, const std::string& port) {
  for (const PortSample& x : p.ports)
    if (x.name == port) return x.speed_mbps;
  return 0;
}

}  // namespace

std::vector<double> shares(const PeerRow& row) {
  double sum = 0;
  for (const RailSample& r : row.rails) sum += r.permille;
  std::vector<double> out;
  if (sum == 0 || row.rails.size() < 2) return out;
  for (const RailSample& r : row.rails) out.push_back(r.permille / sum);
  return out;
}

std::vector<double> promised(const PeerRow& row, const ProcessSample& p) {
  std::vector<double> out;
  double sum = 0;
  for (const RailSample& r : row.rails) {
    out.push_back(r.standby ? 0 : speed_of(p, r.port));
    sum += out.back();
  }
  if (sum == 0) return {};
  for (double& part : out) part /= sum;
  return out;
}

std::optional<SlowRail> slow_rail(const PeerRow& row, const ProcessSample& p) {
  const std::vector<double> got = shares(row), fair = promised(row, p);
  for (std::size_t i = 0; i < got.size() && i < fair.size(); ++i)
    if (!row.rails[i].standby && got[i] < fair[i] / 2)
      return SlowRail{row.rails[i].port, "gets " + fixed(100 * got[i], 0) +
                                             "% of each message, by its port's speed " +
                                             fixed(100 * fair[i], 0) + "%"};
  return std::nullopt;
}

std::vector<std::string> slow_rails(const Summary& s) {
  std::vector<std::string> out;
  for (const PeerRow& row : s.rows) {
    const ProcessSample& p = s.processes[row.process];
    if (const std::optional<SlowRail> slow = slow_rail(row, p))
      out.push_back("rail " + slow->port + " is slow: from " + name_of(p) + " to " + row.peer +
                    " it " + slow->gets);
  }
  return out;
}

}  // namespace twinpath::tools
