#pragma once
// How messages go: for readers of the counters how long some of them take (message_timer.h), and
// for who watches some by which rails they go (flights.h).
//
// Threads: under the hub's lock.
#include <array>
#include <cstdint>
#include <memory>
#include <new>
#include <span>
#include <utility>

#include "plugin/base/clock.h"
#include "plugin/base/counters.h"
#include "proxy/send/flights.h"
#include "proxy/send/message_timer.h"
#include "proxy/send/outgoing.h"
#include "proxy/send/send_request.h"

namespace twinpath {

class SendTrace {
 public:
  // `rails`: of the connection, as long as this.
  explicit SendTrace(std::span<counters::Rail> rails) : rails_(rails) {}

  // --- timing
  // Whether the message with that number, counted from 1, is to be timed; said once.
  bool due(std::uint64_t number, std::size_t bytes) { return timer_.due(number, bytes); }
  // None up to this number is.
  std::uint64_t none_before() const { return timer_.last_before(); }
  // It is posted now, unless another is being timed.
  void start(SendRequest& r) {
    if (timer_.running()) return;
    r.mark(SendRequest::kTimed);
    timer_.start(now_ns());
  }
  // Its queue is gone.
  void stop() { timer_.stop(); }

  // --- watching
  // The next message is watched.
  void watch_next() { watch_ = true; }
  // Whether this one is; asked once for each.  The first time this takes memory, for who never
  // watches needs none; where there is none, messages go all the same, unseen.
  bool watched() {
    if (!std::exchange(watch_, false)) [[likely]]
      return false;
    if (flights_ == nullptr) flights_.reset(new (std::nothrow) Flights);
    return flights_ != nullptr;
  }
  bool watches_next() const { return watch_; }
  // From begin() to end() what leaves is of that slot's message: what is sent again later is not.
  void begin(std::uint16_t slot) { flights_->begin(slot); }
  void end() { flights_->end(); }
  void leaves(const Lane& lane, std::size_t bytes) {
    if (flights_ != nullptr) [[unlikely]]
      flights_->add(lane.rail, lane.qp->qp_num, static_cast<std::uint32_t>(bytes));
  }
  // The same of one whose queue is chosen when its batch goes.
  void gathered(const Lane& likely, std::size_t bytes) {
    if (flights_ != nullptr) [[unlikely]]
      flights_->add(likely.rail, 0, static_cast<std::uint32_t>(bytes));
  }
  // A message leaves in pieces: from now on arrived() is to be told of them.
  void cut(SendRequest& r) {
    if (flights_ != nullptr && flights_->open()) [[unlikely]]
      r.mark(SendRequest::kWatched);
  }
  // Null: nobody has watched a message.
  const Flight* flight(std::uint16_t slot) const {
    return flights_ == nullptr ? nullptr : &flights_->of(slot);
  }

  // A completion of that message over a rail, or -1: of a queue that is gone.
  void arrived(SendRequest& r, int rail) {
    if (r.is(SendRequest::kTimed))
      end_timing(r, rails_[rail < 0 ? 0 : static_cast<std::size_t>(rail)]);
    if (r.is(SendRequest::kWatched) && rail >= 0)
      flights_->of(r.slot()).landed(static_cast<std::uint8_t>(rail));
  }

 private:
  // Of a message in pieces each queue's last is told, as what its rail took.
  void end_timing(SendRequest& r, counters::Rail& to) {
    const std::uint64_t took = timer_.took(now_ns());
    to.timed_ns.add(took);
    to.buckets[counters::bucket_of(took)].add(1);
    if (r.pending() > 0) return;
    r.unmark(SendRequest::kTimed);
    timer_.stop();
  }

  const std::span<counters::Rail> rails_;
  MessageTimer timer_;
  std::unique_ptr<Flights> flights_;
  bool watch_ = false;
};

}  // namespace twinpath
