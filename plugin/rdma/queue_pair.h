#pragma once
// Queue pairs and completion queues as every part of the transports makes them, and the moves of a
// queue pair from state to state.  Refusals to make one are understood, and what cannot be made is
// said once, with object, reason and remedy; what to say of a move is the caller's.
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

// The moves, each 0 or an error as move_pair() gives it.  `reads`: READs and atomics of this end
// that may be under way; path_attributes() allows the peer one unless the caller changes that.
int move_to_init(const Verbs& verbs, ibv_qp* qp, const Rail& rail, const QueueSettings& settings);
int move_to_rtr(const Verbs& verbs, ibv_qp* qp, ibv_qp_attr path);
int move_to_rts(const Verbs& verbs, ibv_qp* qp, const QueueSettings& settings, std::uint32_t psn,
                std::uint8_t reads);
int move_to_error(const Verbs& verbs, ibv_qp* qp);

// Without a channel.  `owner`: who asks whether it has failed (AsyncEvents::completions_failed).
Result<Owned<ibv_cq>> make_completion_queue(const Verbs& verbs, ibv_context* context,
                                            std::size_t entries, const void* owner);

}  // namespace twinpath
