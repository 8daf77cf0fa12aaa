#pragma once
// How many descriptors this process has, the one that counts them included.
#include <dirent.h>

#include <cstddef>

#include "test/support/catch.h"

namespace twinpath::test {

inline std::size_t open_descriptors() {
  DIR* fds = opendir("/proc/self/fd");
  REQUIRE(fds != nullptr);
  std::size_t n = 0;
  while (readdir(fds) != nullptr) ++n;
  closedir(fds);
  return n;
}

}  // namespace twinpath::test
