#pragma once
// Numbers that make a test longer, or different, when the environment has them.
#include <cstdint>
#include <cstdlib>

namespace twinpath::test {

inline std::uint64_t number_from(const char* name, std::uint64_t otherwise) {
  const char* text = std::getenv(name);
  return text != nullptr ? std::strtoull(text, nullptr, 10) : otherwise;
}

}  // namespace twinpath::test
