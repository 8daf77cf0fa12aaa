#pragma once
// Which rails carry a message, and which of them are done with it: for those who watch some
// (watch_next).  Kept beside the requests, and made with the first, because who has no profiler
// but ours watches none.
//
// What is noted is how a message left first.  When queues are replaced it may go another way: then
// what has not arrived counts as on its way until the whole message has.
//
// Threads: under the hub's lock.
#include <array>
#include <cstdint>

#include "plugin/base/limits.h"
#include "proxy/queues/depths.h"

namespace twinpath {

struct Flight {
  struct Leg {
    std::uint8_t rail = 0;
    std::uint8_t pieces = 0;  // not arrived
    std::uint32_t queue = 0;  // number of the first one's; 0: not chosen
    std::uint32_t bytes = 0;
  };
  std::uint8_t count = 0;
  std::array<Leg, kMaxRails> legs{};

  void add(std::uint8_t rail, std::uint32_t queue, std::uint32_t bytes) {
    for (Leg* leg = legs.data(); leg != legs.data() + count; ++leg) {
      if (leg->rail != rail) continue;
      ++leg->pieces;
      leg->bytes += bytes;
      return;
    }
    legs[count++] = {rail, 1, queue, bytes};
  }
  void landed(std::uint8_t rail) {
    for (Leg* leg = legs.data(); leg != legs.data() + count; ++leg)
      if (leg->rail == rail && leg->pieces > 0) --leg->pieces;
  }
  // A bit for each leg with pieces on their way.
  std::uint32_t left() const {
    std::uint32_t bits = 0;
    for (unsigned i = 0; i < count; ++i) bits |= legs[i].pieces > 0 ? 1u << i : 0;
    return bits;
  }
};

// By slot of the request.
class Flights {
 public:
  // What is added from here to end() is of this one: what is sent again later is not.
  void begin(std::uint16_t slot) {
    open_ = &flights_[slot];
    *open_ = {};
  }
  void end() { open_ = nullptr; }
  bool open() const { return open_ != nullptr; }
  void add(std::uint8_t rail, std::uint32_t queue, std::uint32_t bytes) {
    if (open_ != nullptr) open_->add(rail, queue, bytes);
  }
  Flight& of(std::uint16_t slot) { return flights_[slot]; }

 private:
  Flight* open_ = nullptr;
  std::array<Flight, kSendSlots> flights_{};
};

}  // namespace twinpath
