#pragma once
// What the parts of one GIN comm share.  Each context holds it, so that it outlives them all.
//
// Threads: made by connect; afterwards only `keys`, `flush_sources` and `contexts` change, by the
// comm's callers (one at a time); the engine's thread looks keys up.
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "gda/connect/mesh.h"
#include "gda/connect/queue_pair.h"
#include "gda/front/engine.h"
#include "gda/front/key_table.h"
#include "gda/memory/device_memory.h"
#include "gda/team/flush_sources.h"
#include "gda/team/port_watch.h"
#include "gda/team/second_port.h"
#include "plugin/rdma/devices.h"
#include "plugin/transport.h"

namespace twinpath::gda {

struct AdapterSide;
class Context;

// How the queues to one rank are served; see modes.h.
struct PeerPlan {
  ModeChoice mode = ModeChoice::proxy;  // stage is never one
  bool counted = false;                 // signals without atomics: counted_signals.h
  bool atomics = true;                  // both ends have them, for words of windows
  std::string why;
};

struct GinCore {
  explicit GinCore(int ranks) : keys(ranks) {}
  ~GinCore();

  std::shared_ptr<Devices> devices;  // first: what is made on its adapters goes before it
  Rail rail;                         // one of the device's: rail_turns.h
  AdapterLimits limits;
  CommSettings settings;
  int gpu = -1;  // CUDA ordinal; -1: CPU threads play the GPU
  std::unique_ptr<Mesh> mesh;
  std::optional<PortWatch> port;       // the engine's
  std::unique_ptr<SecondPort> second;  // null: there is none to move to
  std::vector<PeerPlan> plans;         // by rank
  // Set: the adapter serves the queues of all contexts, and windows have the fabric's keys.
  std::shared_ptr<AdapterSide> adapter;
  BellChoice bells = BellChoice::automatic;  // who rings it: the GPU where it can, or the CPU
  KeyTable keys;
  FlushSources flush_sources;
  bool signals_in_host = false, told_of_signals = false;  // gpu_signals.h
  std::shared_ptr<Engine> engine;
  std::vector<Context*> contexts;
  // Handles of windows that were closed, all of one size: the next window takes one.  Freeing
  // waits for kernels, and NCCL's abort closes windows before it lets us let kernels go.
  std::vector<std::unique_ptr<DeviceBlock>> spare_handles;

  // Whether the team's port is lost: then it is told here, and to all other ranks.  The engine's.
  bool lost_port(std::int64_t now) { return lost(*port, now); }
  bool lost(PortWatch& watched, std::int64_t now);

  const Config& config() const { return devices->config(); }
  const Verbs& verbs() const { return devices->verbs(); }
  int rank() const { return mesh->rank(); }
  int ranks() const { return mesh->ranks(); }
};

// What the rail's adapter can, and may be used for (TWINPATH_GIN_ATOMICS).
Result<AdapterLimits> usable_limits(const Devices& devices, const Rail& rail);

// A collective step in which each rank also says whether it got this far: when one did not, all
// fail, at once and naming it, instead of waiting until time is up.  `mine` is what this rank has
// for all, or its failure.
Result<std::vector<std::vector<std::uint8_t>>> gather_or_fail(
    Mesh& mesh, const Result<std::vector<std::uint8_t>>& mine, const char* what);
// The same with a piece for each rank.
Result<std::vector<std::vector<std::uint8_t>>> exchange_or_fail(
    Mesh& mesh, const Result<std::vector<std::vector<std::uint8_t>>>& mine, const char* what);

}  // namespace twinpath::gda
