#pragma once
// The pairs of queues of a context that can move to the team's second port, and how far each, to
// one rank and back, has come on its way:
//
//   serving   over one port
//   asking    that port is down, or silent (stall_watch.h); the way over the other one is tried,
//             and the pair stays if nobody answers
//   stopping  the queue pair is in error, as its adapter has confirmed: what it still had comes
//             back, and what it has brought becomes visible to the GPU (second_port.h)
//   told      the peer has been told how many of its signals were taken.  From now on nothing that
//             it sent over that port can touch this rank's memory, and what did is there
//   serving   over the other one: the peer has said the same, and what it may not have got was sent
//             again
//
// The number is the first immediate data that comes over the other queue pair; signals follow it.
// A pair that does not get there in TWINPATH_FAILOVER_HOLD_MS (2 s at least) fails, and so does one
// that has no other way.
//
// Once what was left has been made anew (port_renewals.h) the pair goes back to the first port.  Is
// that lost again before both are there, the pair goes on to the next queue pair over the second
// one, as if it had been there: what went over it is counted, too.  Who is told of the second move
// before the first does the same.
//
// Threads: made and attached to at setup, then of who drives the context.
#include <cstdint>
#include <optional>
#include <vector>

#include "gda/served/back/moving.h"
#include "gda/served/port_renewals.h"
#include "gda/served/stall_watch.h"
#include "gda/served/two_ports.h"
#include "plugin/base/counters.h"
#include "plugin/base/run_clock.h"
#include "plugin/base/wait_within.h"

namespace twinpath::gda {

class PortMoves {
 public:
  // Work requests of a queue pair beside a kernel's, and receives beside those of signals: the
  // number to the peer, two words, and the last one before it moves.  The receives that are left
  // have room in the completion queue for what comes over the next queue pair meanwhile.
  static constexpr std::uint32_t kSpare = 4;

  // `counts`: null: nobody reads them.  All outlive this.
  PortMoves(const TwoPorts& ports, MovingInbox& inbox, counters::MoveCounts* counts);
  // `first`: the port of its first way.
  void attach(std::size_t pair, MovingQueue& back, const PortRenewals::Ends& ends, int first);
  bool has(std::size_t pair) const { return pair < pairs_.size() && pairs_[pair].back != nullptr; }

  // All completions of such a pair, of the first port (0) or the second.
  void on_completion(int port, const ibv_wc& wc);
  // Whether a port that queues are over is lost for good, and the team with it.
  bool lost(std::int64_t now);
  // Whether the adapter of one has told of a change since this context was told of looks.  A system
  // call, or two.
  bool news();
  // The ports were looked at.  Who is over one that is down leaves it, once the second one has been
  // seen to work.
  void looked(std::int64_t now);
  // The same of queues that are silent; to be called often.
  void look_for_stalls(std::int64_t now);
  // Begins the pair's move, if it has not begun; where it cannot move the pair fails.
  void leave(std::size_t pair, const char* why);
  bool under_way() const { return moving_ != 0; }
  // One step of those that are; true when one has come further.
  bool advance();
  // Likewise, of queue pairs that are made anew.
  bool renewing() const { return renewals_.under_way(); }
  void renew();

 private:
  enum class At : std::uint8_t { serving, asking, stopping, told };
  struct Pair {
    bool under_way() const { return at == At::stopping || at == At::told; }

    explicit Pair(const StallWatch& watch) : stall(watch) {}
    MovingQueue* back = nullptr;  // null: its rank is not spoken to
    StallWatch stall;
    At at = At::serving;
    int on = 0;  // which way
    bool receives_came_back = false;
    bool skipped = false;  // left before the peer's number came over it
    // Signals from here that the peer took, modulo 2^32: over the other queue pair, and the next.
    std::optional<std::uint32_t> heard, heard_next;
    std::optional<std::uint64_t> fence;  // asked for since all came back
    std::optional<RunLimit> limit;       // of what is under way
    std::int64_t left = 0;               // when it began
  };

  const char* name(std::size_t pair) const { return pairs_[pair].back->name().c_str(); }
  // Whether queues are over that port; with none at all, the first.
  bool serves(int port) const { return over_[port] != 0 || (port == 0 && over_[1] == 0); }
  // Which of these are down, a bit each, as last looked at.
  int down() const;
  bool may_ask(std::size_t pair) const;
  void ask(std::size_t pair);
  void on_receive(int way, const ibv_wc& wc);
  void on_send(int way, const ibv_wc& wc);
  void on_next(const ibv_wc& wc);
  void on_taken(std::size_t pair, bool arrived, bool works);
  // The peer has left for the other queue pair, or the next.
  void follow(std::size_t pair);
  void answered(std::size_t pair, bool answers);
  // The other queue pair is ready: the offering rank goes back, and the other one follows.
  void may_go_back(std::size_t pair);
  void look_ahead(std::int64_t now);
  bool advance(std::size_t pair);
  // Takes the queue pair that it is on, or was until now, out of service.
  void quit(std::size_t pair, int way);
  // Of its receives, to come back last of all.
  void ask_for_last(std::size_t pair);
  void tell(std::size_t pair);
  // What the pair moves to is lost: goes on to the next queue pair, or fails.
  void pass(std::size_t pair, const char* why);
  void arrive(std::size_t pair);
  void end(Pair& pair);

  TwoPorts ports_;
  MovingInbox& inbox_;
  counters::MoveCounts* const counts_;
  std::vector<Pair> pairs_;
  int moving_ = 0;    // of these under way
  int over_[2] = {};  // how many queues are, by port
  int down_ = 0;      // down(), when ports were looked at for this context
  std::int64_t stalls_looked_ = 0, looked_ahead_ = 0;
  RunClock ran_{100 * kMillisecond};  // what silence goes by
  PortRenewals renewals_;
};

}  // namespace twinpath::gda
