#include "tools/exporter/prometheus.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <map>

#include "plugin/base/clock.h"
#include "tools/counters/summary.h"

namespace twinpath::tools {
namespace {

// Label values may hold anything; these three must be written otherwise.
std::string escaped(const std::string& text) {
  std::string out;
  for (const char c : text) {
    if (c == '\\' || c == '"') out += '\\';
    out += c == '\n' ? ' ' : c;
  }
  return out;
}

using Labels = std::vector<std::pair<const char*, std::string>>;

std::string text_of(const Labels& labels) {
  std::string out;
  for (const auto& [name, value] : labels)
    out += (out.empty() ? "{" : ",") + std::string(name) + "=\"" + escaped(value) + "\"";
  return out.empty() ? out : out + "}";
}

std::string number(double value) {
  std::array<char, 32> text;
  const auto [end, error] = std::to_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc{} ? std::string(text.data(), end) : "NaN";
}

}  // namespace

// All series of a name stand together, below one line that says what they are.
class PrometheusText::Families {
 public:
  void add(const std::string& name, const char* type, const char* help, const Labels& labels,
           double value) {
    add(name, type, help, name, labels, number(value));
  }
  void add(const std::string& name, const char* type, const char* help, const std::string& series,
           const Labels& labels, const std::string& value) {
    auto [family, fresh] = families_.try_emplace(name);
    if (fresh) {
      order_.push_back(name);
      family->second = "# HELP " + name + " " + help + "\n# TYPE " + name + " " + type + "\n";
    }
    family->second += series + text_of(labels) + " " + value + "\n";
  }
  std::string text() const {
    std::string out;
    for (const std::string& name : order_) out += families_.at(name);
    return out;
  }

 private:
  std::vector<std::string> order_;
  std::map<std::string, std::string> families_;
};

namespace {

using Families = PrometheusText::Families;

Labels with(Labels labels, const Labels& more) {
  labels.insert(labels.end(), more.begin(), more.end());
  return labels;
}

void add_peer(Families& out, const Labels& process, const ProcessSample& p, const PeerRow& row,
              bool other) {
  const char* dir = row.role == counters::Role::sender ? "send" : "receive";
  Labels peer = with(process, {{"peer", other ? "other" : row.peer},
                               {"gpu", row.gpu},
                               {"device", row.device},
                               {"path", row.path},
                               {"dir", dir}});
  if (row.member.rank) peer.emplace_back("rank", std::to_string(*row.member.rank));
  if (!row.member.name.empty()) peer.emplace_back("comm_name", row.member.name);
  out.add("twinpath_messages_total", "counter", "Messages that were carried.", peer,
          static_cast<double>(row.messages));
  for (std::size_t w = 0; w < counters::kWaits; ++w)
    if (row.waited_s[w] > 0)
      out.add("twinpath_wait_seconds_total", "counter",
              "Time in which a connection's caller asked in vain, by what it waited for; added up "
              "over connections.",
              with(peer, {{"for", counters::kWaitNames[w]}}), row.waited_s[w]);
  out.add("twinpath_connections", "gauge", "Open connections.", peer, row.connections);
  out.add("twinpath_inflight", "gauge", "Requests that wait now.", peer,
          static_cast<double>(row.in_flight));
  out.add("twinpath_stalled_seconds", "gauge", "For how long none of them has moved.", peer,
          row.stalled_s);
  out.add("twinpath_errors_total", "counter", "Transfers that failed.", peer,
          static_cast<double>(row.errors));
  out.add("twinpath_connections_lost", "gauge", "Connections that broke and are not closed yet.",
          peer, row.lost);
  if (row.staged_bytes > 0)
    out.add("twinpath_staged_bytes_total", "counter",
            "Bytes of GPU memory that went through host memory.", peer,
            static_cast<double>(row.staged_bytes));
  if (!other)
    out.add("twinpath_path_info", "gauge", "Which way data goes to a peer, and why.",
            with(peer, {{"reason", row.reason}}), 1);
  if (row.rails.size() > 1 || row.failovers > 0) {
    out.add("twinpath_failovers_total", "counter",
            "Times that connections went over to other ports, or back.", peer,
            static_cast<double>(row.failovers));
    out.add("twinpath_failover_seconds_total", "counter",
            "How long connections stood still for that, added up.", peer, row.stopped_s);
    out.add("twinpath_failover_longest_seconds", "gauge", "The longest of these.", peer,
            row.longest_stop_s);
  }
  const std::vector<double> parts = shares(row);
  for (std::size_t i = 0; i < parts.size(); ++i)
    if (!row.rails[i].standby)
      out.add("twinpath_rail_share", "gauge",
              "What a rail gets of each message that is cut over several.",
              with(peer, {{"rail", row.rails[i].port}}), parts[i]);
  const std::vector<double> fair = promised(row, p);
  for (std::size_t i = 0; i < parts.size() && i < fair.size(); ++i)
    if (!row.rails[i].standby)
      out.add("twinpath_rail_share_promised", "gauge",
              "What it would get by its port's speed beside the others'.",
              with(peer, {{"rail", row.rails[i].port}}), fair[i]);
  for (const RailSample& rail : row.rails)
    out.add("twinpath_bytes_total", "counter", "Bytes that were carried.",
            with(peer, {{"rail", rail.port}}), static_cast<double>(rail.bytes));
}

// Of all peers together: what tells a slow rail from its siblings.
void add_rails(Families& out, const Labels& process, const std::vector<const PeerRow*>& rows) {
  std::map<std::string, RailSample> rails;
  for (const PeerRow* row : rows) {
    if (row->role != counters::Role::sender) continue;
    for (const RailSample& r : row->rails) {
      RailSample& sum = rails[r.port];
      sum.timed_ns += r.timed_ns;
      for (std::size_t b = 0; b < counters::kBuckets; ++b) sum.buckets[b] += r.buckets[b];
    }
  }
  const std::string name = "twinpath_message_seconds";
  const char* help =
      "From posting a message to its acknowledgement, of some messages: one in 32, of those up to "
      "4 KiB one in 512.";
  for (const auto& [port, rail] : rails) {
    const Labels labels = with(process, {{"rail", port}});
    std::uint64_t below = 0;
    for (std::size_t b = 0; b < counters::kBuckets; ++b) {
      below += rail.buckets[b];
      const bool last = b + 1 == counters::kBuckets;
      const std::string le =
          last ? "+Inf" : number(static_cast<double>(std::uint64_t{1024} << b) * 1e-9);
      out.add(name, "histogram", help, name + "_bucket", with(labels, {{"le", le}}),
              std::to_string(below));
    }
    out.add(name, "histogram", help, name + "_sum", labels,
            number(static_cast<double>(rail.timed_ns) * 1e-9));
    out.add(name, "histogram", help, name + "_count", labels, std::to_string(below));
  }
}

std::string job_text(const ProcessSample& p) {
  const std::uint64_t id = job_of(p);
  if (id == 0) return {};
  std::array<char, 16> text;
  return {text.data(), std::to_chars(text.data(), text.data() + text.size(), id, 16).ptr};
}

void add_moves(Families& out, const std::string& name, const std::string& whose,
               const Labels& labels, const MoveSample& m) {
  const std::string times = "Times that " + whose + " queues went over to another port.";
  out.add(name + "s_total", "counter", times.c_str(), labels, static_cast<double>(m.moves));
  out.add(name + "_seconds_total", "counter", "How long queues stood still for that, added up.",
          labels, m.stopped_s());
  out.add(name + "_longest_seconds", "gauge", "The longest of these.", labels, m.longest_s());
}

void add_process(Families& out, const Labels& labels, const ProcessSample& p) {
  out.add("twinpath_process_info", "gauge", "A process that has the plugin open.",
          with(labels, {{"job", job_text(p)}, {"program", p.program}, {"plugin", p.plugin}}), 1);
  out.add("twinpath_process_start_time_seconds", "gauge",
          "When the process opened the plugin, since 1970.", labels,
          static_cast<double>(p.started_unix_ns) * 1e-9);
  out.add("twinpath_mr_registrations_total", "counter", "Memory that was registered anew.", labels,
          static_cast<double>(p.registrations));
  out.add("twinpath_mr_registered_bytes_total", "counter", "Bytes of these.", labels,
          static_cast<double>(p.registered_bytes));
  out.add("twinpath_mr_cache_hits_total", "counter",
          "Registrations that an earlier one already covered.", labels,
          static_cast<double>(p.registration_hits));
  out.add("twinpath_uncounted_connections_total", "counter",
          "Connections beyond those that are counted.", labels, static_cast<double>(p.uncounted));
  add_moves(out, "twinpath_rma_failover", "RMA's", labels, p.rma);
  for (const PortSample& port : p.ports) {
    const Labels rail = with(labels, {{"rail", port.name}});
    out.add("twinpath_rail_up", "gauge", "0 after the port went down.", rail,
            port.state == counters::PortState::down ? 0 : 1);
    const std::array<std::pair<const char*, std::uint64_t>, 4> events{
        {{"down", port.went_down},
         {"up", port.came_up},
         {"address", port.changed_address},
         {"device_failed", port.failed}}};
    for (const auto& [event, n] : events)
      out.add("twinpath_port_events_total", "counter", "Events of the adapter's ports.",
              with(rail, {{"event", event}}), static_cast<double>(n));
  }
}

void add_gin(Families& out, const Labels& process, const GinSample& g) {
  const Labels labels = with(process, {{"gpu", g.gpu < 0 ? "" : std::to_string(g.gpu)}});
  for (std::size_t k = 0; k < counters::kGinOperations; ++k)
    out.add("twinpath_gin_operations_total", "counter", "Work requests taken from kernels' queues.",
            with(labels, {{"op", counters::kGinOperationNames[k]}}),
            static_cast<double>(g.operations[k]));
  out.add("twinpath_gin_doorbells_total", "counter", "Times that a doorbell was found rung.",
          labels, static_cast<double>(g.doorbells));
  out.add("twinpath_gin_engine_busy_seconds_total", "counter",
          "Time of the engine's rounds in which something moved.", labels,
          static_cast<double>(g.busy_ns) * 1e-9);
  out.add("twinpath_gin_failed_queues_total", "counter", "Kernels' queues that failed.", labels,
          static_cast<double>(g.failed_queues));
  out.add("twinpath_gin_released_queues_total", "counter",
          "Queues whose kernels were let go because nothing would come any more.", labels,
          static_cast<double>(g.released));
  add_moves(out, "twinpath_gin_failover", "kernels'", labels, g.moves);
}

// What of several rows stands under "other".
void merge(PeerRow& to, const PeerRow& from) {
  to.connections += from.connections;
  to.lost += from.lost;
  to.messages += from.messages;
  to.staged_bytes += from.staged_bytes;
  to.errors += from.errors;
  to.failovers += from.failovers;
  to.stopped_s += from.stopped_s;
  to.longest_stop_s = std::max(to.longest_stop_s, from.longest_stop_s);
  to.in_flight += from.in_flight;
  to.stalled_s = std::max(to.stalled_s, from.stalled_s);
  for (std::size_t w = 0; w < counters::kWaits; ++w) to.waited_s[w] += from.waited_s[w];
  for (const RailSample& r : from.rails) {
    auto at = std::find_if(to.rails.begin(), to.rails.end(),
                           [&](const RailSample& x) { return x.port == r.port; });
    if (at == to.rails.end()) {
      to.rails.push_back(r);
      continue;
    }
    at->bytes += r.bytes;
  }
}

double waited(const PeerRow& row) {
  double sum = 0;
  for (const double s : row.waited_s) sum += s;
  return sum;
}

void add_rows(Families& out, const Labels& labels, const ProcessSample& p,
              std::vector<const PeerRow*> rows) {
  add_rails(out, labels, rows);
  std::stable_sort(rows.begin(), rows.end(),
                   [](const PeerRow* a, const PeerRow* b) { return waited(*a) > waited(*b); });
  std::map<counters::Role, PeerRow> others;
  std::map<counters::Role, std::size_t> told;
  for (const PeerRow* row : rows) {
    if (++told[row->role] <= kMostPeers) {
      add_peer(out, labels, p, *row, false);
      continue;
    }
    PeerRow& other = others[row->role];
    other.role = row->role;
    merge(other, *row);
  }
  for (const auto& [role, row] : others) add_peer(out, labels, p, row, true);
}

}  // namespace

PrometheusText::PrometheusText() : families_(std::make_unique<Families>()) {}
PrometheusText::~PrometheusText() = default;

void PrometheusText::add(ProcessSample sample) {
  // A process that has two copies of the plugin: series must differ.
  if (processes_ > 0 && sample.pid == last_pid_) return;
  last_pid_ = sample.pid;
  ++processes_;
  std::vector<ProcessSample> one;
  one.push_back(std::move(sample));
  const Summary s = summarize({}, std::move(one));
  const ProcessSample& p = s.processes.front();
  const Labels labels{{"node", p.host}, {"pid", std::to_string(p.pid)}};
  add_process(*families_, labels, p);
  for (const GinSample& g : p.gin) add_gin(*families_, labels, g);
  std::vector<const PeerRow*> rows;
  for (const PeerRow& row : s.rows) rows.push_back(&row);
  add_rows(*families_, labels, p, std::move(rows));
}

std::string PrometheusText::text(const std::vector<NicCounter>& nics, const std::string& node,
                                 std::size_t left_out) {
  families_->add("twinpath_processes", "gauge",
                 "Processes that have the plugin open and may be read.", {},
                 static_cast<double>(processes_));
  families_->add(
      "twinpath_processes_left_out", "gauge",
      "Pages of counters that were not read: of another version, or beyond what one user "
      "may have.",
      {}, static_cast<double>(left_out));
  for (const NicCounter& n : nics)
    families_->add("twinpath_nic_counter_total", "counter",
                   "Counters of the adapters' ports, of the kernel.",
                   {{"node", node},
                    {"hca", n.hca},
                    {"port", n.port},
                    {"name", n.name},
                    {"kind", name_of(n.trouble)}},
                   static_cast<double>(n.value));
  return families_->text();
}

}  // namespace twinpath::tools
