#pragma once
// Pieces of text for the two renderings of a FakeMachine.
#include <cstdint>
#include <cstdio>
#include <string>

namespace twinpath::test {

inline std::string format(const char* pattern, auto... values) {
  char out[256];
  std::snprintf(out, sizeof out, pattern, values...);
  return out;
}

inline std::string last(const std::string& path) { return path.substr(path.rfind('/') + 1); }
inline std::string above(const std::string& path) {
  const std::size_t slash = path.rfind('/');
  return slash == std::string::npos ? std::string() : path.substr(0, slash);
}

// "0c42:a103:0000:0010"
inline std::string guid_text(std::uint64_t g) {
  return format("%04x:%04x:%04x:%04x", static_cast<unsigned>(g >> 48 & 0xffff),
                static_cast<unsigned>(g >> 32 & 0xffff), static_cast<unsigned>(g >> 16 & 0xffff),
                static_cast<unsigned>(g & 0xffff));
}

}  // namespace twinpath::test
