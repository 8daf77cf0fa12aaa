#pragma once
// Enhanced connection establishment: what two adapters of one vendor may do beyond the standard on
// a queue pair (how they recover lost packets, say), agreed on while it is made.  In this order:
//
//   connector  offer_extras   in INIT: what its adapter would use; goes with the queues
//   acceptor   take_extras    in INIT: tells its adapter, which settles it in RTR
//              agreed_extras  in RTS: what came of it; goes back with the queues
//   connector  use_extras     in INIT: tells its adapter
//
// A queue pair that takes the place of another (QueueSet::remake) between the same two adapters has
// what that one had: each end tells its adapter the same again in INIT (renew_extras), and nothing
// is asked.  Queues in reserve have none, as nobody offered any for them.
//
// An adapter, a library or a peer without it leaves the connection as the standard has it.
// Threads: as QueueSet.
#include "proxy/queues/queue_set.h"

namespace twinpath {

// One per queue, or none at all.
std::vector<QueueExtras> offer_extras(QueueSet& set);
// How many queues' adapters took what was offered; the others will say so in agreed_extras().
void take_extras(QueueSet& set, const std::vector<QueueExtras>& offered);
// `offered` as it came; none at all when no queue has any.
std::vector<QueueExtras> agreed_extras(QueueSet& set, const std::vector<QueueExtras>& offered);
// An adapter that refuses what the other end has in use already ends the connection: the two would
// speak differently.  `why` names the port, the error and what to do.
Status use_extras(QueueSet& set, const std::vector<QueueExtras>& agreed, std::string& why);
// Of queues that were made anew.  An adapter that refuses what it had in use would be spoken to
// otherwise than it speaks: `failed` has its queues, `why` says so.
Status renew_extras(QueueSet& set, QueueMask& failed, std::string& why);

}  // namespace twinpath
