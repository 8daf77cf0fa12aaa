#pragma once
// Completions of one session.  A CompletionEngine is one CQ of one device; all comms of the
// session that use the device share it, and whoever polls it serves them all.  The
// CompletionHub holds the session's engines, the table of comms that completions go to, and the
// one lock of the data path.
//
// Who makes progress: whoever calls.  Each poll serves all comms that share the CQ and then
// whatever any comm of the session holds back.  Should nobody call, the session's thread does
// (session_thread.h); it sleeps while nothing is held.
//
// Threads: isend, irecv, iflush and test take `lock` once per call; NCCL has one progress thread
// per session, so it is nearly always free.  Everything that a completion changes is guarded by
// it.  make/drop functions take `setup_`, which may be taken while `lock` is held; never the other
// way round.
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "plugin/base/limits.h"
#include "plugin/base/owned.h"
#include "plugin/base/status.h"
#include "plugin/base/sync.h"
#include "plugin/fabric/verbs.h"
#include "proxy/queues/loss_log.h"
#include "proxy/queues/parcel_pool.h"
#include "proxy/queues/queue_grave.h"
#include "proxy/queues/quiet_budget.h"
#include "proxy/queues/session_thread.h"
#include "proxy/wire/wr_id.h"

namespace twinpath {

class CompletionSink {
 public:
  // The hub's lock is held.  After a failed completion only wr_id, status, qp_num and vendor_err
  // of `wc` mean anything.
  virtual void on_completion(const ibv_wc& wc) = 0;

 protected:
  ~CompletionSink() = default;
};

// A connection that tells its peer when another connection of the same communicator breaks: a
// communicator that lost one rank cannot go on, and a rank that is no neighbour of the lost one
// would otherwise wait until its own neighbours have been torn down (seconds).
class FailureListener {
 public:
  virtual void sibling_failed() = 0;

 protected:
  ~FailureListener() = default;
};

// Work that a comm holds back: behind a write that is under way, to go out with what comes next, or
// until a copy has ended.
class HeldWork {
 public:
  // The hub's lock is held.  Called at each poll of the session, whoever polls, and with `overdue`
  // when the bound on holding has passed: then everything goes that can.  Whether something is
  // still held.
  virtual bool post_held(bool overdue) = 0;

 protected:
  ~HeldWork() = default;

 private:
  friend class CompletionHub;
  HeldWork* next_held_ = nullptr;
  bool held_ = false;
};

class CompletionEngine {
 public:
  explicit CompletionEngine(Adapter& adapter) : adapter_(adapter) {}
  ibv_cq* cq() const { return cq_.get(); }
  const char* device() const;  // for messages
  // Whether the adapter has told that the CQ failed: it brings nothing more.  A system call.
  bool failed() const;

 private:
  friend class CompletionHub;
  Adapter& adapter_;
  Owned<ibv_cq> cq_;
  int capacity_ = 0;
  int reserved_ = 0;
};

class CompletionHub {
 public:
  // A place in the table of comms.  Freed by drop_comm; CommPlace below owns one.
  struct CommId {
    std::uint16_t index = 0;
    std::uint16_t epoch = 0;
  };

  // `one_communicator`: everything here belongs to one communicator, so its failures may be
  // passed on.  The session that serves callers without a context is shared by all of them.
  explicit CompletionHub(const Verbs& verbs, bool one_communicator = true)
      : verbs_(verbs),
        one_communicator_(one_communicator),
        thread_(lock, [this] { return take_turn(); }) {}
  CompletionHub(const CompletionHub&) = delete;
  CompletionHub& operator=(const CompletionHub&) = delete;

  // Taken by callers of everything marked "locked".
  SpinLock lock;

  // Locked.
  QuietBudget closing;
  LossLog losses;

  Result<CommId> add_comm();
  void attach(CommId id, CompletionSink* sink);
  void drop_comm(CommId id);

  void listen(FailureListener* listener);
  void unlisten(FailureListener* listener);
  // Locked: tells all others.
  void announce_failure(const FailureListener* failed);

  // An engine on that device with room for `entries` more completions: an existing one or, as
  // CQs cannot grow, a new one of twice the size.  The adapter outlives the hub.
  Result<CompletionEngine*> reserve(Adapter& adapter, int entries);
  // The same, locked: callers wait while an adapter makes a queue.
  Result<CompletionEngine*> reserve_locked(Adapter& adapter, int entries);
  void release(CompletionEngine* engine, int entries);
  // A halted queue pair that is out of use, and its share.  Any thread, locked or not.
  void bury(Owned<ibv_qp> qp, CompletionEngine* engine, int entries) {
    grave_.bury(std::move(qp), engine, entries);
  }
  // Of that adapter; null when there can be none.
  ParcelPool* parcel_pool(const Adapter& adapter);

  // Watches connections, too.
  SessionThread& thread() { return thread_; }

  // Locked: has `work` asked at each poll, whoever polls, and by the session's thread within
  // kHoldBound if nobody does.  drop_held before it is destroyed.
  void hold(HeldWork& work) {
    if (work.held_) return;
    work.held_ = true;
    work.next_held_ = first_held_;
    first_held_ = &work;
    thread_.wake();
  }
  void drop_held(HeldWork& work);

  // Locked: a call begins that polls one engine or several.
  void begin_polls() { ++polls_; }
  // Locked: which call polls, from 1 on.
  std::uint64_t polls() const { return polls_; }
  // Locked: takes up to kPollBatch completions and hands them out, then asks those that hold
  // something whether they let it go.  Returns how many completions there were, or the provider's
  // negative number when the queue cannot be read any more.
  int poll(CompletionEngine& engine);
  // Locked: the first half of that, for those who hold something.
  int take(CompletionEngine& engine);
  // Locked: hands one out to whom its wr_id names, if he is there.
  void deliver(const ibv_wc& wc);
  // Locked: the engine whose completions are being handed out.  QP numbers are each device's own,
  // so a completion's number means nothing without it.
  const CompletionEngine* polled() const { return polled_; }
  static constexpr int kPollBatch = 32;

  // Locked: whether a second has passed since this last said so of the topic (0: paths that fail
  // and come back; 1 + 2 r: rail r turns out to be slow; 2 + 2 r: no longer).  `now` in ns.
  static constexpr std::size_t kTopics = 1 + 2 * std::size_t{kMaxRails};
  bool time_to_tell(std::size_t topic, std::int64_t now) {
    std::int64_t& told = told_at_[topic];
    if (told != 0 && now - told < 1'000'000'000) return false;
    told = now;
    return true;
  }

 private:
  struct Place {
    CompletionSink* sink = nullptr;
    std::uint16_t epoch = 0;
    bool used = false;
  };
  // A turn of the thread: if something is held, polls for those who do not and lets it go.  Whether
  // anything was held.
  bool take_turn();
  void post_held(bool overdue);
  // What poll() and take() do.  Part of both, for poll() is called for each message.
  TP_ALWAYS_INLINE int hand_out(CompletionEngine& engine);
  // `made`: it is new.
  Result<CompletionEngine*> find_or_make(Adapter& adapter, int entries, bool& made);

  const Verbs& verbs_;
  const bool one_communicator_;
  std::vector<FailureListener*> listeners_;  // under `lock`
  HeldWork* first_held_ = nullptr;           // under `lock`
  std::mutex setup_;
  std::vector<std::unique_ptr<CompletionEngine>> engines_;
  std::vector<std::unique_ptr<ParcelPool>> pools_;
  std::vector<Place> comms_;                         // under `lock`
  std::vector<CompletionEngine*> polled_by_thread_;  // under `lock`
  const CompletionEngine* polled_ = nullptr;         // under `lock`
  std::array<std::int64_t, kTopics> told_at_{};      // under `lock`
  std::size_t next_place_ = 0;
  std::uint64_t polls_ = 1;  // under `lock`
  QueueGrave grave_{[this](CompletionEngine* e, int entries) { release(e, entries); }};
  SessionThread thread_;  // last: it ends first
};

// A connection's place in the table of comms: whose completions those of its work requests are,
// whichever queue pairs these were posted to.  Gives it back when destroyed, which comes before the
// queue pairs go: what their end still brings is nobody's.
class CommPlace {
 public:
  // Fails with a text in the log when the table is full.
  static Result<CommPlace> take(std::shared_ptr<CompletionHub> hub) {
    auto id = hub->add_comm();
    if (!id) return id.status();
    return CommPlace(std::move(hub), *id);
  }
  CommPlace() = default;  // none yet
  CommPlace(CommPlace&&) = default;
  CommPlace& operator=(CommPlace&& other) noexcept {
    std::swap(hub_, other.hub_);
    std::swap(id_, other.id_);
    return *this;
  }
  ~CommPlace() {
    if (hub_ != nullptr) hub_->drop_comm(id_);
  }
  CompletionHub::CommId id() const { return id_; }

 private:
  CommPlace(std::shared_ptr<CompletionHub> hub, CompletionHub::CommId id)
      : hub_(std::move(hub)), id_(id) {}
  std::shared_ptr<CompletionHub> hub_;
  CompletionHub::CommId id_;
};

}  // namespace twinpath
