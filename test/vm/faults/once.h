#pragma once
// Whether an end posts a write once: what tells a kernel that executes a request again from a
// transport that sends twice.
#include <atomic>
#include <cstdint>

#include "plugin/fabric/fabric.h"

namespace twinpath::test {

// Looks at every write with an immediate that is posted through the fabric's adapters, and puts
// into `twice` the first immediate of a whole message that one queue pair is given a second time
// among kRemembered.  One fabric in a process; posts come from any thread.
void watch_posts(Fabric& fabric, std::atomic<std::uint32_t>& twice);

// An immediate comes back after 256 messages of its receive request.
inline constexpr std::size_t kRemembered = 128;

}  // namespace twinpath::test
