// The main function of every Catch2 test program.
//
// Why not Catch2's own: Meson counts a program as skipped when it exits with 77, and Catch2 v2
// has no notion of a skipped case; see needs.h.  The last line, "cases: N passed, N failed,
// N skipped", is the same for v2 and v3 and is what tools/test.sh adds up.
#if !__has_include(<catch2/catch_all.hpp>)
#define CATCH_CONFIG_RUNNER
#endif
#include "test/support/catch.h"

#include <cstdio>
#include <string>
#include <vector>

#include "test/support/needs.h"

namespace twinpath::test {
namespace {

// Test programs run their cases one after the other, and Catch2 makes the listener itself: the
// totals have to live outside of it.
struct Totals {
  int passed = 0, failed = 0;
  bool current_skipped = false;
  std::vector<std::string> skipped;
};
Totals& totals() {
  static Totals t;
  return t;
}

#if __has_include(<catch2/catch_all.hpp>)
using ListenerBase = Catch::EventListenerBase;
#else
using ListenerBase = Catch::TestEventListenerBase;
#endif

class Counter : public ListenerBase {
 public:
  using ListenerBase::ListenerBase;
  void testCaseStarting(const Catch::TestCaseInfo& info) override {
    ListenerBase::testCaseStarting(info);
    totals().current_skipped = false;
  }
  void testCaseEnded(const Catch::TestCaseStats& stats) override {
    ListenerBase::testCaseEnded(stats);
    if (stats.totals.testCases.failed > 0) {
      ++totals().failed;
    } else if (!totals().current_skipped) {
      ++totals().passed;
    }
  }
};
CATCH_REGISTER_LISTENER(Counter)

}  // namespace

void note_skip(const std::string& why) {
  Totals& t = totals();
  if (!t.current_skipped) t.skipped.push_back(why);
  t.current_skipped = true;
}

}  // namespace twinpath::test

int main(int argc, char** argv) {
  const int rc = Catch::Session().run(argc, argv);
  const auto& t = twinpath::test::totals();
  const int ran = t.passed + t.failed;
  if (ran == 0 && t.skipped.empty()) return rc;  // --help, --list-tests, or nothing selected
  for (const std::string& why : t.skipped) std::printf("skipped: %s\n", why.c_str());
  std::printf("cases: %d passed, %d failed, %zu skipped\n", t.passed, t.failed, t.skipped.size());
  if (rc != 0) return rc;
  return ran == 0 ? 77 : 0;
}
