#pragma once
// How deep the queues of a connection are, and why that is enough.
#include "plugin/base/limits.h"
#include "proxy/memory/staging.h"
#include "proxy/wire/cts.h"

namespace twinpath {

// Sends that may be under way; each has at most one write on a queue, so this is also the depth
// of the send queues (those of a comm that stages have kStagedWrites more).
inline constexpr int kSendSlots = kMaxRequests * kMaxRecvs;
// Host messages up to this travel inside the work request.
inline constexpr int kInlineData = 64;

inline constexpr int kRecvSendDepth = 128;  // send queue of a receiver; carries cells only
inline constexpr int kInlineCts = 256;

// Receive work requests are posted again in chains of this many.
inline constexpr int kRecvChain = 32;
// Every cell may bring one immediate per queue, and up to a chain may be waiting to be reposted.
// Receives from a sender that stages have kStagedReceives more.
inline constexpr int kRecvDepth = static_cast<int>(kCtsCells) + kRecvChain;
static_assert(kStagedReceives % kRecvChain == 0);

}  // namespace twinpath
