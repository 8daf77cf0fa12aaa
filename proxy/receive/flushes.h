#pragma once
// The flushes of a receive comm (flush.h says what they do and why): posted at once where that is
// possible, else by their tests, over queues that are made anew after failures.
//
// Threads: under the hub's lock, but for prepare().
#include <cstdint>
#include <memory>
#include <mutex>

#include "plugin/base/clock.h"
#include "plugin/base/run_clock.h"
#include "proxy/connect/peer_link.h"
#include "proxy/connect/session_core.h"
#include "proxy/connect/watch_clock.h"
#include "proxy/receive/flush.h"
#include "proxy/receive/flush_requests.h"

namespace twinpath {

class Flushes {
 public:
  // The link outlives this.
  Flushes(ProxyRecvComm* comm, PeerLink& link, std::shared_ptr<SessionCore> core);

  // Whether there are any, as the user says.
  bool wanted() const;
  // Makes queues and room for requests, unless there are some.  Without the lock.
  Status prepare();
  // FlushRequests::rails, and a request for them; null: too many are under way.
  std::uint32_t rails(std::uint32_t carried);
  FlushRequest* take(std::uint32_t rails, const RecvBuffer& of);
  // Posts it, unless queues are being replaced: then it waits.  May leave the lock meanwhile.
  Status begin(std::unique_lock<SpinLock>& hold, FlushRequest& request);
  // Of one that is over, or could not begin.
  void give(FlushRequest& request) { request.active_ = false; }

  // Whether a completion is of a flush that is under way.
  bool knows(const ibv_wc& wc) { return find(wc) != nullptr; }
  void done(const ibv_wc& wc);
  // An adapter whose port has gone no longer reads through it, and may say so at once.
  void failed(const ibv_wc& wc);
  // Null: there are none.
  const QueueSet* queues() const { return queues_.ready() ? &queues_.queues() : nullptr; }

  // While one is tested in vain: has it posted anew if what it waits for is not told of any more.
  void watch();

  void give_up(const ProxyMemory& memory) { requests_.give_up(memory); }
  // The connection's queues were replaced: what a rail brought that is out of use now is still to
  // be flushed, by time, as nothing is read through it.  So is what comes again of messages that it
  // brought in part: until its last writes have landed, the buffers are not to be handed on.
  void queues_replaced();

 private:
  FlushRequest* find(const ibv_wc& wc);
  // Whether all of its rails in use can be read through.
  bool served(const FlushRequest& request) const;
  // Makes queues again, now and then; ok: perhaps there are some.
  Status try_again(std::unique_lock<SpinLock>& hold, const FlushRequest& request);
  Status post(FlushRequest& request);
  // A rail whose port has failed cannot be read through, which is how a flush knows that writes of
  // before have reached the GPU.  They have by then.
  std::int64_t landed_by() const;

  PeerLink& link_;
  const std::shared_ptr<SessionCore> core_;
  FlushRequests requests_;
  FlushQueues queues_;
  std::uint32_t in_use_;      // rails, as of the last replacement
  std::int64_t left_by_ = 0;  // when what came over rails that were left has landed
  bool stale_ = false;        // the queues, or their ports, failed
  std::int64_t try_at_ = 0;   // not made anew before
  RunClock mute_{kSecond};    // since when they cannot be made
  WatchClock watch_{50 * kMillisecond};
};

}  // namespace twinpath
