#pragma once
// The sending end of a connection: finds the clear-to-send cell for a message and writes the
// message to where the cell says.
//
// When it leaves.  A message goes out in its isend, unless it waits for company (coalescer.h) or is
// copied to host memory first.  Waiting ends after kPatience polls of the session, and at the
// latest after kHoldBoundUs, by the session's thread.  Nobody has to call this comm for it.
//
// Order.  No message depends on another: each has a cell, a place and a notice of its own, so they
// may take any queue and overtake each other.  Within a message, pieces are counted.
//
// Threads: isend and tests from one thread at a time; all state is under the hub's lock because
// any comm that polls a shared CQ, and the session's thread, may deliver our completions.  But for
// the test of a request that is done: SendRequest::pending() says so without the lock, and which
// requests are free is the caller's own affair.  Registration: any thread.
#include <algorithm>
#include <memory>
#include <mutex>

#include "proxy/connect/connection_parts.h"
#include "proxy/connect/session_core.h"
#include "proxy/send/coalescer.h"
#include "proxy/send/cts_ring.h"
#include "proxy/send/kept_cells.h"
#include "proxy/send/parcel_blocks.h"
#include "proxy/send/send_queues.h"
#include "proxy/send/send_requests.h"
#include "proxy/send/send_rules.h"
#include "proxy/send/send_trace.h"
#include "proxy/send/staged_send.h"

namespace twinpath {

inline constexpr const char* kSentMemoryGone =
    "a message is to be sent again whose memory was deregistered meanwhile";

class ProxySendComm final : public SendComm,
                            private CompletionSink,
                            private HeldWork,
                            private FailoverComm,
                            private MemoryUser {
 public:
  ProxySendComm(std::shared_ptr<SessionCore> core, int device, ConnectionParts parts);
  // What was accepted goes out first, as far as that takes a moment.
  ~ProxySendComm() override;

  Status isend(void* data, std::size_t bytes, int tag, Memory* memory, Request** request) override;
  void watch_next() override;
  Result<Memory*> register_memory(void* data, std::size_t bytes, MemoryType type,
                                  std::uint64_t dmabuf_offset, int dmabuf_fd) override;
  Status deregister_memory(Memory* memory) override;

 private:
  friend class SendRequest;
  // --- isend.cc, top down; send_next(), join() and answer() are entered with the lock and leave it
  TP_APART Status isend_any(void* data, std::size_t bytes, int tag, const ProxyMemory* memory,
                            Request** request);
  TP_APART Status send_next(void* data, std::size_t bytes, int tag, const ProxyMemory* memory,
                            Request** request);
  TP_APART Status join(void* data, std::size_t bytes, int tag, const ProxyMemory* memory,
                       Request** request);
  TP_APART Status answer(void* data, std::size_t bytes, int tag, const ProxyMemory* memory,
                         Request** request);
  // Does the last thing of a call that holds the lock.
  template <Status (ProxySendComm::*last)()>
  TP_APART Status leave_by() {
    std::lock_guard hold(hub_->lock, std::adopt_lock);
    return (this->*last)();
  }
  TP_APART Status no_cell_yet();
  void warn_truncated(std::size_t sent, std::size_t posted);
  Status send_now(SendRequest& r, const Outgoing& m);
  Status gather(SendRequest& r, const Outgoing& m);
  TP_APART Status post_batch();
  SendRequest* member(const void* data, std::size_t bytes, int tag, const ProxyMemory* memory);
  bool begin_group(std::size_t bytes);
  Status post_group();
  // Nothing more is added to it: members that were sent are a batch.
  TP_APART void end_group();

  // --- what becomes of it
  // Of one that was not done: polls.
  TP_APART Status test_pending(SendRequest& request, int& done, int* sizes);
  // A call could achieve nothing, with `more` requests beside those accepted.
  [[gnu::noinline]] void in_vain(int more);
  void on_completion(const ibv_wc& wc) override;
  TP_APART void on_other(const ibv_wc& wc);
  TP_APART void special_arrived(SendRequest& last, const ibv_wc& wc);
  bool post_held(bool overdue) override;
  Status tell_used();
  // What queues_ was last asked to post.
  TP_APART Status post_failed();
  // From which message on they take answer(): one is to be timed, the receiver is to be told, or
  // the next is watched.
  void set_slow_from() {
    slow_from_ = trace_.watches_next() || queues_.shared()
                     ? 0
                     : std::min(ring_.report().due_at() - 1, trace_.none_before());
  }
  void choose_queues();
  void give_up(const ProxyMemory& memory) override;

  // --- through host memory (staged_send.cc): the copies are started at once, and each poll of the
  // session posts what has been copied.
  void send_staged(SendRequest& request, const Outgoing& m);
  void start_copies();
  void post_staged();
  Status post_copied(const StagedSends::Piece& piece);

  // --- when queues are replaced (send_failover.cc)
  AtRisk at_risk() override { return requests_.at_risk(); }
  HeldState held() override;
  Status reach(FencedNote& note, std::string& why) override;
  int resume(const FencedNote& theirs) override;
  int post_staged_again();
  Status send_again(SendRequest& request);
  std::uint64_t progress() override;

  // What each isend looks at.
  CompletionHub* const hub_;
  CtsRing ring_;
  std::uint64_t slow_from_ = 0;
  const SendRules rules_;
  SendRequests requests_;
  Coalescer coalescer_;
  SendQueues queues_;
  SendTrace trace_;
  ParcelBlocks blocks_;

  std::shared_ptr<SessionCore> core_;
  std::unique_ptr<RegisteredBuffer> ring_memory_;
  std::unique_ptr<PeerLink> link_;
  KeptCells kept_;
  std::unique_ptr<StagedSends> staged_;  // made with the first memory to be staged
  bool warned_truncated_ = false;
};

}  // namespace twinpath
