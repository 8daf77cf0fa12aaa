#pragma once
// The fault late_us as a bound: behind PCIe data is there when its time has come, whereas the soft
// HCA places it by threads that share the processors with all others.
#include <thread>

#include "plugin/base/clock.h"
#include "plugin/fabric/soft/hca.h"

namespace twinpath::test {

// Waits until what was to be there by now is there.  Whoever was told too early by the transport
// finds the old bytes all the same: what has time left is not waited for.
inline void see_what_has_landed() {
  soft::Hca* const hca = soft::Hca::existing();
  const std::int64_t now = now_ns();
  while (hca != nullptr && hca->posted().owes(now)) std::this_thread::yield();
}

}  // namespace twinpath::test
