#include "tools/counters/summary.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <tuple>

#include "plugin/base/clock.h"
#include "tools/common/units.h"

namespace twinpath::tools {

using counters::kWaits;
using counters::Role;
using counters::State;
using counters::Wait;

namespace {

// A caller that waits asks much more often.
constexpr std::int64_t kFresh = kSecond / 2;
using Key = std::tuple<std::size_t, Role, std::string, std::uint32_t, std::string, std::string,
                       std::string, std::string, std::string, std::optional<std::uint32_t>>;

const ProcessSample* earlier(const std::vector<ProcessSample>& before, const ProcessSample& p) {
  for (const ProcessSample& b : before)
    if (b.pid == p.pid && b.started_at == p.started_at) return &b;
  return nullptr;
}

const ConnectionSample* earlier(const ProcessSample* before, std::uint64_t key) {
  if (before == nullptr) return nullptr;
  for (const ConnectionSample& c : before->connections)
    if (c.key == key) return &c;
  return nullptr;
}

std::string peer_text(const ConnectionSample& c) {
  return c.peer_host + " pid " + std::to_string(c.peer_pid) +
         (c.peer_gpu.empty() ? "" : " " + c.peer_gpu);
}

void add_rails(PeerRow& row, const ConnectionSample& c, const ConnectionSample* old) {
  for (std::size_t r = 0; r < c.rails.size(); ++r) {
    auto known = std::find_if(row.rails.begin(), row.rails.end(),
                              [&](const RailSample& x) { return x.port == c.rails[r].port; });
    if (known == row.rails.end()) {
      row.rails.emplace_back().port = c.rails[r].port;
      known = row.rails.end() - 1;
      known->standby = true;
    }
    known->standby = known->standby && c.rails[r].standby;
    const RailSample* was = nullptr;
    for (std::size_t o = 0; old != nullptr && o < old->rails.size(); ++o)
      if (old->rails[o].port == c.rails[r].port) was = &old->rails[o];
    known->bytes += c.rails[r].bytes - (was != nullptr ? was->bytes : 0);
    if (c.state == State::open) known->permille = c.rails[r].permille;
    known->timed_ns += c.rails[r].timed_ns - (was != nullptr ? was->timed_ns : 0);
    for (std::size_t b = 0; b < counters::kBuckets; ++b)
      known->buckets[b] += c.rails[r].buckets[b] - (was != nullptr ? was->buckets[b] : 0);
  }
}

void add(PeerRow& row, const ConnectionSample& c, const ConnectionSample* old, double seconds,
         std::int64_t now) {
  if (c.state == State::open) ++row.connections;
  if (c.state == State::lost) ++row.lost;
  row.bytes += c.bytes();
  row.messages += c.messages;
  row.staged_bytes += c.staged_bytes;
  row.failovers += c.failovers;
  row.stopped_s += static_cast<double>(c.stopped_ns) * 1e-9;
  row.longest_stop_s = std::max(row.longest_stop_s, static_cast<double>(c.longest_stop_ns) * 1e-9);
  for (const std::uint64_t n : c.errors) row.errors += n;
  row.bytes_per_s += static_cast<double>(c.bytes() - (old != nullptr ? old->bytes() : 0)) / seconds;
  row.messages_per_s +=
      static_cast<double>(c.messages - (old != nullptr ? old->messages : 0)) / seconds;
  for (std::size_t w = 0; w < kWaits; ++w) {
    row.waited_s[w] += static_cast<double>(c.waited_ns[w]) * 1e-9;
    row.share[w] += static_cast<double>(c.waited_ns[w] - (old != nullptr ? old->waited_ns[w] : 0)) *
                    1e-9 / seconds;
  }
  if (c.state == State::open && c.looked_at != 0 && now - c.looked_at < kFresh) {
    row.in_flight += c.in_flight;
    row.stalled_s = std::max(row.stalled_s, static_cast<double>(c.looked_at - c.since) * 1e-9);
  }
  add_rails(row, c, old);
}

std::uint64_t operations(const GinSample& g) {
  return std::accumulate(g.operations.begin(), g.operations.end(), std::uint64_t{0});
}

void add_gin(Summary& s, std::size_t process, const ProcessSample* old) {
  const ProcessSample& p = s.processes[process];
  for (std::size_t i = 0; i < p.gin.size(); ++i) {
    const GinSample& now = p.gin[i];
    // Places are kept.
    const GinSample before = old != nullptr && i < old->gin.size() ? old->gin[i] : GinSample();
    const std::int64_t from = old != nullptr && i < old->gin.size() ? old->taken_at : now.since;
    const double seconds = std::max(1e-3, static_cast<double>(p.taken_at - from) * 1e-9);
    GinRow& row = s.gin.emplace_back();
    row.process = process;
    row.counts = now;
    row.operations_per_s = static_cast<double>(operations(now) - operations(before)) / seconds;
    row.doorbells_per_s = static_cast<double>(now.doorbells - before.doorbells) / seconds;
    row.busy = std::min(1.0, static_cast<double>(now.busy_ns - before.busy_ns) * 1e-9 / seconds);
  }
}

}  // namespace

double PeerRow::waiting() const {
  double sum = 0;
  for (const double s : share) sum += s;
  return sum;
}

Wait PeerRow::main_wait() const {
  return static_cast<Wait>(std::max_element(share.begin(), share.end()) - share.begin());
}

std::string name_of(const ProcessSample& p) {
  std::string gpu;
  for (const ConnectionSample& c : p.connections)
    if (!c.gpu.empty()) gpu = " " + c.gpu;
  return p.host + " pid " + std::to_string(p.pid) + gpu;
}

std::uint64_t job_of(const ProcessSample& p) {
  if (const std::uint64_t id = largest(p.communicators); id != 0) return id;
  for (const ConnectionSample& c : p.connections)
    if (c.communicator != 0) return c.communicator;
  return 0;
}

std::uint64_t timed(const RailSample& rail) {
  std::uint64_t n = 0;
  for (const std::uint64_t b : rail.buckets) n += b;
  return n;
}

std::uint64_t quantile(const std::array<std::uint64_t, counters::kBuckets>& buckets, double part) {
  std::uint64_t all = 0;
  for (const std::uint64_t n : buckets) all += n;
  if (all == 0) return 0;
  std::uint64_t below = 0;
  for (std::size_t b = 0; b < buckets.size(); ++b) {
    below += buckets[b];
    if (static_cast<double>(below) >= part * static_cast<double>(all))
      return std::uint64_t{1024} << b;
  }
  return std::uint64_t{1024} << (buckets.size() - 1);
}

Summary summarize(const std::vector<ProcessSample>& before, std::vector<ProcessSample> after,
                  std::vector<NicChange> nics) {
  Summary s;
  s.nics = std::move(nics);
  s.processes = std::move(after);
  std::map<Key, PeerRow> rows;
  for (std::size_t i = 0; i < s.processes.size(); ++i) {
    const ProcessSample& p = s.processes[i];
    const ProcessSample* old = earlier(before, p);
    const std::int64_t from = old != nullptr ? old->taken_at : p.started_at;
    const double seconds = std::max(1e-3, static_cast<double>(p.taken_at - from) * 1e-9);
    s.seconds = std::max(s.seconds, seconds);
    add_gin(s, i, old);
    for (const ConnectionSample& c : p.connections) {
      auto [at, fresh] = rows.try_emplace({i, c.role, c.peer_host, c.peer_pid, c.peer_gpu, c.device,
                                           c.gpu, c.path, c.member.name, c.member.rank});
      PeerRow& row = at->second;
      if (fresh) row.member = c.member;
      if (row.member.ranks != c.member.ranks) row.member.ranks = 0;
      row.process = i;
      row.role = c.role;
      row.peer = peer_text(c);
      row.peer_host = c.peer_host;
      row.peer_pid = c.peer_pid;
      row.peer_gpu = c.peer_gpu;
      row.gpu = c.gpu;
      row.device = c.device;
      row.path = c.path;
      row.reason = c.reason;
      add(row, c, earlier(old, c.key), seconds, p.taken_at);
    }
  }
  for (auto& [key, row] : rows) {
    for (double& share : row.share) share /= std::max(1, row.connections + row.lost);
    // What was waited for since before the stretch is counted at the next look of who waits, which
    // comes late on a busy host.
    if (const double all = row.waiting(); all > 1)
      for (double& share : row.share) share /= all;
    s.rows.push_back(std::move(row));
  }
  std::stable_sort(s.rows.begin(), s.rows.end(),
                   [](const PeerRow& a, const PeerRow& b) { return a.waiting() > b.waiting(); });
  find_culprit(s);
  return s;
}

}  // namespace twinpath::tools
