#pragma once
// Where this process's GPUs and HCAs sit, as connections use it: one placement record per
// connection, what a peer's decision says, and whether GPU memory may be offered to NCCL at all.
//
// The machine is read once, when the transport is opened.  Probes are made where a GPU is first
// seen with an HCA: in device properties, which NCCL asks for while it initialises.
//
// Threads: any; only the probe cache changes, under its own locks.
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "plugin/base/config.h"
#include "plugin/fabric/fabric.h"
#include "topology/decide/decision.h"
#include "topology/decide/overrides.h"
#include "topology/model/machine.h"
#include "topology/probe/probe.h"

namespace twinpath {

// What a Placement is made from; tests bring their own.
struct PlacementSource {
  Machine machine;
  PlatformFile platform;
  // The GPU of the calling thread, as CUDA counts; nullopt: none.
  std::function<std::optional<int>()> current_gpu;
  ProbeSteps probes;
  bool gpu_ordered = false;  // HCA writes are visible to the GPUs without a flush
};

// This machine (or the one of TWINPATH_TOPOLOGY), with the GPUs of the CUDA driver and the soft
// HCAs at their places, and the data-direct functions of the fabric's ports.  What cannot be read
// is logged and leaves distances unknown.
PlacementSource live_placement(const Config& config, const Fabric& fabric);

class Placement {
 public:
  Placement(PlacementSource source, const Config& config);

  struct End {
    PlacementRecord record;
    EndNames names;
  };
  // This end of a connection over those ports, for the GPU of the calling thread.  Of several
  // rails the one counts that may do least: their common plan must hold on each.
  End end(std::span<const Port* const> ports);

  // Why no HCA of these ports may reach the calling thread's GPU: nothing registers its memory;
  // empty when something does, or nobody could try.
  std::string refusal(std::span<const Port* const> ports);

  // The ports nearest to the calling thread's GPU, as indices: messages that are not cut over all
  // rails keep to them.  All of them where distances are equal or unknown.
  std::vector<int> nearest(std::span<const Port* const> ports);

  // Which of `others` may stand in for that port, as indices, the best first: those of half its
  // speed or more before slower ones, then the nearest; in their order where distances are equal or
  // unknown.  None of an adapter that manages the host.
  std::vector<int> in_reserve(const Port& of, std::span<const Port* const> others) const;

 private:
  const Gpu* gpu(std::optional<int> ordinal) const;
  EndFacts facts(std::optional<int> ordinal, const Port& port);

  PlacementSource source_;
  const Config config_;
  ProbeCache probes_;
};

}  // namespace twinpath
