// Decisions in words: the log line of a peer and the full chain of reasons.
#include <array>

#include "plugin/base/peer_modes.h"
#include "topology/decide/decision.h"

namespace twinpath {
namespace {

std::string text(std::string_view s) { return std::string(s); }

std::string bytes_text(std::uint64_t bytes) {
  return bytes >= 1024 ? std::to_string(bytes / 1024) + " KiB" : std::to_string(bytes) + " B";
}

std::string plan_text(const EndPlan& p) {
  if (p.direct_max == 0) return "staged";
  if (p.direct_max == kAnySize) return "direct";
  return "direct up to " + bytes_text(p.direct_max) + ", else staged";
}

// "24.3" of tenths.
std::string rate_text(std::uint16_t tenths) {
  return std::to_string(tenths / 10) + "." + std::to_string(tenths % 10);
}

std::string line_text(const PlacementRecord& r) {
  const int port = r.port_gbps * 10 / 8;
  const int line = port == 0                                ? r.pcie_dgbs
                   : r.pcie_dgbs == 0 || port < r.pcie_dgbs ? port
                                                            : r.pcie_dgbs;
  return line == 0 ? std::string() : rate_text(static_cast<std::uint16_t>(line));
}

bool about_ring(Reason reason) {
  return reason == Reason::uar_perm || reason == Reason::uar_vf || reason == Reason::uar_failed;
}

// The facts of one end, for any sentence about it.
std::array<Fact, 7> facts_of(const PlacementRecord& r, const EndNames& names, Reason reason,
                             bool reading) {
  const int number = about_ring(reason) ? r.ring_error : r.gdr_error;
  const std::string error = number == 0 ? "" : "error " + std::to_string(number);
  const std::uint16_t rate = reading ? r.read_dgbs : r.write_dgbs;
  return {{{"gpu", names.gpu},
           {"hca", names.hca},
           {"class", text(name_of(r.distance))},
           {"pf_class", text(name_of(r.pf_distance))},
           {"error", error},
           {"rate", rate == 0 ? std::string() : rate_text(rate)},
           {"line", line_text(r)}}};
}

struct Teller {
  const Direction& d;
  const PlacementRecord& from;
  const PlacementRecord& to;
  const EndNames& sender;
  const EndNames& receiver;
  std::vector<Explanation> out;

  ModeChoice wish() const {
    if (from.wish == ModeChoice::automatic) return to.wish;
    if (to.wish == ModeChoice::automatic) return from.wish;
    return from.wish < to.wish ? from.wish : to.wish;
  }

  void add(std::string part, std::string result, Rule rule, Reason reason, bool at_receiver) {
    const EndNames& end = at_receiver ? receiver : sender;
    const auto end_facts = facts_of(at_receiver ? to : from, end, reason, !at_receiver);
    std::vector<Fact> facts(end_facts.begin(), end_facts.end());
    facts.push_back({"wish", name_of(wish())});
    if (reason == Reason::cpu_moves) {
      const bool source = d.source.direct_max != kAnySize;
      facts.push_back({"other", std::string(source ? "source " : "landing ") +
                                    plan_text(source ? d.source : d.landing)});
    }
    out.push_back({std::move(part), std::move(result),
                   rule == Rule::none ? "" : text(name_of(rule)), text(code_of(reason)),
                   sentence(reason, facts), remedy(reason, facts), end.host});
  }

  // What a data-direct function or ACS adds to the row that decided.
  void side_notes(const PlacementRecord& end, bool at_receiver) {
    const char* part = at_receiver ? "landing" : "source";
    if ((end.flags & kFlagDataDirectRefused) != 0)
      add(part, "physical function", Rule::none, Reason::dd_refused, at_receiver);
    const Reason told = at_receiver ? d.landing.reason : d.source.reason;
    if ((end.flags & kFlagAcs) != 0 && told != Reason::gdr_acs)
      add(part, "redirected", Rule::none, Reason::gdr_acs, at_receiver);
  }
};

std::string issue_text(Mode mode) {
  switch (mode) {
    case Mode::gda:
      return "GPU rings";
    case Mode::gda_cpu:
      return "GPU writes, CPU rings";
    case Mode::proxy_gdr:
    case Mode::proxy_stage:
      break;
  }
  return "CPU proxy";
}

std::string rules_text(const Direction& d) {
  return text(name_of(d.issue_rule)) + " " + text(name_of(d.source.rule)) + " " +
         text(name_of(d.landing.rule));
}

// "GDA-P (I5 R2 W2)" and, where there is one, "; GDA needs UAR_PERM at node07: ...".
std::string direction_text(const Direction& d, const PlacementRecord& from,
                           const PlacementRecord& to, const EndNames& sender,
                           const EndNames& receiver) {
  std::string out = text(name_of(d.mode)) + " (" + rules_text(d) + ")";
  if (d.need == Reason::none) return out;
  const EndNames& at = d.need_at_receiver ? receiver : sender;
  const auto facts = facts_of(d.need_at_receiver ? to : from, at, d.need, !d.need_at_receiver);
  out += ", " + text(name_of(d.next)) + " lacks " + text(code_of(d.need)) + " at " + at.host;
  if (d.need != Reason::mode_set) out += ": " + sentence(d.need, facts);
  return out;
}

}  // namespace

std::string summary(const Decision& decision, const PlacementRecord& local,
                    const PlacementRecord& remote, const EndNames& here, const EndNames& there) {
  std::string out = here.gpu + " " + here.hca + " with " + there.host + " " + there.gpu + " " +
                    there.hca + ": send ";
  out += direction_text(decision.send, local, remote, here, there);
  out += "; receive ";
  out += direction_text(decision.recv, remote, local, there, here);
  return out;
}

std::vector<Explanation> explain(const Direction& d, const PlacementRecord& from,
                                 const PlacementRecord& to, const EndNames& sender,
                                 const EndNames& receiver) {
  Teller t{d, from, to, sender, receiver, {}};
  t.add("source", plan_text(d.source), d.source.rule, d.source.reason, false);
  t.side_notes(from, false);
  t.add("landing", plan_text(d.landing), d.landing.rule, d.landing.reason, true);
  t.side_notes(to, true);
  t.add("issue", issue_text(d.mode), d.issue_rule, d.issue_reason, false);
  if (d.mode >= Mode::gda_cpu) {
    const auto place = [](bool gpu) { return gpu ? "GPU" : "host"; };
    t.add("queues",
          std::string("SQ ") + place(d.queues.sq_on_gpu) + ", CQ " + place(d.queues.cq_on_gpu) +
              ", doorbell record " + place(d.queues.dbr_on_gpu),
          Rule::none, from.can(kCanGpuQueues) ? Reason::none : Reason::qbuf_host, false);
  }
  if (d.flush) t.add("flush", "needed", Rule::none, Reason::flush_needed, true);
  if (d.signal_by_write) t.add("signals", "written", Rule::i6, Reason::atomic_emul, true);
  if (d.wish_conflict) t.add("wish", "conflict", Rule::u3, Reason::mode_conflict, false);
  if (d.wish_unmet) t.add("wish", "unmet", Rule::u3, Reason::mode_impossible, false);
  if (d.need != Reason::none)
    t.add("next", text(name_of(d.next)), Rule::none, d.need, d.need_at_receiver);
  return std::move(t.out);
}

}  // namespace twinpath
