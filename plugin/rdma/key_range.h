#pragma once
// Memory that the peer may reach by address, with the keys that it has now, a key for each rail of
// this end: queues that take the place of others may be on other ports, whose keys are others.
#include <array>
#include <cstdint>

#include "plugin/base/limits.h"

namespace twinpath {

struct KeyRange {
  std::uint64_t address = 0, bytes = 0;
  std::array<std::uint32_t, kMaxRails> rkeys{};
  bool covers(std::uint64_t at, std::uint64_t size) const {
    return at - address <= bytes && size <= bytes - (at - address);
  }
};

}  // namespace twinpath
