#pragma once
// What both ends have said in one round of a failover (failover.h, wire/failover.h), and which
// queues they leave out of it.  Frames of earlier rounds are overtaken and say nothing.
//
// Pure.  Threads: under the hub's lock.
#include <cstdint>
#include <optional>
#include <utility>

#include "proxy/wire/failover.h"

namespace twinpath {

class FailoverRound {
 public:
  std::uint32_t number() const { return number_; }
  std::uint32_t next() const { return number_ + 1; }
  // Negative: one that was overtaken.  Numbers wrap.
  std::int32_t ahead(std::uint32_t number) const {
    return static_cast<std::int32_t>(number - number_);
  }
  // This end stops, and leaves those queues out.
  void begin(std::uint32_t number, QueueMask mine) {
    number_ = number;
    mine_ = mine;
    their_stop_.reset();
    their_fence_.reset();
    they_are_ready_ = false;
  }
  // What this end left out of the last round.
  QueueMask mine() const { return mine_; }
  // The peer left them out, and will say when they can be used.
  void leave_to_peer(QueueMask queues) { mine_ &= ~queues; }

  // What the peer says in this round; of others nothing is taken.
  void hear(StopNote note) {
    if (note.round == number_) their_stop_ = std::move(note);
  }
  void hear(FencedNote note) {
    if (note.round == number_) their_fence_ = std::move(note);
  }
  void hear_ready(std::uint32_t number) { they_are_ready_ = they_are_ready_ || number == number_; }

  // Once both have said stop: from now on it stands what both leave out.  False before.
  bool agree() {
    if (!their_stop_) return false;
    unwanted_ = mine_ | their_stop_->unwanted;
    return true;
  }
  QueueMask unwanted() const { return unwanted_; }
  // Null: the peer has not fenced.
  const FencedNote* their_fence() const { return their_fence_ ? &*their_fence_ : nullptr; }
  FencedNote take_fence() { return std::move(*their_fence_); }
  bool they_are_ready() const { return they_are_ready_; }

 private:
  std::uint32_t number_ = 0;
  QueueMask mine_ = 0;
  QueueMask unwanted_ = 0;
  std::optional<StopNote> their_stop_;
  std::optional<FencedNote> their_fence_;
  bool they_are_ready_ = false;
};

}  // namespace twinpath
