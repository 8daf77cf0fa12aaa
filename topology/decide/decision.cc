// The issue rows (I1..I7), the user's wish (U3), and the two ends' rows put together.
#include "topology/decide/decision.h"

#include <algorithm>
#include <array>

namespace twinpath {
namespace {

// What holds of the two ends' wishes: the lesser one that was expressed.
ModeChoice wish_of(const PlacementRecord& a, const PlacementRecord& b) {
  if (a.wish == ModeChoice::automatic) return b.wish;
  if (b.wish == ModeChoice::automatic) return a.wish;
  return std::min(a.wish, b.wish);
}

constexpr Mode mode_of(ModeChoice wish) {
  switch (wish) {
    case ModeChoice::stage:
      return Mode::proxy_stage;
    case ModeChoice::proxy:
      return Mode::proxy_gdr;
    case ModeChoice::gda_cpu:
      return Mode::gda_cpu;
    case ModeChoice::automatic:
    case ModeChoice::gda:
      break;
  }
  return Mode::gda;
}

Mode above(Mode mode) { return static_cast<Mode>(static_cast<int>(mode) + 1); }

// Whether the CPU must move data of that end.  A size limit counts except for small messages, and
// except when the user asks for GPU-issued work: then slow is what was asked for.
bool moved_by_cpu(const EndPlan& end, Use use, bool gpu_wished) {
  if (end.direct_max == 0) return true;
  return end.direct_max != kAnySize && use.pattern != Pattern::latency && !gpu_wished;
}

// SQ and doorbell record where the HCA reads them fast, CQ where the GPU polls at home.  Queues
// stay with the physical function, whatever moves the data.
QueuePlacement place_queues(const PlacementRecord& from, Mode mode) {
  QueuePlacement q;
  if (mode < Mode::gda_cpu || !from.can(kCanGpuQueues)) return q;
  q.cq_on_gpu = true;
  q.sq_on_gpu = from.pf_distance <= Distance::pxb;
  q.dbr_on_gpu = q.sq_on_gpu && mode == Mode::gda;  // a CPU that rings writes the record, too
  return q;
}

struct Issue {
  Mode mode;
  Rule rule;
  Reason reason;
};

// Rows I1 to I7, top down.
Issue judge_issue(const PlacementRecord& from, Use use, bool staged) {
  if (staged) return {Mode::proxy_stage, Rule::i1, Reason::cpu_moves};
  if (!use.device_initiated) return {Mode::proxy_gdr, Rule::i4, Reason::host_driven};
  if (!from.can(kCanDevx)) {
    const bool vendor = from.ring_reason == Reason::uar_vendor;
    return {Mode::proxy_gdr, Rule::i2, vendor ? Reason::uar_vendor : Reason::devx_none};
  }
  if (!from.can(kCanGpuIssue)) return {Mode::proxy_gdr, Rule::i3, Reason::gpu_old};
  if (!from.can(kCanGpuRing)) {
    const Reason why = from.ring_reason == Reason::none ? Reason::uar_untried : from.ring_reason;
    return {from.can(kCanCpuRing) ? Mode::gda_cpu : Mode::proxy_gdr, Rule::i5, why};
  }
  return {Mode::gda, Rule::i7, Reason::gpu_rings};
}

EndPlan plan(bool can, const DirectUse& use, Rule refused) {
  // The limit of a record that says it cannot register is not believed.
  if (!can) return {0, use.rule == Rule::none ? refused : use.rule, use.reason};
  return {direct_bytes(use.log2), use.rule, use.reason};
}

}  // namespace

std::string_view name_of(Mode mode) {
  static constexpr std::array<std::string_view, kModes> kNames{"PROXY-STAGE", "PROXY-GDR", "GDA-P",
                                                               "GDA"};
  const auto i = static_cast<std::size_t>(mode);
  return i < kNames.size() ? kNames[i] : "?";
}

Direction decide_direction(const PlacementRecord& from, const PlacementRecord& to, Use use) {
  Direction d;
  d.source = plan(from.can(kCanSource), from.source, Rule::r1);
  d.landing = plan(to.can(kCanLand), to.land, Rule::w1);

  const ModeChoice wish = wish_of(from, to);
  const Mode most = mode_of(wish);
  const bool gpu_wished = use.device_initiated && wish >= ModeChoice::gda_cpu;
  const bool source_moved = moved_by_cpu(d.source, use, gpu_wished);
  const bool landing_moved = moved_by_cpu(d.landing, use, gpu_wished);
  const Issue can = judge_issue(from, use, source_moved || landing_moved);

  d.mode = can.mode;
  d.issue_rule = can.rule;
  d.issue_reason = can.reason;
  // Host-driven transfers know no GPU-issued mode: it is not missed there.
  const Mode best = use.device_initiated ? Mode::gda : Mode::proxy_gdr;
  if (can.mode < best) {
    d.next = above(can.mode);
    if (can.mode > Mode::proxy_stage) {
      d.need = can.reason;
    } else if (source_moved) {
      d.need = d.source.reason;
    } else {
      d.need = d.landing.reason;
      d.need_at_receiver = true;
    }
  }
  if (wish != ModeChoice::automatic) {
    d.wish_unmet = gpu_wished && can.mode < most;
    d.wish_conflict = from.wish != to.wish && from.wish != ModeChoice::automatic &&
                      to.wish != ModeChoice::automatic;
    if (most < can.mode) {
      d.mode = most;
      d.issue_rule = Rule::u3;
      d.issue_reason = Reason::mode_set;
      d.next = above(most);
      d.need = Reason::mode_set;
      d.need_at_receiver = from.wish != wish;
    }
  }

  if (d.mode == Mode::proxy_stage && wish == ModeChoice::stage) {
    d.source = {0, Rule::u3, Reason::mode_set};
    d.landing = {0, Rule::u3, Reason::mode_set};
  } else if (d.mode >= Mode::gda_cpu) {
    // A GPU that issues cannot choose by size.
    d.source.direct_max = kAnySize;
    d.landing.direct_max = kAnySize;
  }
  d.queues = place_queues(from, d.mode);
  d.flush = d.landing.direct_max != 0 && !to.can(kCanOrder);
  d.signal_by_write = use.device_initiated && !to.can(kCanAtomics);
  return d;
}

Mode best_built(Use use, bool software, bool asked) {
  if (!use.device_initiated) return Mode::proxy_gdr;
  if (software) return Mode::gda_cpu;
  return asked ? Mode::gda : Mode::proxy_gdr;
}

bool gpu_issue_asked(const PlacementRecord& from, const PlacementRecord& to) {
  return from.wish >= ModeChoice::gda_cpu && to.wish >= ModeChoice::gda_cpu;
}

Executed executed(const Direction& decided, const PlacementRecord& from, const PlacementRecord& to,
                  Use use, bool software) {
  if (use.device_initiated && decided.mode == Mode::proxy_stage) {
    if (!from.can(kCanSource)) return {std::nullopt, from.source.reason};
    if (!to.can(kCanLand)) return {std::nullopt, to.land.reason};
    return {Mode::proxy_gdr, Reason::never_staged};
  }
  const Mode best = best_built(use, software, gpu_issue_asked(from, to));
  if (decided.mode > best) return {best, Reason::not_asked};
  return {decided.mode, Reason::none};
}

Decision decide(const PlacementRecord& local, const PlacementRecord& remote, Use use) {
  return {decide_direction(local, remote, use), decide_direction(remote, local, use)};
}

}  // namespace twinpath
