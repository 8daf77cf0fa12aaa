#include <array>
#include <charconv>

#include "tools/counters/show.h"

namespace twinpath::tools {
namespace {

// As NCCL writes a commId in its lines; JSON's readers may not keep 64 bits of a number.
std::string hex(std::uint64_t n) {
  std::array<char, 16> text;
  return "0x" + std::string(text.data(), std::to_chars(text.data(), text.data() + 16, n, 16).ptr);
}

const char* word(counters::PortState state) {
  return state == counters::PortState::up     ? "up"
         : state == counters::PortState::down ? "down"
                                              : "unknown";
}

nlohmann::json by_wait(const std::array<double, counters::kWaits>& values) {
  nlohmann::json all = nlohmann::json::object();
  for (std::size_t w = 0; w < counters::kWaits; ++w) all[counters::kWaitNames[w]] = values[w];
  return all;
}

nlohmann::json known(const std::string& text) {
  return text.empty() ? nlohmann::json() : nlohmann::json(text);
}
nlohmann::json known(std::uint32_t n) { return n == 0 ? nlohmann::json() : nlohmann::json(n); }
nlohmann::json known(const std::optional<std::uint32_t>& n) {
  return n ? nlohmann::json(*n) : nlohmann::json();
}

nlohmann::json communicators_json(const ProcessSample& p) {
  nlohmann::json all = nlohmann::json::array();
  for (const CommunicatorSample& c : p.communicators)
    all.push_back({{"id", hex(c.id)},
                   {"comm_name", known(c.name)},
                   {"rank", known(c.rank)},
                   {"ranks", known(c.ranks)},
                   {"nodes", known(c.nodes)},
                   {"ended", c.ended}});
  return all;
}

nlohmann::json moves_json(const MoveSample& m) {
  return {{"failovers", m.moves}, {"stopped_s", m.stopped_s()}, {"longest_stop_s", m.longest_s()}};
}

nlohmann::json process_json(const ProcessSample& p) {
  nlohmann::json ports = nlohmann::json::array();
  for (const PortSample& port : p.ports)
    ports.push_back({{"name", port.name},
                     {"device", port.device},
                     {"port", port.number},
                     {"speed_mbps", port.speed_mbps},
                     {"state", word(port.state)},
                     {"went_down", port.went_down},
                     {"came_up", port.came_up},
                     {"changed_address", port.changed_address},
                     {"device_failed", port.failed}});
  return {{"pid", p.pid},
          {"inner_pid", p.inner_pid},
          {"uid", p.uid},
          {"host", p.host},
          {"program", p.program},
          {"plugin", p.plugin},
          {"uncounted_connections", p.uncounted},
          {"communicators", communicators_json(p)},
          {"unnamed_communicators", p.unnamed},
          {"registrations", p.registrations},
          {"registered_bytes", p.registered_bytes},
          {"registration_hits", p.registration_hits},
          {"rma", moves_json(p.rma)},
          {"ports", std::move(ports)}};
}

nlohmann::json row_json(const PeerRow& row, const ProcessSample& p) {
  nlohmann::json rails = nlohmann::json::array();
  const std::vector<double> parts = shares(row);
  for (const RailSample& r : row.rails)
    rails.push_back(
        {{"port", r.port},
         {"share", parts.empty() ? nlohmann::json() : nlohmann::json(parts[rails.size()])},
         {"bytes", r.bytes},
         {"timed_messages", timed(r)},
         {"timed_ns", r.timed_ns},
         {"p50_ns", quantile(r.buckets, 0.5)},
         {"p99_ns", quantile(r.buckets, 0.99)},
         {"buckets", r.buckets}});
  return {{"pid", p.pid},
          {"role", row.role == counters::Role::sender ? "sender" : "receiver"},
          {"peer", row.peer},
          {"peer_host", row.peer_host},
          {"peer_pid", row.peer_pid},
          {"peer_gpu", row.peer_gpu},
          {"comm_name", known(row.member.name)},
          {"rank", known(row.member.rank)},
          {"ranks", known(row.member.ranks)},
          {"gpu", row.gpu},
          {"device", row.device},
          {"path", row.path},
          {"reason", row.reason},
          {"connections", row.connections},
          {"lost", row.lost},
          {"bytes", row.bytes},
          {"messages", row.messages},
          {"staged_bytes", row.staged_bytes},
          {"bytes_per_s", row.bytes_per_s},
          {"messages_per_s", row.messages_per_s},
          {"waiting", row.waiting()},
          {"share", by_wait(row.share)},
          {"waited_s", by_wait(row.waited_s)},
          {"in_flight", row.in_flight},
          {"stalled_s", row.stalled_s},
          {"errors", row.errors},
          {"failovers", row.failovers},
          {"stopped_s", row.stopped_s},
          {"longest_stop_s", row.longest_stop_s},
          {"rails", std::move(rails)}};
}

nlohmann::json gin_json(const Summary& s) {
  nlohmann::json all = nlohmann::json::array();
  for (const GinRow& g : s.gin) {
    nlohmann::json operations = nlohmann::json::object();
    for (std::size_t k = 0; k < counters::kGinOperations; ++k)
      operations[counters::kGinOperationNames[k]] = g.counts.operations[k];
    all.push_back({{"pid", s.processes[g.process].pid},
                   {"gpu", g.counts.gpu < 0 ? nlohmann::json() : nlohmann::json(g.counts.gpu)},
                   {"operations", std::move(operations)},
                   {"operations_per_s", g.operations_per_s},
                   {"doorbells", g.counts.doorbells},
                   {"doorbells_per_s", g.doorbells_per_s},
                   {"engine_busy", g.busy},
                   {"failed_queues", g.counts.failed_queues},
                   {"released_queues", g.counts.released}});
    all.back().update(moves_json(g.counts.moves));
  }
  return all;
}

nlohmann::json nics_json(const std::vector<NicChange>& nics) {
  nlohmann::json all = nlohmann::json::array();
  for (const NicChange& n : nics)
    all.push_back({{"hca", n.counter.hca},
                   {"port", n.counter.port},
                   {"name", n.counter.name},
                   {"kind", name_of(n.counter.trouble)},
                   {"value", n.counter.value},
                   {"grown", n.grown}});
  return all;
}

}  // namespace

nlohmann::json summary_json(const Summary& s) {
  nlohmann::json all{{"seconds", s.seconds},
                     {"culprit", nullptr},
                     {"first_line", s.first_line},
                     {"nics", nics_json(s.nics)},
                     {"gin", gin_json(s)},
                     {"slow_rails", slow_rails(s)},
                     {"processes", nlohmann::json::array()},
                     {"peers", nlohmann::json::array()}};
  if (s.culprit) {
    const PeerRow& row = s.rows[s.culprit->row];
    all["culprit"] = {{"text", s.culprit->text},
                      {"wait", counters::kWaitNames[static_cast<std::size_t>(s.culprit->wait)]},
                      {"share", s.culprit->share},
                      {"packets_lost", s.culprit->packets_lost},
                      {"pid", s.processes[row.process].pid},
                      {"peer", row.peer},
                      {"peer_pid", row.peer_pid},
                      {"device", row.device}};
  }
  for (const ProcessSample& p : s.processes) all["processes"].push_back(process_json(p));
  for (const PeerRow& row : s.rows) all["peers"].push_back(row_json(row, s.processes[row.process]));
  return all;
}

}  // namespace twinpath::tools
