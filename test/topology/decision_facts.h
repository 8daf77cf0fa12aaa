#pragma once
// Ends for tests of the decision: a distance, and a set of things that the end can do.
#include "topology/decide/policy.h"

namespace twinpath::test {

// What an end may have or lack; each bit is an improvement.
inline constexpr unsigned kGdr = 1, kRootGood = 2, kUar = 4, kDevx = 8, kAtomics = 16,
                          kOrdered = 32, kQueues = 64, kBits = 128;

inline EndFacts facts(Distance d, unsigned bits) {
  EndFacts f;
  f.distance = d;
  f.probes.dmabuf.answer = (bits & kGdr) != 0 ? Answer::yes : Answer::no;
  f.probes.dmabuf.reason = (bits & kGdr) != 0 ? Reason::none : Reason::gdr_none;
  f.probes.uar.answer = (bits & kUar) != 0 ? Answer::yes : Answer::no;
  f.probes.uar.reason = (bits & kUar) != 0 ? Reason::none : Reason::uar_perm;
  f.probes.atomics.answer = (bits & kAtomics) != 0 ? Answer::yes : Answer::no;
  f.root_good = (bits & kRootGood) != 0;
  f.mlx5 = true;
  f.devx = (bits & kDevx) != 0;
  f.gpu_ordered = (bits & kOrdered) != 0;
  f.gpu_queues = (bits & kQueues) != 0;
  f.compute_capability = 90;
  return f;
}

}  // namespace twinpath::test
