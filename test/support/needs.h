#pragma once
// Skipping a test case for want of something this machine does not have.
//
//   NEEDS(have_gpu(), "no GPU");
//
// leaves the case; the reason is printed at the end of the program, and a program whose every
// selected case was skipped exits with 77, which Meson shows as SKIP.
#include <string>

#if defined(__SANITIZE_THREAD__)
#define TWINPATH_SANITIZES_THREADS true
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define TWINPATH_SANITIZES_THREADS true
#endif
#endif
#ifndef TWINPATH_SANITIZES_THREADS
#define TWINPATH_SANITIZES_THREADS false
#endif
#if defined(__SANITIZE_ADDRESS__)
#define TWINPATH_SANITIZES_ADDRESSES true
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define TWINPATH_SANITIZES_ADDRESSES true
#endif
#endif
#ifndef TWINPATH_SANITIZES_ADDRESSES
#define TWINPATH_SANITIZES_ADDRESSES false
#endif

namespace twinpath::test {

// The thread sanitizer sees no order that goes through another process: where we read a buffer,
// tell the peer, and the peer's answer has our engine thread write the buffer again, it finds a
// race unless both happen to take one lock.
inline constexpr bool kSanitizesThreads = TWINPATH_SANITIZES_THREADS;
// Any: the same code has run in the plain build.  Cases in which little happens but time passing
// are left out here, and tables of like cases are shorter.
inline constexpr bool kSanitizes = kSanitizesThreads || TWINPATH_SANITIZES_ADDRESSES;

// Called by NEEDS on the test thread.
void note_skip(const std::string& why);

}  // namespace twinpath::test

#define NEEDS(condition, why)                                                                     \
  do {                                                                                            \
    if (!(condition)) {                                                                           \
      ::twinpath::test::note_skip(Catch::getResultCapture().getCurrentTestName() + ": " + (why)); \
      SUCCEED("skipped: " why);                                                                   \
      return;                                                                                     \
    }                                                                                             \
  } while (0)
