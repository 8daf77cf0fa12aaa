#pragma once
// Which queues of a connection cannot be used, as far as this end knows: those on ports that are
// down, those made with an address that their port has no longer, and those that failed a moment
// ago although their ports say nothing of it.
//
// Pure; the time is told.  Threads: under the hub's lock.
#include <algorithm>
#include <array>
#include <cstdint>

#include "proxy/wire/failover.h"

namespace twinpath {

class QueueHealth {
 public:
  // --- what ports say of themselves
  // Whether to ask them: adapters have told of other changes than before, or it was `pause` ago, or
  // look_anew() was called.  They then are: ports() follows.
  bool look_due(std::uint32_t changes, std::int64_t now, std::int64_t pause) {
    if (changes == changes_ && looked_ != 0 && now - looked_ < pause) return false;
    changes_ = changes;
    looked_ = now;
    return true;
  }
  // Events may lag behind what they tell of.
  void look_anew() { looked_ = 0; }
  // When they were asked.
  std::int64_t looked() const { return looked_; }
  // Rails that are not active or have no address, and those that have another one than before, a
  // bit each; `rail_of(q)` of `queues` queues.
  template <class RailOf>
  void ports(std::uint32_t rails_down, std::uint32_t rails_moved, int queues, RailOf&& rail_of) {
    down_ = moved_ = 0;
    for (int q = 0; q < queues; ++q) {
      const int rail = rail_of(q);
      if ((rails_down >> rail & 1) != 0) down_ |= queue_bit(q);
      if ((rails_moved >> rail & 1) != 0) moved_ |= queue_bit(q);
    }
  }
  QueueMask down() const { return down_; }
  QueueMask moved() const { return moved_; }

  // --- what queues do
  // It failed: it is left out for a pause, twice as long each time; long after the last time that
  // begins anew.
  void failed(int q, std::int64_t now, std::int64_t first_pause, std::int64_t longest) {
    Sick& s = sick_[static_cast<std::size_t>(q)];
    s.pause =
        s.pause == 0 || now > s.until + longest ? first_pause : std::min(2 * s.pause, longest);
    s.until = now + s.pause;
  }
  // They had no fault of their own.
  void forgive(QueueMask queues) {
    for (int q = 0; q < kMaxQps; ++q)
      if ((queues & queue_bit(q)) != 0) sick_[static_cast<std::size_t>(q)] = {};
  }
  // When the first of them may be tried again of those that may not be now; 0: there is none.
  std::int64_t next_try(QueueMask queues, std::int64_t now) const {
    std::int64_t next = 0;
    for (int q = 0; q < kMaxQps; ++q) {
      const std::int64_t until = sick_[static_cast<std::size_t>(q)].until;
      if ((queues & queue_bit(q)) != 0 && until > now && (next == 0 || until < next)) next = until;
    }
    return next;
  }

  // Of all of the connection's.  A doubtful one is better than none.
  QueueMask unusable(QueueMask all, std::int64_t now) const {
    QueueMask sick = 0;
    for (int q = 0; q < kMaxQps; ++q)
      if (sick_[static_cast<std::size_t>(q)].until > now) sick |= queue_bit(q);
    return (down_ | sick) == all ? down_ : down_ | sick;
  }

 private:
  struct Sick {
    std::int64_t until = 0;
    std::int64_t pause = 0;
  };
  QueueMask down_ = 0, moved_ = 0;
  std::array<Sick, kMaxQps> sick_{};
  std::int64_t looked_ = 0;
  std::uint32_t changes_ = 0;  // that the adapters had told of
};

}  // namespace twinpath
