#pragma once
// Queue pairs and completion queues as every part of the transports makes them: refusals are
// understood, and what cannot be made is said once, with object, reason and remedy.
//
// Threads: any.
#include <cstdint>

#include "plugin/base/owned.h"
#include "plugin/rdma/path.h"

namespace twinpath {

// How much inline data to ask for after `refused` bytes were; 0 at the end.  Pure.  Adapters differ
// in how much they take, and say so only by refusing: bnxt_re takes 96, erdma 96, irdma 48 to 216.
int less_inline(int refused);

// An RC queue pair of the wanted depths, one piece a work request.  `inline_bytes`: what was
// granted of those that the settings want; 0 where the port takes none (Port::inline_data).
Result<Owned<ibv_qp>> make_queue_pair(const Verbs& verbs, const RailPort& port, ibv_cq* cq,
                                      const QueueSettings& settings, std::uint32_t& inline_bytes);

// Without a channel.
Result<Owned<ibv_cq>> make_completion_queue(const Verbs& verbs, ibv_context* context,
                                            std::size_t entries);

}  // namespace twinpath
