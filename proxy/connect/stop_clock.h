#pragma once
// Where the time of one stop went: from the first round of a failover to the comm's going on.
#include <array>
#include <cstdint>
#include <string>

namespace twinpath {

class StopClock {
 public:
  // agree: both ends say stop.  drain: the halted queues give back what was on them, and copies
  // end.  renew: queues and registrations are made.  exchange: the peer has done the same.
  // connect: the queues are raised, and the peer's are.  wait: no queue could be used.
  enum class Part : std::uint8_t { agree, drain, renew, exchange, connect, wait };

  void start(std::int64_t now) {
    spent_ = {};
    rounds_ = 0;
    began_ = turned_ = now;
  }
  // From `now` on it is `next` that takes the time.  Each agreement begins a round.
  void turn(Part next, std::int64_t now) {
    spent_[static_cast<std::size_t>(part_)] += now - turned_;
    turned_ = now;
    part_ = next;
    if (next == Part::agree) ++rounds_;
  }
  std::int64_t total(std::int64_t now) const { return now - began_; }
  // "31 ms", "186 ms (drain 150, renew 30)", "640 ms (agree 2, wait 620, connect 9, 3 rounds)":
  // the parts of at least a twentieth of the whole, of a stop that can be felt.
  std::string text(std::int64_t now) const;

 private:
  static constexpr std::size_t kParts = 6;
  std::array<std::int64_t, kParts> spent_{};
  std::int64_t began_ = 0, turned_ = 0;
  int rounds_ = 0;
  Part part_ = Part::agree;
};

}  // namespace twinpath
