#include "test/vm/faults/case.h"

#include <array>
#include <cstdio>

namespace twinpath::test {
namespace {

std::string format(const char* pattern, double a) {
  std::array<char, 64> text;
  (void)std::snprintf(text.data(), text.size(), pattern, a);
  return text.data();
}

constexpr double ms(std::int64_t ns) { return static_cast<double>(ns) / 1e6; }

}  // namespace

std::vector<std::string> Topology::rdma_devices() const {
  std::vector<std::string> out;
  for (const RailEnds& r : sender) out.push_back(r.rdma);
  for (const RailEnds& r : receiver) out.push_back(r.rdma);
  return out;
}

Topology Topology::turned() const {
  Topology t = *this;
  std::swap(t.sender, t.receiver);
  if (here) t.here = other(*here);
  return t;
}

EndPlan Case::plan(Side s) const {
  EndPlan p;
  p.remote = topology.here && *topology.here != s;
  p.config.fabric = FabricChoice::verbs;
  p.config.ib_hca = "=" + topology.of(s).rdma;
  p.config.socket_ifname = topology.control;
  // Two emulated machines do not stand still at the same time.
  p.config.ib_timeout = topology.here ? 16 : 12;
  p.config.ib_retry_cnt = 6;
  p.config.connect_timeout_ms = limit(15000);
  return p;
}

EndPlan Case::patient_plan(Side s) const {
  EndPlan p = plan(s);
  p.config.ib_retry_cnt = 7;
  return p;
}

EndPlan Case::default_plan(Side s) const {
  EndPlan p = plan(s);
  p.config.ib_timeout = Config{}.ib_timeout;
  p.config.ib_retry_cnt = Config{}.ib_retry_cnt;
  return p;
}

EndPlan Case::plan_all_rails(Side s) const {
  EndPlan p = plan(s);
  for (std::size_t i = 1; i < topology.sender.size(); ++i)
    p.config.ib_hca += "," + topology.of(s, i).rdma;
  p.merge = true;
  return p;
}

bool Case::expect(bool condition, const std::string& otherwise) {
  if (!condition) problems_.push_back(otherwise);
  return condition;
}

void Case::note(const std::string& text) {
  if (!notes_.empty()) notes_ += ", ";
  notes_ += text;
}

void Case::detected(Exchange& x, Side s, std::int64_t since) {
  const double after = std::max(0.0, ms(x.end(s).ended_at.load() - since));
  detect_ms_ = std::max(detect_ms_, after);
  note(format("detected after %.0f ms", after) + " by the " + side_name(s));
}

void Case::expect_all_right(Exchange& x, int limit_ms) {
  const bool done = x.finish(limit_ms);
  EndState& r = x.end(Side::receiver);
  messages_ = r.messages.load();
  pause_ms_ = ms(r.longest_pause.load());
  if (!expect(done, x.describe(Side::sender) + "; " + x.describe(Side::receiver))) return;
  note("data right: " + std::to_string(messages_) + " messages, " +
       format("%.1f MB", static_cast<double>(r.bytes.load()) / 1e6) + " verified");
  note(format("longest pause %.0f ms", pause_ms_));
}

void Case::said(Exchange& x, Side s) {
  reasons_.push_back(std::string(side_name(s)) + ": " + x.reason(s));
}

void Case::expect_error(Exchange& x, Side s, int limit_ms, std::int64_t since,
                        std::initializer_list<const char*> remedies) {
  x.wait_ended(s, limit_ms);
  messages_ = x.messages();
  if (!expect(x.phase(s) == Phase::failed,
              "no error within " + std::to_string(limit_ms) + " ms: " + x.describe(s)))
    return;
  expect(x.end(s).wrong[0] == 0, x.describe(s));
  detected(x, s, since);
  const std::string text = x.reason(s);
  said(x, s);
  const auto names = [&](const std::string& what, const std::string& part) {
    expect(text.find(part) != std::string::npos, std::string("the ") + side_name(s) +
                                                     "'s message lacks " + what + " (" + part +
                                                     "): " + text);
  };
  bool own = false, peer = false, gid = false, peer_gid = false;
  for (std::size_t i = 0; i < topology.sender.size(); ++i) {  // any rail
    const RailEnds &a = topology.of(s, i), &b = topology.of(other(s), i);
    own = own || text.find(a.rdma + " GID index") != std::string::npos;
    peer = peer || text.find(b.rdma) != std::string::npos;
    gid = gid || text.find(a.address) != std::string::npos;
    peer_gid = peer_gid || text.find(b.address) != std::string::npos;
  }
  expect(own && gid,
         std::string("the ") + side_name(s) + "'s message lacks its device and GID: " + text);
  expect(peer && peer_gid, std::string("the ") + side_name(s) +
                               "'s message lacks the peer's device and GID: " + text);
  names("the port", "(port 1)");
  names("the peer's process", "pid " + std::to_string(x.pid(other(s))));
  bool remedy = false;
  for (const char* r : remedies) remedy = remedy || text.find(r) != std::string::npos;
  expect(remedy, std::string("the ") + side_name(s) + "'s message lacks a remedy: " + text);
}

void Case::expect_fresh_connection() {
  if (!expect(wait_ports_active(topology.rdma_devices()), "the ports do not come up again")) return;
  Exchange x(plan(Side::sender), plan(Side::receiver), kMixedSizes);
  const bool done = x.wait_connected(limit(kConnect)) && x.wait_messages(16, limit(kMove)) &&
                    x.finish(limit(kMove));
  if (expect(done, "a new connection after the fault: " + x.describe(Side::sender) + "; " +
                       x.describe(Side::receiver)))
    note("a new connection works");
}

void Case::expect_reconnection(Exchange& x) {
  if (!expect(wait_ports_active(topology.rdma_devices()), "the ports do not come up again")) return;
  const bool done =
      x.reconnect(limit(kConnect)) && x.wait_messages(16, limit(kMove)) && x.finish(limit(kMove));
  if (expect(done, "a new connection of the old processes: " + x.describe(Side::sender) + "; " +
                       x.describe(Side::receiver)))
    note("the old processes connect again");
}

void Case::take(const Case& other) {
  problems_.insert(problems_.end(), other.problems_.begin(), other.problems_.end());
  reasons_.insert(reasons_.end(), other.reasons_.begin(), other.reasons_.end());
  if (!other.notes_.empty()) note(other.notes_);
  detect_ms_ = std::max(detect_ms_, other.detect_ms_);
  pause_ms_ = std::max(pause_ms_, other.pause_ms_);
  messages_ += other.messages_;
}

void Case::expect_hit(const Counter& counter, long long least) {
  const long long grown = counter.grown();
  if (expect(grown >= least, "the fault was not hit: " + counter.name() + " has grown by " +
                                 std::to_string(grown) + ", expected " + std::to_string(least)))
    note(counter.name() + " +" + std::to_string(grown));
}

}  // namespace twinpath::test
