// What is sent again when a queue pair is gone.
#include "gda/served/back/replay.h"

#include <string>

#include "test/support/catch.h"

using namespace twinpath;
using namespace twinpath::gda;

namespace {

// w put, i inline put, s signal, r get, n nop, d dump.
OperationKind kind_of(char c) {
  switch (c) {
    case 'w':
      return OperationKind::write;
    case 'i':
      return OperationKind::write_inline;
    case 's':
      return OperationKind::fetch_add;
    case 'r':
      return OperationKind::read;
    case 'd':
      return OperationKind::dump;
    default:
      return OperationKind::nop;
  }
}

// '+' again, '.' applied.
std::string replay(const std::string& under_way, std::uint64_t taken) {
  ReplayRule rule(taken);
  std::string out;
  for (const char c : under_way) out += rule.next(kind_of(c)) == Replay::again ? '+' : '.';
  return out;
}

}  // namespace

TEST_CASE("What is sent again, and what is not") {
  struct Case {
    const char* what;
    const char* under_way;
    std::uint64_t taken;
    const char* expected;
  };
  const Case cases[] = {
      {"nothing was taken", "wswis", 0, "+++++"},
      {"all was taken", "wswis", 2, "....."},
      {"puts before the last signal taken are not written again", "wwswws", 1, "...+++"},
      {"nor inline ones", "isis", 1, "..++"},
      {"a get's answer may be lost although a later signal arrived", "rswrs", 2, "+..+."},
      {"nops and dumps go with what is before them", "nwsdn", 1, "+..++"},
      {"nothing was under way", "", 0, ""},
  };
  for (const Case& c : cases) {
    INFO(c.what);
    CHECK(replay(c.under_way, c.taken) == c.expected);
  }
}
