#pragma once
// How much of a message each lane gets that it is cut over: what its port's speed says, until it
// turns out to be slower or faster than that.
//
// A message in pieces has arrived when its last piece has, so the slowest lane sets the pace of
// all: one rail at a tenth of its speed makes two rails a fifth as fast as one alone.  No event
// tells of a link that came up with fewer lanes, a congested path, or an adapter behind a narrow
// PCIe slot.
//
// What is measured: the bytes that a lane brings through in the time in which it has any under way.
// A lane that is done early idles meanwhile, which does not count; so lanes can be compared however
// messages are cut, and cut in proportion all pieces end together.  Where that time is not the
// wire's, but latency's or that of a caller who polls seldom, all pieces take as long as each
// other: what comes out is in proportion to what each lane was given, and nothing changes.
//
// What is done with it: lanes that are within a quarter of what they are given stay.  Others go
// there at once; where a step turns back, the next is half as long, and longer again when steps
// agree.  For where flows share a link, what each finds is more than its part while the link is
// idle at times, and all of them would go to and fro.  A lane with less than a 16th of the best
// gets nothing, as even its least piece would be the last.  It is tried by one piece of one
// message, which costs no more than that message's delay: when it has brought what was under way (a
// packet that was lost is sent again only after the queue pair's timeout), after 50 ms, and after
// twice as long each time that this shows nothing better, up to 30 s.
//
// Threads: one at a time (the hub's lock).  Decides by what it is told alone, so tests say the
// time.
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "plugin/base/limits.h"

namespace twinpath {

class LaneShares {
 public:
  // Windows of measurement, ns: at least; and at most, when a lane brings little.
  static constexpr std::int64_t kWindow = 20'000'000, kLongWindow = 200'000'000;
  static constexpr std::uint32_t kPieces = 8;  // of each lane, unless the window is a long one

  // By the ports' speeds (Mb/s; 0: not known) alone; what was measured is forgotten.  1..kMaxQps
  // lanes.
  void reset(std::span<const std::uint32_t> speeds);
  // A piece leaves on a lane.
  void posted(std::size_t lane, std::uint32_t bytes, std::int64_t now);
  // One has arrived.  True: a window has ended with it, and weights may be others.
  bool completed(std::size_t lane, std::int64_t now);

  // For plan_stripes.
  std::uint32_t weight(std::size_t lane) const { return lanes_[lane].weight; }
  // Of the sum of all.
  std::uint32_t permille(std::size_t lane) const;
  std::uint32_t speed(std::size_t lane) const { return lanes_[lane].speed; }
  // Less than half of what the lane's port should bring beside the others.
  bool slow(std::size_t lane) const { return lanes_[lane].weight < lanes_[lane].speed / 2; }

 private:
  struct Lane {
    std::uint32_t speed = 0, weight = 0;
    std::uint32_t under_way = 0;  // pieces
    std::uint64_t bytes = 0;      // of them
    std::int64_t since = 0;       // under way without a pause
    std::int64_t busy = 0;        // before, in this window
    std::uint32_t pieces = 0;     // that arrived in this window
    std::uint64_t arrived = 0;    // their bytes
    enum class State : std::uint8_t {
      carries,
      parked,   // weight 0, until then
      mute,     // weight 0 until a piece arrives
      offered,  // for one piece
      tried     // weight 0 until that piece arrives
    } state = State::carries;
    std::int64_t until = 0;  // parked; tried: since
    std::int64_t pause = 0;  // the last one
    double gain = 1;         // how much of the way a step goes
    int direction = 0;       // of the last one
  };
  bool window_is_over(std::int64_t now) const;
  void judge(std::int64_t now);
  void offer(std::int64_t now);
  void tried(Lane& lane, std::uint64_t bytes, std::int64_t now);
  void park(Lane& lane, std::int64_t now);
  static void go_towards(Lane& lane, double fair);

  std::array<Lane, kMaxQps> lanes_{};
  std::size_t count_ = 0;
  // As of the last window: the best lane's rate, bytes a ns; and by how much that is above the
  // ports' speeds where it is most.
  double fastest_ = 0, best_factor_ = 0;
  std::int64_t window_began_ = 0;  // 0: with the next piece
};

}  // namespace twinpath
