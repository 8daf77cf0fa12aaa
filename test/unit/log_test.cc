// What the host program's logger is given.
#include <cstring>
#include <string>
#include <vector>

#include "plugin/base/log.h"
#include "test/support/catch.h"
#include "test/support/log_capture.h"

using namespace twinpath;

namespace {

struct Line {
  LogLevel level;
  unsigned long subsys;
  std::string format;
};
std::vector<Line>* lines = nullptr;

void sink(LogLevel level, unsigned long subsys, const char*, int, const char* format, ...) {
  lines->push_back({level, subsys, format});
}

}  // namespace

// NCCL's logger drops every line, warnings too, that has no bit of NCCL_DEBUG_SUBSYS; by default
// that is INIT, BOOTSTRAP and ENV (NCCL 2.27 to 2.30, debug.cc).
TEST_CASE("warnings pass whatever subsystems the user asks for, other lines have theirs") {
  std::vector<Line> seen;
  lines = &seen;
  const LogSink before = set_log_sink(sink);
  TP_WARN("disk %d", 1);
  TP_INFO(net, "link");
  TP_TRACE(init, "step");
  set_log_sink(before);
  REQUIRE(seen.size() == 3);
  CHECK(seen[0].level == LogLevel::warn);
  for (const unsigned long asked : {0x1ul, 0x2ul, 0x80ul, 0x10ul, 0x8000000ul})
    CHECK((seen[0].subsys & asked) != 0);
  CHECK(seen[1].subsys == 0x10);
  CHECK(seen[2].subsys == 0x1);
}

TEST_CASE("control characters in a message are shown, not sent to the terminal") {
  test::LogCapture log;
  TP_WARN("device %s", "mlx5_0\r\x1b[1m");
  CHECK(log.warnings().at(0) == "NET/Twinpath: device mlx5_0\\r\\x1b[1m");
  TP_WARN("%s", std::string(5000, '\r').c_str());
  CHECK(log.warnings().at(1).size() < 1850);
}
