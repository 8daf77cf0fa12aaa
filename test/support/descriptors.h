#pragma once
// How many descriptors a process has, and threads: what its folders in /proc hold.
#include <dirent.h>

#include <cstddef>
#include <string>

#include "test/support/catch.h"

namespace twinpath::test {

// Of a folder, "." and ".." included; 0: it cannot be read.
inline std::size_t entries_of(const std::string& folder) {
  DIR* const d = opendir(folder.c_str());
  if (d == nullptr) return 0;
  std::size_t n = 0;
  while (readdir(d) != nullptr) ++n;
  closedir(d);
  return n;
}

// Of this process, the one that counts them included.
inline std::size_t open_descriptors() {
  const std::size_t n = entries_of("/proc/self/fd");
  REQUIRE(n != 0);
  return n;
}

}  // namespace twinpath::test
