#pragma once
// The pairs of queues of a context that can move to the team's second port, and how far each, to
// one rank and back, has come on its way:
//
//   first     over the first port
//   asking    that port is down, or silent (stall_watch.h); the way over the second one is tried,
//             and the pair stays if nobody answers
//   stopping  the queue pair is in error: what it still had comes back
//   told      all of it has, and the peer has been told how many of its signals were taken.  From
//             now on nothing that it sent over the first port can touch this rank's memory
//   second    the peer has said the same, and what it may not have got was sent again
//
// The number is the first immediate data that comes over the second queue pair; signals follow it.
// A pair that does not get there in TWINPATH_FAILOVER_HOLD_MS (2 s at least) fails, and so does one
// whose second way fails.  None comes back to its first port.
//
// Threads: made and attached to at setup, then the engine's.
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "gda/served/back/counted_signals.h"
#include "gda/served/back/verbs_back_end.h"
#include "gda/served/port_queues.h"
#include "gda/served/stall_watch.h"
#include "gda/team/gin_core.h"
#include "plugin/base/run_clock.h"
#include "plugin/base/wait_within.h"
#include "plugin/rdma/liveness_probe.h"

namespace twinpath::gda {

class PortMoves {
 public:
  // Work requests of a queue pair beside a kernel's, and receives beside those of signals: the last
  // one before it moves, or the word to the peer and the question before it.
  static constexpr std::uint32_t kSpare = 2;

  // `ranks`: pair p is to rank p % ranks.  All outlive this but `second`, whose queue pairs are
  // those that can move.
  PortMoves(GinCore& core, std::size_t ranks, CountedInbox& inbox, const PortQueues& first,
            std::unique_ptr<PortQueues> second);
  const PortQueues& second() const { return *second_; }
  bool can_move(std::size_t pair) const { return second_->pair(pair) != nullptr; }
  // As PortQueues::raise(), of the second port.
  Status raise(std::size_t pair, const QueueEnd& far, const std::string& peer, bool here);
  // `probed`: memory of the peer, with its key over the second port.
  void attach(std::size_t pair, VerbsBackEnd& back, const ProbeTarget& probed) {
    pairs_[pair].back = &back;
    pairs_[pair].probed = probed;
  }

  // Completions: of a pair's last receive over the first port; and all over the second.
  void receives_came_back(std::size_t pair) { pairs_[pair].receives_came_back = true; }
  void on_completion(const ibv_wc& wc);
  // The port that all queues are over, else the first.
  PortWatch& watch() { return moved_ == served_ ? core_.second->watch : *core_.port; }
  // Whether its adapter has told of a change since this context was told of looks.  A system call.
  bool news() { return !under_way() && (watch().told() || watch().down() != down_); }
  // The port was looked at.  Who is over one that is down leaves it, once the second one has been
  // seen to work.
  void looked(std::int64_t now);
  // The same of queues that are silent; to be called often.
  void look_for_stalls(std::int64_t now);
  // Begins the pair's move, if it has not begun; where it cannot move the pair fails.
  void leave(std::size_t pair, const char* why);
  bool under_way() const { return moving_ != 0; }
  // One step of those that are; true when one has come further.
  bool advance();

 private:
  enum class At : std::uint8_t { first, asking, stopping, told, second };
  struct Pair {
    bool under_way() const { return at == At::stopping || at == At::told; }

    explicit Pair(const StallWatch& watch) : stall(watch) {}
    VerbsBackEnd* back = nullptr;  // null: its rank is not spoken to
    ProbeTarget probed;
    StallWatch stall;
    At at = At::first;
    bool receives_came_back = false;
    std::optional<std::uint32_t> heard;  // signals from here that the peer took, modulo 2^32
    std::optional<RunLimit> limit;       // of what is under way
    std::int64_t left = 0;               // when it began
  };

  bool to_itself(std::size_t pair) const {
    return pair % ranks_ == static_cast<std::size_t>(core_.rank());
  }
  const char* name(std::size_t pair) const { return pairs_[pair].back->name().c_str(); }
  const std::string& second_name() const { return core_.second->rail.port.port->name; }
  bool may_ask(const Pair& pair) const;
  void ask(std::size_t pair);
  void on_receive(const ibv_wc& wc);
  void on_send(const ibv_wc& wc);
  bool advance(std::size_t pair);
  void end(Pair& pair);
  void count(const Pair& pair);

  GinCore& core_;
  const std::size_t ranks_;
  CountedInbox& inbox_;
  const PortQueues& first_;
  const std::unique_ptr<PortQueues> second_;
  std::vector<Pair> pairs_;
  int moving_ = 0;     // of these under way
  int moved_ = 0;      // of these over the second port
  int served_ = 0;     // queue pairs over the first port
  bool down_ = false;  // the port, when it was looked at for this context
  std::int64_t stalls_looked_ = 0;
  RunClock ran_{100 * kMillisecond};  // what silence goes by
};

}  // namespace twinpath::gda
