// Which queues a turn looks at.
#include "gda/served/front/doorbell_scan.h"

#include <algorithm>
#include <vector>

#include "test/support/catch.h"

using twinpath::gda::DoorbellScan;

namespace {

struct Queues {
  std::vector<std::uint64_t> bells = std::vector<std::uint64_t>(5);
  DoorbellScan scan{bells.data(), bells.size()};
  std::vector<std::size_t> visited;
  std::vector<std::size_t> busy;  // stay awake

  std::vector<std::size_t> pass(std::size_t first = 0, std::size_t last = 5) {
    visited.clear();
    const bool any = scan.pass(first, last, [&](std::size_t q) {
      visited.push_back(q);
      return std::find(busy.begin(), busy.end(), q) != busy.end();
    });
    CHECK(any == !visited.empty());
    return visited;
  }
};
using Visits = std::vector<std::size_t>;

}  // namespace

TEST_CASE("All queues are looked at once, then those that rang, were woken or stay awake") {
  Queues q;
  CHECK(q.pass() == Visits{0, 1, 2, 3, 4});
  CHECK(q.pass().empty());
  q.bells[3] = 1;
  CHECK(q.pass() == Visits{3});
  CHECK(q.pass().empty());
  q.scan.wake(1);
  q.busy = {1};
  CHECK(q.pass() == Visits{1});
  CHECK(q.pass() == Visits{1});
  q.busy.clear();
  CHECK(q.pass() == Visits{1});
  CHECK(q.pass().empty());
  q.scan.wake_all();
  CHECK(q.pass(0, 2) == Visits{0, 1});
  CHECK(q.pass(2, 5) == Visits{2, 3, 4});
  // Back to an older value, as a hostile kernel may: a change, too.
  q.bells[3] = 0;
  CHECK(q.pass() == Visits{3});
}

TEST_CASE("A doorbell that rings while its queue is looked at is not lost") {
  std::vector<std::uint64_t> bells(2);
  DoorbellScan scan(bells.data(), bells.size());
  int visits = 0;
  const auto ring_once = [&](std::size_t) {
    if (++visits == 1) bells[0] = 1;
    return false;
  };
  CHECK(scan.pass(0, 1, ring_once));
  CHECK(scan.pass(0, 1, ring_once));
  CHECK_FALSE(scan.pass(0, 1, ring_once));
  // So is what wakes it meanwhile.
  const auto wake_self = [&](std::size_t queue) {
    if (++visits == 3) scan.wake(queue);
    return false;
  };
  bells[0] = 2;
  CHECK(scan.pass(0, 1, wake_self));
  CHECK(scan.pass(0, 1, wake_self));
  CHECK_FALSE(scan.pass(0, 1, wake_self));
}
