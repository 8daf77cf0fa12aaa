// See modes.h.
#include "gda/team/modes.h"

#include <algorithm>
#include <array>
#include <memory>

#include "gda/team/adapter_side.h"
#include "plugin/base/log.h"
#include "plugin/base/peer_modes.h"
#include "topology/decide/overrides.h"

namespace twinpath::gda {
namespace {

using Bytes = std::vector<std::uint8_t>;

constexpr Use kUse{Pattern::latency, true};

// On a GPU a table that CPUs add to is no good for atomics, however global: it lies in host memory,
// where they may be seen before data in the GPU's (gpu_signals.h).
Atomics atomics_of(const GinCore& core) {
  if (!core.limits.atomics) return Atomics::none;
  return core.limits.atomics_global && core.gpu < 0 ? Atomics::global : Atomics::own;
}

Bytes encode(const Placement::End& end, Atomics atomics, const std::string& no_adapter) {
  Writer w;
  w.integer(static_cast<std::uint8_t>(atomics));
  const auto record = encode_record(end.record);
  w.raw(record.data(), record.size());
  w.text(end.names.host);
  w.text(end.names.gpu);
  w.text(end.names.hca);
  w.text(no_adapter);
  return w.take();
}

struct Told {
  Placement::End end;
  Atomics atomics = Atomics::none;
  std::string no_adapter;
};

bool decode(const Bytes& bytes, Told& told, std::string& why) {
  Reader in(bytes);
  const auto atomics = in.integer<std::uint8_t>();
  told.atomics =
      static_cast<Atomics>(std::min(atomics, static_cast<std::uint8_t>(Atomics::global)));
  std::array<std::uint8_t, kRecordBytes> record{};
  in.raw(record.data(), record.size());
  told.end.names.host = in.text();
  told.end.names.gpu = in.text();
  told.end.names.hca = in.text();
  told.no_adapter = in.text();
  if (!in.ok()) {
    why = "it is too short";
    return false;
  }
  return decode_record(record, told.end.record, why);
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

// Why an adapter's own queues cannot be had for the pair; empty: they can.
std::string why_no_adapter(const PairEnds& e) {
  const auto at = [](const std::string& why, const EndNames& names) {
    return "at " + names.host + ": " + why;
  };
  if (!e.no_adapter_here.empty()) return at(e.no_adapter_here, e.here_names);
  if (!e.no_adapter_there.empty()) return at(e.no_adapter_there, e.there_names);
  return {};
}

// This rank's adapter, if queues of its own are asked for towards anybody; else `why_not`.
std::shared_ptr<AdapterSide> open_adapter(const GinCore& core, std::string& why_not) {
  const bool soft = core.config().fabric == FabricChoice::soft;
  bool asked = false;
  for (int r = 0; r < core.ranks(); ++r)
    asked |= asks_for_adapter(end_settings(core.config(), r).wish, soft);
  why_not = "it was not asked for";
  if (!asked) return nullptr;
  if (core.config().gin_atomics == AtomicsChoice::never) {
    why_not = "TWINPATH_GIN_ATOMICS=0";
    return nullptr;
  }
  why_not.clear();
  return AdapterSide::open(core.devices, core.rail, why_not);
}

}  // namespace

bool asks_for_adapter(ModeChoice wish, bool soft_fabric) {
  return wish == ModeChoice::gda || (wish == ModeChoice::gda_cpu && !soft_fabric);
}

std::vector<bool> counted_peers(std::span<const Atomics> all, int rank) {
  const bool some_without = std::find(all.begin(), all.end(), Atomics::none) != all.end();
  const Atomics mine = all[static_cast<std::size_t>(rank)];
  std::vector<bool> counted;
  for (const Atomics theirs : all) {
    // The tables of both get this pair's adds.  Where somebody has no atomics each has a CPU that
    // adds for that one, and mixes only what is atomic with a CPU.
    const bool mixes = mine == Atomics::global && theirs == Atomics::global;
    const bool both = mine != Atomics::none && theirs != Atomics::none;
    counted.push_back(!both || (some_without && !mixes));
  }
  return counted;
}

Pairing pair_up(const PairEnds& ends, bool soft_fabric, bool gpu) {
  const Decision d = decide(ends.here, ends.there, kUse);
  const bool outward = d.send.mode <= d.recv.mode;
  const Mode decided = std::min(d.send.mode, d.recv.mode);
  const Executed send = executed(d.send, ends.here, ends.there, kUse, soft_fabric);
  const Executed recv = executed(d.recv, ends.there, ends.here, kUse, soft_fabric);
  const ModeChoice wish = wish_of(ends);
  const bool asked = asks_for_adapter(ends.here.wish, soft_fabric) &&
                     asks_for_adapter(ends.there.wish, soft_fabric);
  const bool issues = send.mode >= Mode::gda_cpu && recv.mode >= Mode::gda_cpu;
  Pairing out;
  out.why = summary(d, ends.here, ends.there, ends.here_names, ends.there_names);
  const std::string lacking = asked ? why_no_adapter(ends) : std::string();
  // One queue serves both directions: the lesser mode holds.
  if (issues && asked && lacking.empty()) {
    out.adapter = true;
    out.mode = wish;
  } else if (issues && soft_fabric) {
    out.mode = ModeChoice::gda_cpu;
  }
  if (decided == Mode::proxy_stage)
    out.why += "; GIN windows are never staged: the adapter must reach them";
  if (wish == ModeChoice::stage && gpu) {
    out.warning =
        "mode stage was asked for, but GIN windows are GPU memory that is never staged; proxy is "
        "used (TWINPATH_GIN=0 turns GIN off)";
  } else if (wish >= ModeChoice::gda_cpu && wish > out.mode) {
    const std::string reason = !lacking.empty() ? lacking
                               : !asked         ? "one end alone asks for it"
                                                : why_not(ends, outward ? d.send : d.recv, outward);
    out.warning = "mode " + name_of(wish) + " was asked for and cannot be had" +
                  (reason.empty() ? "" : " (" + reason + ")") + "; " + name_of(out.mode) +
                  " is used";
  }
  return out;
}

namespace {

// What this rank says of its own pairs: empty, or of which and why they are no adapter's.
std::string first_without(const GinCore& core, const std::vector<Pairing>& pairings) {
  for (int r = 0; r < core.ranks(); ++r) {
    const Pairing& p = pairings[static_cast<std::size_t>(r)];
    if (p.adapter) continue;
    return "queues of rank " + std::to_string(core.rank()) + " to rank " + std::to_string(r) +
           " are " + name_of(p.mode);
  }
  return {};
}

// Collective: an adapter's own queues for all pairs of the team, or for none.
Status settle_adapters(GinCore& core, std::vector<Pairing>& pairings,
                       std::shared_ptr<AdapterSide> side) {
  Writer w;
  w.text(first_without(core, pairings));
  auto all = gather_or_fail(*core.mesh, w.take(), "agreeing on modes");
  if (!all) return all.status();
  std::string without;
  for (const Bytes& bytes : *all) {
    Reader in(bytes);
    const std::string theirs = in.text();
    if (without.empty()) without = theirs;
    if (!in.ok()) without = "a rank sent a damaged answer";
  }
  if (without.empty()) {
    core.adapter = std::move(side);
    core.bells = core.config().gin_nic_handler;
    for (const Pairing& p : pairings)
      if (p.mode == ModeChoice::gda_cpu) core.bells = BellChoice::cpu;
    return Status::ok;
  }
  bool warned = false;
  for (Pairing& p : pairings) {
    if (!p.adapter) continue;
    const ModeChoice asked = p.mode;
    p.adapter = false;
    p.mode = core.config().fabric == FabricChoice::soft ? ModeChoice::gda_cpu : ModeChoice::proxy;
    if (!warned)
      TP_WARN(
          "mode %s was asked for and cannot be had (%s, and all queues of a communicator are an "
          "adapter's or none is: a signal has one kind of writer); %s is used",
          name_of(asked).c_str(), without.c_str(), name_of(p.mode).c_str());
    warned = true;
  }
  return Status::ok;
}

}  // namespace

Status agree_on_modes(GinCore& core, int device) {
  const bool soft = core.config().fabric == FabricChoice::soft;
  std::string no_adapter;
  std::shared_ptr<AdapterSide> side = open_adapter(core, no_adapter);
  const Placement::End mine = core.devices->placement(device);
  std::vector<Bytes> to;
  std::vector<PlacementRecord> records;
  for (int r = 0; r < core.ranks(); ++r) {
    Placement::End end = mine;
    end.record.wish = end_settings(core.config(), r).wish;
    records.push_back(end.record);
    to.push_back(encode(end, atomics_of(core), no_adapter));
  }
  auto from = exchange_or_fail(*core.mesh, to, "agreeing on modes");
  if (!from) return from.status();
  std::vector<Pairing> pairings;
  std::vector<Atomics> atomics;
  bool warned = false;
  for (int r = 0; r < core.ranks(); ++r) {
    const auto at = static_cast<std::size_t>(r);
    Told told;
    if (std::string why; !decode((*from)[at], told, why)) {
      TP_WARN(
          "%s sent a placement that cannot be read (%s); use one version of Twinpath everywhere",
          core.mesh->peer_text(r).c_str(), why.c_str());
      return Status::remote;
    }
    const PairEnds ends{records[at],    told.end.record, mine.names,
                        told.end.names, no_adapter,      told.no_adapter};
    Pairing pairing = pair_up(ends, soft, core.gpu >= 0);
    if (!pairing.warning.empty() && !warned) {
      TP_WARN("GIN queue to %s: %s", r == core.rank() ? "itself" : core.mesh->peer_text(r).c_str(),
              pairing.warning.c_str());
      warned = true;
    }
    pairings.push_back(std::move(pairing));
    atomics.push_back(told.atomics);
  }
  TP_TRY(settle_adapters(core, pairings, std::move(side)));
  const std::vector<bool> counted = counted_peers(atomics, core.rank());
  for (std::size_t r = 0; r < pairings.size(); ++r)
    core.plans.push_back({pairings[r].mode, counted[r], std::move(pairings[r].why)});
  return Status::ok;
}

}  // namespace twinpath::gda
