#pragma once
// The queues of a context that can move to the team's second port (gda/team/second_port.h), and how
// far each, to one rank and back, has come on its way:
//
//   serving   over one port
//   asking    that port is down; the way over the other one is tried, and the queue stays if nobody
//             answers
//   stopping  its queue pair is in error: what it still had comes back
//   told      all of it has, and the peer has been told how many of its signals were taken.  From
//             now on nothing that it sent over that port can touch this rank's memory
//   serving   over the other one: the peer has said the same, and what it may not have got was
//             posted again (rma_queue_move.cc)
//
// The number is the first message over the other queue pair; signals follow it.  A queue leaves at
// once when a work request fails on its way, or when the peer's number comes.  One that does not
// get there in TWINPATH_FAILOVER_HOLD_MS (2 s at least) fails, and so does one that has no other
// way.  Queues do not go back.
//
// Threads: made at setup, then under the context's lock.
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "gda/rma/rma_inbox.h"
#include "gda/rma/rma_queue.h"
#include "gda/rma/rma_team.h"
#include "plugin/base/wait_within.h"

namespace twinpath::gda::rma {

class Moves {
 public:
  // Of a context whose queue q is to rank q % ranks.  All outlive this.
  Moves(Team& team, Inbox& inbox, const std::vector<std::unique_ptr<Queue>>& queues);

  // Whether that completion, polled at the first port (0) or the second, concerns moves alone.
  bool takes(int port, const ibv_wc& wc, WorkId id);
  // After completions: one step of what is under way.
  void turn(std::int64_t now);
  // The port that all queues are over of which anything may be asked, else the first.
  PortWatch& watch();
  bool under_way() const { return moving_ != 0; }

 private:
  enum class At : std::uint8_t { serving, asking, stopping, told };
  struct Move {
    bool under_way() const { return at == At::stopping || at == At::told; }

    At at = At::serving;
    bool receives_came_back = false;
    bool unheard = false;                // the peer did not get the number
    std::optional<std::uint64_t> heard;  // signals from here that the peer took
    std::optional<RunLimit> limit;       // of what is under way
    std::int64_t left = 0;               // when it began
  };

  PortWatch& watch(int port) { return port == 0 ? *team_.port : team_.second->watch; }
  const char* name(int port) const;
  int rank_of(std::size_t queue) const {
    return static_cast<int>(queue % static_cast<std::size_t>(team_.ranks()));
  }
  bool to_itself(std::size_t queue) const { return rank_of(queue) == team_.rank(); }
  void look_at_ports(std::int64_t now);
  void answered(std::size_t queue, bool answers);
  void leave(std::size_t queue, const char* why);
  void advance(std::size_t queue, std::int64_t now);
  void tell(std::size_t queue);
  void end(Move& move);

  Team& team_;
  Inbox& inbox_;
  const std::vector<std::unique_ptr<Queue>>& queues_;
  std::vector<Move> moves_;  // by queue
  int moving_ = 0;           // of these under way
  int moved_ = 0;            // of these over the second port
  int served_ = 0;           // of these spoken to
  std::int64_t looked_ = 0;
};

}  // namespace twinpath::gda::rma
