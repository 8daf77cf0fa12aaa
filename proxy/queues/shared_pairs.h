#pragma once
// Queue pairs that connections of one session to one peer session share, in one direction and over
// one path: adapters keep few of them at hand.
//
// Each connection, a member, has a queue pair object of ours (attach) that passes on what is posted
// to it.  So nothing above knows: what comes back has the member's own wr_id, and receives that the
// member posted are a count of those that the pairs really have.  Here is kept
//
//   sends      whose each is, and which of them the adapter tells of: a member's unsignalled ones
//              would block the queue of all
//   receives   the pairs' own, posted again as they are used; the immediate names the member
//   room       how much a member may have under way while others wait (room)
//
// Fate.  Once a pair is in error, so are all, and every member is told.  Receivers then get their
// receives back when the pairs' have come, behind all data.  Nothing here is made anew: members
// that can fail over go on over pairs of their own.  A member's number is never another's: what the
// adapter still brings for one that has closed is dropped.
//
// Threads: made and raised under a mutex of its own, by whichever member is called; all else under
// the hub's lock, but for leaving, which is any thread's.
#include <array>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "plugin/rdma/path.h"
#include "proxy/queues/completion_engine.h"
#include "proxy/queues/queue_set.h"
#include "proxy/wire/shared.h"

namespace twinpath {

class SharedPairs final : private CompletionSink {
 public:
  // Work requests of each pair, sends and, at a receiver, receives.
  static constexpr std::uint32_t kDepth = 1024;
  // What one call of a member may post: a batch of which each message takes two, its parcel, a
  // report.
  static constexpr std::uint32_t kMostChain = 40;
  // A member has so many under way at any time; more only while a quarter of the queue is free.
  static constexpr std::uint32_t kOwn = 16;
  // Bytes under way on a pair from which on nobody adds to them.
  static constexpr std::uint64_t kMostBytes = 4 << 20;

  // What posting gives where others have taken all room: to be tried again after a completion.
  static constexpr int kNoRoom = ENOBUFS;

  // `settings`: a member's; only whether it receives matters of its depths.
  static Result<std::unique_ptr<SharedPairs>> make(std::shared_ptr<CompletionHub> hub,
                                                   std::shared_ptr<Devices> devices,
                                                   const Rail& rail, QueueSettings settings,
                                                   int pairs);
  ~SharedPairs();

  // As QueueSet's, to be called by each member; whoever comes first does it.
  Status init(std::string& why);
  // The peer's pairs; false when they are others than a member has said before.
  bool learn(const std::vector<QueueAddress>& to);
  Status raise(const HelloRail& remote, std::string& why);
  std::vector<QueueAddress> addresses() const { return set_->addresses(); }
  const Queue& first() const { return set_->queues().front(); }
  std::uint32_t inline_bytes() const { return set_->least_inline(); }
  // Whether a new member may come.
  bool whole() const { return !broken_.load(std::memory_order_relaxed); }

  // The queue pair of member `number`, whose completions go to `id`.  Takes the lock.
  Owned<ibv_qp> attach(int number, CompletionHub::CommId id);

  // Whether it is one of the pairs.
  bool has(std::uint32_t qpn) const { return set_->find(qpn) != nullptr; }
  bool any_event_failed() const;
  bool any_request_refused() const { return set_->any_request_refused(); }
  // All into error; whether their adapter confirms it.
  bool halt();
  // Whether a member that left for reasons of its own did that: the path is as good as before.
  bool given_up() const { return halted_ && !failed_; }
  // Their CQ has failed: they are destroyed, and bring nothing more.
  void leave_engines();
  // Whether that queue pair of attach() may be posted one call's work requests.
  static bool room(const ibv_qp* qp);

 private:
  struct Member {
    ibv_qp qp{};
    SharedPairs* pairs = nullptr;
    int number = 0;
    CompletionHub::CommId id;
    std::uint64_t receive_id = 0;  // wr_id of its receives
    std::uint32_t receives = 0;    // posted and not given back
    std::uint32_t sends = 0;       // under way
    std::atomic<bool> left{false};
  };
  struct Sent {
    std::uint64_t wr_id;
    std::uint32_t bytes;
    std::uint8_t member;
    bool signalled;  // by the member
  };
  struct Pair {
    std::unique_ptr<Sent[]> sent;  // kDepth
    std::uint32_t head = 0, tail = 0;
    std::uint32_t unsignalled = 0;
    std::uint64_t bytes = 0;     // under way
    std::uint32_t receives = 0;  // posted and not come back
    std::uint32_t used = 0;      // receives to be posted again
    std::uint32_t under_way() const { return head - tail; }
  };

  SharedPairs(std::shared_ptr<CompletionHub> hub, bool receives)
      : hub_(std::move(hub)), receives_(receives) {}
  static Member& member_of(const ibv_qp* qp) { return *static_cast<Member*>(qp->qp_context); }
  static int post_send(ibv_qp* qp, ibv_send_wr* wr, ibv_send_wr** bad);
  static int post_recv(ibv_qp* qp, ibv_recv_wr* wr, ibv_recv_wr** bad);
  static int leave(ibv_qp* qp);
  int post(Member& member, ibv_send_wr* wr, ibv_send_wr** bad);
  ibv_qp* qp(std::size_t pair) const { return set_->queues()[pair].qp.get(); }
  std::uint64_t wr_id(WrKind kind, std::size_t pair, std::uint32_t position) const;
  int post_receives(std::size_t pair);
  void on_completion(const ibv_wc& wc) override;
  void sent(Pair& pair, const ibv_wc& wc);
  void received(std::size_t pair, const ibv_wc& wc);
  void deliver(std::uint64_t wr_id, ibv_wc wc);
  void broke(const ibv_wc& wc, int told);
  void give_back_receives();

  std::shared_ptr<CompletionHub> hub_;
  const bool receives_;
  std::unique_ptr<QueueSet> set_;
  CommPlace place_;  // given back before the pairs go
  std::vector<Pair> pairs_;
  ibv_context passing_{};  // of all members' queue pairs
  std::array<std::unique_ptr<Member>, kMostMembers> members_;
  std::atomic<bool> broken_{false};
  bool halted_ = false, confirmed_ = false;
  bool failed_ = false;  // before they were halted

  std::mutex making_;
  std::vector<QueueAddress> to_;  // under making_
  bool inited_ = false, raised_ = false;
};

}  // namespace twinpath
