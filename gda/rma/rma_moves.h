#pragma once
// The queues of a context that can move to the team's second port and back: gda/served/port_moves.h
// has their states, and what goes over two ports.
//
// A queue leaves at once when a work request fails on its way, or when the peer's number comes.  A
// peer may be silent for as long as its caller makes no progress, so a silent port is left only
// where that is seen to (gda/served/stall_watch.h).
//
// Threads: made at setup, then under the context's lock; a thread of its own makes queue pairs anew
// (gda/served/queue_maker.h).
#include <cstdint>
#include <memory>
#include <vector>

#include "gda/rma/rma_inbox.h"
#include "gda/rma/rma_port_side.h"
#include "gda/rma/rma_queue.h"
#include "gda/rma/rma_team.h"
#include "gda/served/port_moves.h"

namespace twinpath::gda::rma {

class Moves final : private MovingInbox {
 public:
  // Of a context whose queue q is to rank q % ranks.  All outlive this.
  Moves(Team& team, Inbox& inbox, const std::vector<std::unique_ptr<Queue>>& queues,
        PortSide& first, PortSide& second);
  // That queue can move.
  void attach(std::size_t queue, const PortRenewals::Ends& ends) {
    moves_.attach(queue, *queues_[queue], ends, queues_[queue]->port());
  }
  bool has(std::size_t queue) const { return moves_.has(queue); }

  // All completions of such a queue, polled at the first port (0) or the second.
  void on_completion(int port, const ibv_wc& wc) { moves_.on_completion(port, wc); }
  // After completions: one step of what is under way.
  void turn(std::int64_t now);
  // Whether a queue of which anything may be asked is over that port.
  bool serves(int port) const;
  bool under_way() const { return moves_.under_way(); }

 private:
  bool stop(std::size_t queue) override { return inbox_.ask_for_last(queue); }
  void move(std::size_t queue, int port, ibv_qp* qp) override { inbox_.move(queue, port, qp); }
  std::uint64_t fence() override { return inbox_.fence(); }
  bool fenced(std::uint64_t ticket) override { return inbox_.fenced(ticket); }
  std::uint64_t taken(std::size_t queue) const override { return inbox_.taken(queue); }
  void on_receive(const ibv_wc& wc) override;
  void give_back(const ibv_wc& wc) override { inbox_.give_back(wc); }

  Team& team_;
  Inbox& inbox_;
  const std::vector<std::unique_ptr<Queue>>& queues_;
  std::int64_t looked_ = 0;
  PortMoves moves_;
};

}  // namespace twinpath::gda::rma
