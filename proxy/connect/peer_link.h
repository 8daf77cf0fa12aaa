#pragma once
// What a send comm and a receive comm have in common: the queues, the control socket that shows
// whether the peer lives, and the one place where a connection becomes broken.
//
// While somebody waits for the peer, its socket is looked at now and then.  Its end is the link's
// end.  Silence of the socket alone is not (plugin/base/peer_watch.h): in doubt the peer's adapter
// is asked by a write of no bytes, which needs nothing of the peer's process and is acknowledged by
// an adapter that still has the queue.  Where it is not, the adapter's retries end the link, or the
// limit does.
//
// A broken link stays broken; the reason is logged once, with both ends' names.
// Threads: all but construction and destruction under the hub's lock.
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "plugin/base/clock.h"
#include "plugin/base/counter_page.h"
#include "plugin/base/peer_watch.h"
#include "plugin/base/run_clock.h"
#include "proxy/connect/control_channel.h"
#include "proxy/connect/failover.h"
#include "proxy/connect/link_text.h"
#include "proxy/connect/path_errors.h"
#include "proxy/connect/peer_probes.h"
#include "proxy/connect/wait_clock.h"
#include "proxy/connect/watch_clock.h"
#include "proxy/queues/queue_set.h"

namespace twinpath {

// What a comm waits for.
struct Waiting {
  int requests = 0;
  std::uint64_t progress = 0;  // another number after data moved
  void add(std::uint64_t count) { progress = (progress ^ count) * 0x100000001b3u; }
};

class PeerLink final : private FailureListener, private Watched {
 public:
  // `fails_over`: else queues that fail end the link (one path, or either end cannot fail over).
  PeerLink(std::unique_ptr<QueueSet> queues, CommPlace place, TcpSocket socket, PeerName peer,
           const PeerMemory& memory, ConnectionCounts counts, bool fails_over);
  // Says goodbye if the socket takes it, destroys the queues, closes; never waits.
  ~PeerLink();
  PeerLink(const PeerLink&) = delete;
  PeerLink& operator=(const PeerLink&) = delete;

  QueueSet& set() { return *queues_; }
  const QueueSet& set() const { return *queues_; }
  Queue& queue(int q) { return queues_->queues()[static_cast<std::size_t>(q)]; }
  // What the connection's work requests name, so that their completions find it.
  CompletionHub::CommId comm_id() const { return place_.id(); }
  int queue_count() const { return static_cast<int>(queues_->queues().size()); }
  CompletionHub& hub() { return queues_->hub(); }
  const PeerName& peer() const { return peer_; }
  bool broken() const { return broken_; }
  // Broken, or its queues are being replaced: nothing may be posted.
  bool halted() const { return halted_; }
  // From when the comm exists until it closes (null).  Without the lock.
  void serve(FailoverComm* comm);
  // Whether it survives the failure of a queue, and of that kind.
  bool can_fail_over() const { return failover_ != nullptr; }
  bool excuses(const ibv_wc& wc);
  // Whether there are queues in reserve, over other ports than the device's.
  bool has_reserve() const { return can_fail_over() && set().regular() != set().all(); }
  // The key that queue q knows the peer's memory by.
  std::uint32_t rkey(const Queue& q) const { return probes_.rkey(q); }
  // Says it with the peer's name, and whether aloud: as one of many that meet the same fate at a
  // time it is not, unless it must.
  bool tell(const std::string& text, std::size_t topic = 0, bool must = false);
  // As long as the link.
  counters::Connection* counts() const { return counts_.get(); }

  // Takes waiting completions of all engines in use, one batch each; a queue that cannot be read
  // breaks the link.  How many there were.
  int poll() {
    if (only_ != nullptr) [[likely]] {
      hub().begin_polls();
      if (const int n = hub().poll(*only_); n >= 0) [[likely]]
        return n;
    }
    return poll(*queues_);
  }
  int poll(const QueueSet& queues);
  // To be called for each call that had to answer "not yet".  Every now and then (100 ms) it looks
  // at the peer and the devices, and may break the link.
  // `waiting()`: for what.  `moved` and `cause`: as WaitClock has them.
  template <class Cause, class Wait>
  void waited(std::uint64_t moved, Cause&& cause, Wait&& waiting) {
    if constexpr (counters::kConnectionCounts)
      wait_clock_.look(*counts_.get(), moved, cause, [&] { return waiting().requests; });
    if (!watch_clock_.call()) return;
    const std::int64_t now = now_ns();
    if (watch_clock_.due(now) && !broken_) watch(now, waiting());
  }
  // The peer's adapter has acknowledged our question.
  void answered(const ibv_wc& wc);

  // Before a comm closes: polls while `busy()` says that what was accepted is not done, as long as
  // the peer is there and something moves.  Not for longer than 100 ms, and no longer than 20 ms
  // beyond the last completion: a peer that does nothing is not waited for, and many such peers not
  // one after the other (quiet_budget.h).  Takes the lock.
  template <class Busy>
  void drain(Busy&& busy) {
    DrainClock clock;
    for (bool again = true; again;) {
      {
        std::lock_guard hold(hub().lock);
        if (broken_ || left_at_ != 0 || !busy()) return;
        const bool moved = poll() > 0;
        const std::int64_t now = now_ns();
        again = clock.go_on(now, moved, hub().closing);
        if (clock.look(now)) read_words(now);
      }
      if (again) std::this_thread::yield();
    }
  }

  // Break the link; only the first reason is logged.  Both ends' ports and GIDs are added to the
  // text, so `format` says cause and remedy only.
  void fail(const char* format, ...) __attribute__((format(printf, 2, 3)));
  void fail_completion(const WrId& id, const ibv_wc& wc);
  // Of a queue to ourselves (a flush).
  void fail_local_completion(const WrId& id, const ibv_wc& wc, const QueueSet& queues);

 private:
  static constexpr std::int64_t kWatchPeriod = 100'000'000;     // ns
  static constexpr std::int64_t kCloseWatch = 50'000'000;       // of one that can fail over
  static constexpr std::int64_t kGoodbyeGrace = 1'000'000'000;  // ns
  // While requests wait the peer's host is asked every second whether it is there.
  static constexpr std::int64_t kAskEvery = 1'000'000'000;  // ns
  static constexpr std::int64_t kQuietMs = 2500;
  void watch(std::int64_t now, Waiting waiting);
  void watch_socket(std::int64_t now, Waiting waiting);
  bool queue_failed(const Queue& queue);
  std::int64_t attend(std::int64_t now) override;
  // --- for its failover
  friend class Failover;
  void stopped(bool stopped);
  ControlChannel& control() { return control_; }
  const PeerProbes& probes() const { return probes_; }
  void exchange_words(std::int64_t now);
  void call_again() { hub().thread().call(*this); }
  bool starts_failover(const WrId& id, const ibv_wc& wc, const Queue& queue);
  void lost(const std::string& text);
  // For the sake of the peer's process, which others may have connections to, too.
  void lost_with_peer(const std::string& text);
  void break_link();
  // What the peer said last: left_at_ is set, or the link is broken.
  void read_words(std::int64_t now);
  // Empty, or why the peer says that nothing will come of it.
  std::string hear(std::int64_t now);
  void sibling_failed() override;

  ConnectionCounts counts_;
  WaitClock wait_clock_;
  ControlChannel control_;
  std::unique_ptr<QueueSet> queues_;
  CommPlace place_;                   // given back before the queues go
  CompletionEngine* only_ = nullptr;  // where there is no more than one
  PeerName peer_;
  PeerWatch watch_;
  std::unique_ptr<Failover> failover_;  // null: there is none
  PeerProbes probes_;                   // one at a time where there is no failover
  PathErrors errors_;
  bool broken_ = false;
  bool lost_with_peer_ = false;
  bool told_failure_ = false;  // of another connection
  bool halted_ = false;
  WatchClock watch_clock_;
  std::int64_t left_at_ = 0;         // when the peer said goodbye
  RunClock gone_{2 * kWatchPeriod};  // looked at since then
};

// A registration that was just made, or an error: while a queue in reserve serves, its rail must
// have the memory, too.  Takes the lock.
Result<Memory*> if_reached(PeerLink& link, Result<Memory*> made);

// Says that a rail brings through less than its port's speed promises, or no longer does; how much
// of each message it now gets.
void tell_pace(PeerLink& link, int rail, int remote_rail, bool slow, std::uint32_t permille);

}  // namespace twinpath
