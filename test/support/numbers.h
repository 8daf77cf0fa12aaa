#pragma once
// Numbers that make a test longer, or different, when the environment has them, and what many
// measured ones come to.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <utility>
#include <vector>

namespace twinpath::test {

inline std::uint64_t number_from(const char* name, std::uint64_t otherwise) {
  const char* text = std::getenv(name);
  return text != nullptr ? std::strtoull(text, nullptr, 10) : otherwise;
}

// The one that `part` of all are not above; 0 the least, 1 the greatest.
template <class T>
T part_of(std::vector<T> all, double part) {
  std::sort(all.begin(), all.end());
  return all[static_cast<std::size_t>(part * static_cast<double>(all.size() - 1) + 0.5)];
}

template <class T>
T median(std::vector<T> all) {
  return part_of(std::move(all), 0.5);
}

}  // namespace twinpath::test
