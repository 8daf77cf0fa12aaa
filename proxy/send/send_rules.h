#pragma once
// Which messages a sender takes, and which of them go through host memory.
#include <cstddef>
#include <string>

#include "plugin/rdma/devices.h"
#include "topology/decide/decision.h"

namespace twinpath {

struct SendRules {
  int device = 0;
  std::size_t most_bytes = 0;  // the device sends no more in one message
  EndPlan plan{kAnySize};      // for GPU memory

  // Host memory that is registered there: what check() need not look at, but for its length.
  bool plain(const void* data, std::size_t bytes, const ProxyMemory* memory) const {
    return memory != nullptr && memory->plainly_covers(data, bytes, device);
  }
  // Logs what is wrong; `stage`: through host memory.
  Status check(const void* data, std::size_t bytes, const ProxyMemory* memory,
               const std::string& peer, bool& stage) const;
};

}  // namespace twinpath
