#pragma once
// Large copies with helping threads, on any machine.
#include <algorithm>
#include <cstring>

#include "plugin/fabric/soft/hca.h"
#include "plugin/fabric/soft/requester.h"
#include "test/soft/pair.h"

namespace twinpath::test {

inline constexpr std::uint32_t kLarge = 16u << 20;

inline soft::CopyTeam& the_team() { return soft::Hca::existing()->team(); }

// So many helpers, on any machine, while it lives.  Made after the first Side.
struct Helpers {
  explicit Helpers(int n, bool stream = false) {
    the_team().set(n, soft::CopyTeam::kFitting, stream);
  }
  ~Helpers() { the_team().set(-1); }
  Helpers(const Helpers&) = delete;
  Helpers& operator=(const Helpers&) = delete;
};

inline Options large(std::size_t bytes = kLarge) {
  Options o;
  o.bytes = bytes;
  return o;
}

// A pattern that differs by round and by place, written in few steps.
inline void paint(std::uint8_t* at, std::size_t bytes, unsigned round) {
  std::uint8_t block[4093];
  for (std::size_t i = 0; i < sizeof block; ++i)
    block[i] = static_cast<std::uint8_t>(i * 7 + i / 251 + round * 41);
  for (std::size_t done = 0; done < bytes; done += sizeof block)
    std::memcpy(at + done, block, std::min(sizeof block, bytes - done));
}

// The next completion of `side`; both sides are polled.
inline ibv_wc next(Side& side, Side& other) {
  ibv_wc wc{};
  for (const std::int64_t end = now_ns() + 20 * kSecond; now_ns() < end;) {
    if (ibv_poll_cq(side.cq, 1, &wc) == 1) return wc;
    (void)ibv_poll_cq(other.cq, 0, nullptr);
  }
  FAIL("no completion within 20 s");
  return wc;
}

}  // namespace twinpath::test
