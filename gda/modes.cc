// See modes.h.
#include "gda/modes.h"

#include <algorithm>
#include <array>

#include "plugin/base/log.h"
#include "plugin/base/peer_modes.h"
#include "topology/decide/overrides.h"

namespace twinpath::gda {
namespace {

using Bytes = std::vector<std::uint8_t>;

constexpr Use kUse{Pattern::latency, true};

Bytes encode(const Placement::End& end, bool atomics) {
  Writer w;
  w.integer(static_cast<std::uint8_t>(atomics));
  const auto record = encode_record(end.record);
  w.raw(record.data(), record.size());
  w.text(end.names.host);
  w.text(end.names.gpu);
  w.text(end.names.hca);
  return w.take();
}

bool decode(const Bytes& bytes, Placement::End& end, bool& atomics, std::string& why) {
  Reader in(bytes);
  atomics = in.integer<std::uint8_t>() != 0;
  std::array<std::uint8_t, kRecordBytes> record{};
  in.raw(record.data(), record.size());
  end.names.host = in.text();
  end.names.gpu = in.text();
  end.names.hca = in.text();
  if (!in.ok()) {
    why = "it is too short";
    return false;
  }
  return decode_record(record, end.record, why);
}

// What was asked for of the pair: the lesser wish that an end has.
ModeChoice wish_of(const PairEnds& e) {
  if (e.here.wish == ModeChoice::automatic) return e.there.wish;
  if (e.there.wish == ModeChoice::automatic) return e.here.wish;
  return std::min(e.here.wish, e.there.wish);
}

std::string why_not(const PairEnds& e, const Direction& lesser, bool outward) {
  const auto told =
      explain(lesser, outward ? e.here : e.there, outward ? e.there : e.here,
              outward ? e.here_names : e.there_names, outward ? e.there_names : e.here_names);
  for (const Explanation& x : told)
    if (x.part == "next") return x.sentence;
  return {};
}

}  // namespace

Pairing pair_up(const PairEnds& ends, bool soft_fabric, bool gpu) {
  const Decision d = decide(ends.here, ends.there, kUse);
  const bool outward = d.send.mode <= d.recv.mode;
  const Mode decided = std::min(d.send.mode, d.recv.mode);
  const Executed send = executed(d.send, ends.here, ends.there, kUse, soft_fabric);
  const Executed recv = executed(d.recv, ends.there, ends.here, kUse, soft_fabric);
  const ModeChoice wish = wish_of(ends);
  Pairing out;
  // One queue serves both directions: the lesser mode holds.
  if (send.mode == Mode::gda_cpu && recv.mode == Mode::gda_cpu) out.mode = ModeChoice::gda_cpu;
  out.why = summary(d, ends.here, ends.there, ends.here_names, ends.there_names);
  if (decided >= Mode::gda_cpu && !soft_fabric)
    out.why += "; queues that an adapter itself reads are not built yet: proxy";
  if (decided == Mode::proxy_stage)
    out.why += "; GIN windows are never staged: the adapter must reach them";
  if (wish == ModeChoice::stage && gpu) {
    out.warning =
        "mode stage was asked for, but GIN windows are GPU memory that is never staged; proxy is "
        "used (TWINPATH_GIN=0 turns GIN off)";
  } else if (wish >= ModeChoice::gda_cpu && wish > out.mode) {
    const std::string reason = why_not(ends, outward ? d.send : d.recv, outward);
    out.warning = "mode " + name_of(wish) + " was asked for and cannot be had" +
                  (reason.empty() ? "" : " (" + reason + ")") + "; " + name_of(out.mode) +
                  " is used";
  }
  return out;
}

Result<std::vector<PeerPlan>> agree_on_modes(const GinCore& core, int device) {
  const Placement::End mine = core.devices->placement(device);
  std::vector<Bytes> to;
  std::vector<PlacementRecord> records;
  for (int r = 0; r < core.ranks(); ++r) {
    Placement::End end = mine;
    end.record.wish = end_settings(core.config(), r).wish;
    records.push_back(end.record);
    to.push_back(encode(end, core.limits.atomics));
  }
  auto from = exchange_or_fail(*core.mesh, to, "agreeing on modes");
  if (!from) return from.status();
  std::vector<PeerPlan> plans;
  bool warned = false;
  for (int r = 0; r < core.ranks(); ++r) {
    const auto at = static_cast<std::size_t>(r);
    Placement::End theirs;
    bool atomics = false;
    if (std::string why; !decode((*from)[at], theirs, atomics, why)) {
      TP_WARN(
          "%s sent a placement that cannot be read (%s); use one version of Twinpath everywhere",
          core.mesh->peer_text(r).c_str(), why.c_str());
      return Status::remote;
    }
    const PairEnds ends{records[at], theirs.record, mine.names, theirs.names};
    Pairing pairing = pair_up(ends, core.config().fabric == FabricChoice::soft, core.gpu >= 0);
    if (!pairing.warning.empty() && !warned) {
      TP_WARN("GIN queue to %s: %s", r == core.rank() ? "itself" : core.mesh->peer_text(r).c_str(),
              pairing.warning.c_str());
      warned = true;
    }
    plans.push_back({pairing.mode, !(core.limits.atomics && atomics), std::move(pairing.why)});
  }
  return plans;
}

}  // namespace twinpath::gda
