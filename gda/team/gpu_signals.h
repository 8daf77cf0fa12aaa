#pragma once
// Where the signals of a context that we serve lie when adapters add to them: in GPU memory, for
// there the data lies.  An adapter writes data, then the signal; behind PCIe the two are in order
// if they go to one place, so a kernel that sees the signal sees the data.  (The registration is
// without relaxed ordering: then the signal does not pass data that was, either.)  In host memory
// the signal might be seen first, and nobody stands between the adapter and the kernel who could
// wait for the data.
//
// In host memory they lie, as part of ContextMemory's tables,
//   - without a GPU: data is in the host's memory, too;
//   - on adapters that place in order whatever the memory (Verbs::ordered: the soft HCA), where
//     other processes of the host also map them;
//   - counted (counted_signals.h): a CPU adds to them, and has the data pushed before that;
//   - where GPU memory of ours cannot be registered.  Then windows there cannot either, mostly; if
//     they can, a warning says what may happen (warn_of_host_signals).
//
// Threads: setup.
#include <infiniband/verbs.h>

#include <cstdint>
#include <memory>

#include "gda/memory/device_memory.h"
#include "gda/team/gin_core.h"
#include "plugin/base/owned.h"

namespace twinpath::gda {

struct GpuSignals {
  std::unique_ptr<DeviceBlock> block;  // null: they lie in host memory
  Owned<ibv_mr> mr;                    // addresses are those of the block
};

// What is right for this team, `bytes` of it.  Fails when there is no memory.
Result<GpuSignals> place_signals(GinCore& core, std::uint64_t bytes);

// Once a team, when its signals lie in host memory for want of a registration, adapters add to
// them, and a window is GPU memory.
void warn_of_host_signals(GinCore& core);

}  // namespace twinpath::gda
