#pragma once
// A pair's queue pair over the port that it is not on is made anew, when it was left, did not
// answer a question or its address there has moved, once that port has been up for
// FailoverPace::settle_ms.  For a way back to the first port one more is made over the second, the
// next one there: a pair that goes back has thus a way from the first moment, should the first port
// be lost again.  Of two ranks the higher one begins:
//
//   wanted    for its port, or after a failure for the pace's pause
//   making    (queue_maker.h)
//   offered   the peer has the addresses, as a word in a box of the tables, by the queue pair in
//             use; makes its own, joins them, and answers.  A word follows an answer to the one
//             before, so a box holds one at a time
//   raising   they are joined here, too
//   proving   a question over each, of this rank
//   joined    and of the other one, since a port may lose what goes one way: each asks when the
//             other tells it to, or has been answered
//   ready     all have been answered: the pair can move
//
// Threads: attached to at setup, then of who drives the context; one of its own makes queue pairs.
#include <array>
#include <cstdint>
#include <optional>
#include <vector>

#include "gda/served/back/moving.h"
#include "gda/served/queue_maker.h"
#include "gda/served/two_ports.h"
#include "plugin/rdma/liveness_probe.h"

namespace twinpath::gda {

class PortRenewals {
 public:
  struct Ends {
    std::array<ProbeTarget, 2> probed;  // memory of the peer, with its key over either way
    const QueueWord* box = nullptr;     // that the peer writes
    QueueWord* out = nullptr;           // registered here, for the peer's
    std::uint64_t far_box = 0;
    // What the peer counts as its host goes on, and where answers bring it; null: nothing that is
    // sent waits for that.
    std::uint64_t far_beat = 0;
    std::uint64_t* beat = nullptr;  // registered here
  };

  // All pairs are ready.  `ports` outlive this.
  PortRenewals(const TwoPorts& ports, std::size_t pairs);
  void attach(std::size_t pair, MovingQueue& back, const Ends& ends);
  bool ready(std::size_t pair) const { return pairs_[pair].state == State::ready; }
  // Whether the signals' immediate data is none, but what this tells its peer.
  static constexpr bool is_word(std::uint32_t immediate) { return immediate >= kWorks; }

  // A question over the other way, to be told of by answered(); false: it cannot be posted.
  bool ask(std::size_t pair) const;
  // Of the last answer.
  std::optional<std::uint64_t> beat(std::size_t pair) const;
  // The pair has moved: the next one takes the place of what it left, or another is wanted.
  void left(std::size_t pair);
  // Whether one that moves has a next one, to go on to.
  bool has_next(std::size_t pair) const {
    return ready(pair) && QueueMaker::has_next(other(pairs_[pair]));
  }
  // Each says whether the other queue pair is ready from now on, which it was not before.
  bool answered(std::size_t pair, bool answers);
  bool on_word(std::size_t pair, std::uint32_t immediate);

  // The peer has left for it, so it was ready there and had been proven here, whatever has come of
  // it since.  Ready, at once or after what is being made has been dropped; or made anew already.
  void followed(std::size_t pair);

  void look_at_ports(std::int64_t now);
  // Whether there are steps to take beside looking at ports.
  bool under_way() const { return under_way_; }
  void advance();

 private:
  // A word is in the box; the peer's end of the other queue pair is gone, or works.
  static constexpr std::uint32_t kHasWord = 0xffffffff, kLost = 0xfffffffe, kWorks = 0xfffffffd;

  enum class State : std::uint8_t { ready, wanted, making, offered, raising, proving, joined };
  struct Pair {
    bool to_do() const { return word || state == State::making || state == State::raising; }

    MovingQueue* back = nullptr;  // null: its rank is not spoken to
    Ends ends;
    State state = State::ready;
    bool followed = false;            // before it was made anew
    bool word = false;                // one has come,
    QueueWord in;                     // this
    bool unsaid = false;              // the peer must hear that this end is gone
    int unanswered = 0;               // questions
    std::int64_t pause = 0, due = 0;  // after a failure, ns; until when
  };

  void look_at_loops(int port, std::int64_t now);
  void look_at_addresses(int port);
  int other(const Pair& pair) const { return 1 - pair.back->on(); }
  bool offers(std::size_t pair) const { return ports_.rank_of(pair) <= ports_.core.rank(); }
  bool settled(int port) const;
  bool ask(std::size_t pair, int way, bool next) const;
  void want(std::size_t pair, bool pause);
  // The same, and the peer hears of it where it would wait.
  void lost(std::size_t pair);
  void tell_lost(std::size_t pair);
  void advance(std::size_t pair);
  void begin(std::size_t pair);
  void made(std::size_t pair);
  void take_answer(std::size_t pair);
  void raised(std::size_t pair);
  void raise(std::size_t pair);
  void prove(std::size_t pair);
  bool proven(std::size_t pair);
  bool works(std::size_t pair);
  void say(std::size_t pair, QueueWord::Kind kind);
  bool post(std::size_t pair, std::uint32_t immediate, bool with_word);

  const TwoPorts& ports_;
  std::vector<Pair> pairs_;
  bool under_way_ = false;
  // Of the ports: since when each has been up, and what it had told of by then.
  std::array<std::int64_t, 2> up_since_{};
  std::array<std::uint32_t, 2> changes_{};
  std::array<std::int64_t, 2> loops_due_{};  // when their loops may be made anew again
  QueueMaker maker_;                         // last: its thread uses the others
};

}  // namespace twinpath::gda
