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
#include "plugin/gpu/gdrcopy.h"
#include "tools/topo/job_facts.h"
#include "topology/decide/decision.h"
#include "topology/decide/hca_order.h"
#include "topology/decide/overrides.h"
#include "topology/decide/policy.h"
#include "topology/model/distance_rule.h"
#include "topology/model/machine.h"

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

// What this version does, and the decision that it makes: of the facts that it uses.
struct Outcome {
  std::optional<Mode> mode;      // nullopt: nothing
  Reason reason = Reason::none;  // why it is not what the hardware allows; none: it is
  Direction by;
};

struct PairReport {
  int gpu = 0, hca = 0;  // indices into the machine
  Relation relation;
  std::string nccl;  // NCCL's own letter for it
  EndFacts facts;
  PlacementRecord record;  // of what the hardware allows
  PlacementRecord built;   // of what this version uses
  // With a peer that is placed alike; both directions are the same then.  What the hardware allows,
  // and what this version does of it.
  Direction host, device;
  Outcome host_runs, device_runs;

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
  std::optional<JobFacts> job;           // of this node, where it was asked for
  std::optional<gpu::GdrState> gdrcopy;  // likewise

  const PairReport& pair(int gpu, int hca) const;
};
Report make_report(Machine machine, Settings settings);

struct Runs {
  Outcome send, recv;
};
struct Records {
  PlacementRecord hardware, built;
};
// One GPU here with one there, each over an HCA.
struct PeerPair {
  int gpu = 0, peer_gpu = 0;
  std::optional<int> hca, peer_hca;
  Records theirs;  // of another host than ours
  Decision host, device;
  Runs host_runs, device_runs;
  EndNames here, there;
};
// GPU i with the peer's GPU i; where one side has fewer, its GPUs serve again in turn.
std::vector<PeerPair> with_peer(const Report& local, const Report& peer);
// One GPU here over that HCA with one GPU of the peer over its best HCA.
PeerPair pair_with(const Report& local, int gpu, std::optional<int> hca, const Report& peer,
                   int peer_gpu);
// The records of a GPU over an HCA; of an end that can do nothing without one.
Records records_of(const Report& report, int gpu, std::optional<int> hca);

// Whether this version serves GPUs of its vendor.
bool served(const Gpu& gpu);
// Why this version does nothing with that pair, whatever the hardware allows; none: it does.  A GPU
// without a usable HCA gives the reason of the first HCA that is left out.
Reason unserved(const Report& report, int gpu, std::optional<int> hca);
// "PROXY-GDR (I4 R2 W2)", "PROXY-GDR (NOT_ASKED)", "none (HCA_TRANSPORT)".
std::string runs_text(const Outcome& runs);

// "I4 R2 W2": the rows of the decision table that fixed a direction.
std::string rules_text(const Direction& direction);
EndNames names_of(const Report& report, int gpu, std::optional<int> hca);
// What the probe or the static hints tell about registering GPU memory.
std::string gdr_basis(const PairReport& pair);

}  // namespace twinpath::tools::topo
