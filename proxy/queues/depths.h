#pragma once
// How deep the queues of a connection are, and why that is enough.
#include "plugin/base/limits.h"
#include "plugin/rdma/staging.h"
#include "proxy/wire/cts.h"
#include "proxy/wire/parcel.h"

namespace twinpath {

// Sends that may be under way.
inline constexpr int kSendSlots = kMaxRequests * kMaxRecvs;
// Either end may ask whether the peer's adapter answers, once at a time (PeerLink).
inline constexpr int kProbeDepth = 1;
// Each has one write on a queue, and now and then one says how many cells were used.  The rest is
// for the question.
inline constexpr int kSendDepth = kSendSlots + 8;
static_assert(static_cast<int>(kCtsCells) / static_cast<int>(kUsedPeriod) + kProbeDepth <= 8);
// Where data and immediate are split (ConnectionParts::split_above) each has two.  Queues of a comm
// that stages have kStagedWrites more.
inline constexpr int kSplitWrites = kSendSlots;
// Host messages up to this travel inside the work request.
inline constexpr int kInlineData = 64;

// Send queue of a receiver, which carries cells only.  When it is full of writes whose completions
// nobody has polled, cells wait for the next poll.
inline constexpr int kCtsSignalPeriod = 32;
inline constexpr int kRecvSendDepth = 128;
inline constexpr int kInlineCts = 256;

// Receive work requests are posted again in chains of this many.
inline constexpr int kRecvChain = 32;
// Every cell may bring one immediate per queue, and up to a chain may be waiting to be reposted.
// Receives from a sender that stages have kStagedReceives more.
inline constexpr int kRecvDepth = static_cast<int>(kCtsCells) + kRecvChain;
static_assert(kStagedReceives % kRecvChain == 0);

}  // namespace twinpath
