#pragma once
// Skipping a test case for want of something this machine does not have.
//
//   NEEDS(have_gpu(), "no GPU");
//
// leaves the case; the reason is printed at the end of the program, and a program whose every
// selected case was skipped exits with 77, which Meson shows as SKIP.
#include <string>

namespace twinpath::test {

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
