#pragma once
// What twinpath-topo has to say, as plain values: every GPU x HCA pair with its class and decision,
// the HCA of each GPU, the HCAs left out, the decisions with another machine.  text.h, json.h and
// svg.h write it; nothing here prints.
//
// Pure.  Threads: any.
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "plugin/base/config.h"
#include "topology/classify.h"
#include "topology/decision.h"
#include "topology/hca_order.h"
#include "topology/machine.h"
#include "topology/overrides.h"
#include "topology/policy.h"

namespace twinpath::tools::topo {

// Probes of pairs that were tried: GPU index and HCA name.
using PairProbes = std::map<std::pair<int, std::string>, ProbeResults>;

struct Settings {
  Config config;
  PlatformFile platform;
  PairProbes probes;
  std::vector<int> ordered_gpus;  // GPUs that see HCA writes without a flush (CUDA told)
};

// The two ways a connection is used: NCCL's host-driven transfers, and transfers that kernels
// start.
inline constexpr Use kHostUse{Pattern::bulk, false};
inline constexpr Use kDeviceUse{Pattern::latency, true};

struct PairReport {
  int gpu = 0, hca = 0;  // indices into the machine
  Relation relation;
  std::string nccl;  // NCCL's own letter for it
  EndFacts facts;
  PlacementRecord record;
  // With a peer that is placed alike; both directions are the same then.
  Direction host, device;

  // What the decision goes by: of the data path, or what the platform file says.
  Distance distance() const { return facts.data_direct.value_or(facts.distance); }
};
// "PXB*": by the data-direct function; "PIX!": by the platform file.
std::string class_text(const PairReport& pair);

struct GpuReport {
  int gpu = 0;
  std::optional<int> hca;        // the one to use
  std::vector<HcaChoice> order;  // all, best first, those not used last
  std::vector<int> equals;       // usable HCAs of the same class as `hca`, without it
};

struct LeftOut {
  int hca = 0;
  Reason reason = Reason::none;
  std::string text;  // "management adapter: ..."
};

struct Report {
  Machine machine;
  Settings settings;
  std::vector<PairReport> pairs;  // GPU by GPU, HCAs in their order
  std::vector<GpuReport> gpus;
  std::vector<LeftOut> left_out;

  const PairReport& pair(int gpu, int hca) const;
};
Report make_report(Machine machine, Settings settings);

// One GPU here with one there, each over its best HCA.
struct PeerPair {
  int gpu = 0, peer_gpu = 0;
  std::optional<int> hca, peer_hca;
  Decision host, device;
  EndNames here, there;
};
// GPU i with the peer's GPU i; where one side has fewer, its GPUs serve again in turn.
std::vector<PeerPair> with_peer(const Report& local, const Report& peer);
// The record of a GPU over its best HCA; of an end that can do nothing when it has none.
PlacementRecord record_of(const Report& report, int gpu);

// "I4 R2 W2": the rows of the decision table that fixed a direction.
std::string rules_text(const Direction& direction);
EndNames names_of(const Report& report, int gpu, std::optional<int> hca);
// What the probe or the static hints tell about registering GPU memory.
std::string gdr_basis(const PairReport& pair);

}  // namespace twinpath::tools::topo
