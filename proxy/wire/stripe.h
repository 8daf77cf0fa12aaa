#pragma once
// How one message is cut over several queues.  Pure.
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "plugin/base/limits.h"

namespace twinpath {

struct Chunk {
  int lane = 0;  // index into the weights given
  std::size_t offset = 0;
  std::size_t bytes = 0;
  friend bool operator==(const Chunk&, const Chunk&) = default;
};

struct StripePlan {
  std::array<Chunk, kMaxQps> chunks{};
  int count = 0;
};

// Cuts [0, bytes) in lane order, each lane's share in proportion to its weight (Mb/s) and every
// inner boundary a multiple of kStripeAlign.  Lanes that would get nothing get no chunk; an empty
// message is one chunk of no bytes.  1..kMaxQps lanes; all weights zero counts as all equal.
StripePlan plan_stripes(std::size_t bytes, std::span<const std::uint32_t> weights);

// Queues of one connection: a pure function of what both ends said, so they agree unasked.
int queues_for(int local_qps, int remote_qps, int local_rails, int remote_rails);

}  // namespace twinpath
