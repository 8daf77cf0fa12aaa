#pragma once
// Cases of the self-tests: a line "ok: NAME" or "FAILED: NAME: WHY" for each.
#include <cerrno>
#include <cstdio>
#include <functional>
#include <string>

namespace twinpath::softhca {

inline int failures = 0;
inline std::string why;  // the case that runs has failed; empty: not yet

inline void run(const char* name, const std::function<void()>& body) {
  why.clear();
  errno = 0;
  body();
  if (why.empty()) {
    std::printf("ok: %s\n", name);
  } else {
    std::printf("FAILED: %s: %s\n", name, why.c_str());
    ++failures;
  }
}

}  // namespace twinpath::softhca

// Leaves the function.
#define EXPECT(condition)                                                             \
  do {                                                                                \
    if (!(condition)) {                                                               \
      using twinpath::softhca::why;                                                   \
      why += std::string(why.empty() ? "" : "; ") + #condition + " is false (line " + \
             std::to_string(__LINE__) + ", errno " + std::to_string(errno) + ")";     \
      return;                                                                         \
    }                                                                                 \
  } while (0)
