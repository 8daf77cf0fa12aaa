#pragma once
// What the parts of one GIN comm share.  Each context holds it, so that it outlives them all.
//
// Threads: made by connect; afterwards only `keys`, `flush_sources` and `contexts` change, by the
// comm's callers (one at a time); the engine's thread looks keys up.
#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "gda/memory/device_memory.h"
#include "gda/served/front/key_table.h"
#include "gda/team/engine.h"
#include "gda/team/team_core.h"

namespace twinpath::gda {

struct AdapterSide;
class ServedContext;

// How the queues to one rank are served; see modes.h.
struct PeerPlan {
  ModeChoice mode = ModeChoice::proxy;  // stage is never one
  bool counted = false;                 // signals without atomics: counted_signals.h
  std::string why;
};

struct GinCore : TeamCore {
  explicit GinCore(int ranks) : TeamCore("GIN"), keys(ranks) {}
  ~GinCore() override;

  std::vector<PeerPlan> plans;  // by rank
  // Set: the adapter serves the queues of all contexts, and windows have the fabric's keys.
  std::shared_ptr<AdapterSide> adapter;
  BellChoice bells = BellChoice::automatic;  // who rings it: the GPU where it can, or the CPU
  KeyTable keys;
  bool signals_in_host = false, told_of_signals = false;  // gpu_signals.h
  std::shared_ptr<Engine> engine;
  std::vector<ServedContext*> contexts;
  // Handles of windows that were closed, all of one size: the next window takes one.  Freeing
  // waits for kernels, and NCCL's abort closes windows before it lets us let kernels go.
  std::vector<std::unique_ptr<DeviceBlock>> spare_handles;

  // Whether signals of any rank are; then this holds at all ranks (counted_peers).
  bool counted() const {
    return std::any_of(plans.begin(), plans.end(), [](const PeerPlan& p) { return p.counted; });
  }
  // What the engine has looked up before is posted after it.
  void pass_round() { engine->pass_round(); }

 private:
  void warn_of_lost_port(const std::string& why) const override;
};

}  // namespace twinpath::gda
