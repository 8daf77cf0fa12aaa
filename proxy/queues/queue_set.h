#pragma once
// RC queue pairs, a connection's over all its rails: which of both ends each queue joins is settled
// by wire/paths.h.  Those in reserve have no pair until they are made (remake).
//
// Made, moved to INIT, and raised to RTR and RTS once the peer's addresses are known.  Owns its
// share of the CQs and gives it back when destroyed.  Whose completions arrive there is not its
// matter: each work request names a place in the hub's table (CommPlace).
// Threads: made, raised and destroyed by one thread; posting needs the hub's lock.
#include <memory>
#include <string>
#include <vector>

#include "plugin/rdma/devices.h"
#include "plugin/rdma/path.h"
#include "proxy/queues/completion_engine.h"
#include "proxy/wire/failover.h"
#include "proxy/wire/handshake.h"
#include "proxy/wire/paths.h"

namespace twinpath {

class SharedPairs;

struct Queue {
  CompletionEngine* engine = nullptr;  // null: not needed yet
  Owned<ibv_qp> qp;                    // null: out of use (halt and remake below)
  int rail = 0;                        // local
  int remote_rail = 0;
  std::uint32_t psn = 0;
  std::uint32_t inline_bytes = 0;
  std::uint32_t speed_mbps = 0;  // of the slower end, 0 until raised
  bool extras = false;           // its adapter was told of some (ece.h)
  QueueExtras agreed;            // what both adapters have in use; vendor 0: nothing
  bool halted = false;           // its adapter says that it is in error
  // Not null: `qp` passes on to these, whose share of the engine it is.
  SharedPairs* shared = nullptr;
  // Whether a completion with that number is of it, of those that its engine brings.
  bool has(std::uint32_t qpn) const;
};

// What a queue is to share with other connections' (shared_pairs.h): which member it is, and whose
// its completions are.
struct QueueShare {
  SharedPairs* pairs = nullptr;
  int member = 0;
  CompletionHub::CommId comm;
};

// The cause then, in the log.
inline constexpr const char* kRequestRefused =
    "the adapter refused a request of the peer's: memory must stay registered while messages for "
    "it are under way";

class QueueSet {
 public:
  // Completions of queues of one device go to one engine, or wherever there is room.
  enum class Engines { any, one };
  // `shares`: of the regular queues, or none.
  static Result<std::unique_ptr<QueueSet>> make(std::shared_ptr<CompletionHub> hub,
                                                std::shared_ptr<Devices> devices,
                                                std::vector<Rail> rails, const QueuePaths& paths,
                                                const QueueSettings& settings,
                                                Engines engines = Engines::any,
                                                const std::vector<QueueShare>& shares = {});
  ~QueueSet();
  QueueSet(const QueueSet&) = delete;
  QueueSet& operator=(const QueueSet&) = delete;

  // To INIT; then, with the peer's addresses, to RTR and RTS.  `again`: the adapter refused what it
  // may take later; to be called again with the same arguments, which costs nothing before the next
  // try is due.  With that and on failure `why` names port, GIDs, errno and what to do; `to` by
  // number of the queue, moving() is the one.
  Status init(std::string& why);
  Status raise(const std::vector<HelloRail>& remote, const std::vector<QueueAddress>& to,
               std::string& why);
  int moving() const { return static_cast<int>(next_); }

  // The queues go into error: what they had under way ends, and their receives are given back.  For
  // the peer's writes that is so only once halt() has been called at both ends.
  void halt();
  // For a halted queue whose engine has failed: takes what that had brought and destroys the pair
  // here and now, which alone shows that nothing comes any more.  The engine is left.
  void leave_engine(Queue& queue);
  // New queue pairs in place of all, in INIT, for those in `wanted`; the others are out of use.
  // The old ones are destroyed later, except for those whose adapter did not confirm that they are
  // halted.  Their rails' addresses are what the ports have now.  On failure `failed` has the
  // queues to blame.
  Status remake(QueueMask wanted, QueueMask& failed, std::string& why);
  QueueMask all() const { return ~QueueMask{0} >> (32 - queues_.size()); }
  // Those that are not in reserve.
  QueueMask regular() const { return regular_; }
  // Of queues that can be used, those that are to be: all regular ones, else the best in reserve.
  QueueMask choose(QueueMask usable) const;
  // The rail of the queue in reserve that is in use now, or -1.
  int reserve_rail() const;
  // Those in use.
  QueueMask in_use() const;
  // Their rails, and those of regular queues, a bit each.
  std::uint32_t rails_in_use() const { return rails_of(in_use()); }
  std::uint32_t regular_rails() const { return rails_of(regular_); }
  // The first of them.
  int first() const;
  // Inline data that each of them takes.
  std::uint32_t least_inline() const;

  std::vector<Queue>& queues() { return queues_; }
  const std::vector<Queue>& queues() const { return queues_; }
  const std::vector<Rail>& rails() const { return rails_; }
  // Each once; also those whose queues are out of use: completions may lie there.
  const std::vector<CompletionEngine*>& engines() const { return engines_; }
  // Whether a queue in use has its completions there.
  bool uses(const CompletionEngine& engine) const;
  // Whether the queue failed because its adapter refused a request of the peer, as far as the
  // adapter's events say yet.  They may come after the completions: who replaces queues asks again,
  // of all, before he does.
  bool request_refused(const Queue& queue) const;
  bool any_request_refused() const;
  // Whether an event tells that the queue is in error.
  bool event_failed(const Queue& queue) const;
  // Whether it is shared, and was halted for another connection.
  static bool given_up(const Queue& queue);
  // Whether any is shared.
  bool shares() const;
  int receive_depth() const { return settings_.recv_depth; }
  CompletionHub& hub() { return *hub_; }
  Devices& devices() { return *devices_; }
  std::vector<QueueAddress> addresses() const;  // of those in use
  // The queue with that number, or null.
  const Queue* find(std::uint32_t qpn) const;

 private:
  QueueSet(std::shared_ptr<CompletionHub> hub, std::shared_ptr<Devices> devices,
           std::vector<Rail> rails, const QueueSettings& settings)
      : devices_(std::move(devices)),
        hub_(std::move(hub)),
        rails_(std::move(rails)),
        settings_(settings),
        retry_(settings.retry) {}
  Status make_pair(Queue& queue);
  Status reserve(Queue& queue, bool locked, int entries);
  void join(Queue& queue, const QueueShare& share);
  std::uint32_t rails_of(QueueMask queues) const;
  void drop_pair(Queue& queue);
  void lay_aside(Queue& queue);
  int share() const { return settings_.send_depth + settings_.recv_depth; }
  const Rail& rail_of(const Queue& q) const { return rails_[static_cast<std::size_t>(q.rail)]; }
  Status refused(int error, const std::string& what, const std::string& remedy, std::string& why);

  std::shared_ptr<Devices> devices_;  // before the hub: CQs go before their context
  std::shared_ptr<CompletionHub> hub_;
  std::vector<Rail> rails_;
  QueueSettings settings_;
  std::vector<CompletionEngine*> engines_;
  std::vector<Queue> queues_;
  QueueMask regular_ = 0;
  // How far the moves have come: of which queue, and whether that one has reached RTR.
  std::size_t next_ = 0;
  bool receives_ = false;
  ModifyRetry retry_;
};

}  // namespace twinpath
