#pragma once
// The receive queues of a connection: empty work requests, which only take immediates.
//
// Threads: under the hub's lock, or before anybody else knows the queues.
#include "proxy/queues/depths.h"
#include "proxy/queues/queue_set.h"

namespace twinpath {

// Posts kRecvChain of them on queue number `index`; 0 or an errno.
int post_receives(Queue& queue, CompletionHub::CommId id, int index);

// Fills the receive queues of a fresh set, on behalf of `id`; false (logged) when that fails.
bool prepost_receives(QueueSet& set, CompletionHub::CommId id);

}  // namespace twinpath
