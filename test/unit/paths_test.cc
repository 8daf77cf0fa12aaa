// Which rails a connection's queues join: both ends must come to the same, unasked.
#include "proxy/wire/paths.h"

#include <algorithm>

#include "plugin/rdma/rail.h"
#include "test/support/catch.h"

namespace twinpath {
namespace {

bool any(int, int) { return true; }

TEST_CASE("queues go round over both ends' rails, and those in reserve are behind", "[paths]") {
  struct Case {
    const char* what;
    int queues;
    EndRails local, remote;
    std::vector<QueuePath> regular, reserve;
  };
  const Case cases[] = {
      {"one port, nothing in reserve", 1, {1, 0}, {1, 0}, {{0, 0}}, {}},
      {"one port, one in reserve at both ends", 1, {1, 1}, {1, 1}, {{0, 0}}, {{1, 1}}},
      {"two in reserve", 2, {1, 2}, {1, 2}, {{0, 0}, {0, 0}}, {{1, 1}, {2, 2}}},
      {"only here", 1, {1, 2}, {1, 0}, {{0, 0}}, {{1, 0}, {2, 0}}},
      {"only there", 1, {1, 0}, {1, 1}, {{0, 0}}, {{0, 1}}},
      {"more here", 1, {1, 2}, {1, 1}, {{0, 0}}, {{1, 1}, {2, 1}}},
      {"merged ports", 2, {2, 1}, {2, 1}, {{0, 0}, {1, 1}}, {{2, 2}}},
      {"two to one", 2, {2, 0}, {1, 2}, {{0, 0}, {1, 0}}, {{0, 1}, {1, 2}}},
  };
  for (const Case& c : cases) {
    CAPTURE(c.what);
    const QueuePaths paths = choose_paths(c.queues, c.local, c.remote, any);
    CHECK(paths.regular == static_cast<int>(c.regular.size()));
    std::vector<QueuePath> want = c.regular;
    want.insert(want.end(), c.reserve.begin(), c.reserve.end());
    CHECK(paths.queues == want);
  }
}

TEST_CASE("both ends see the same paths from their sides", "[paths]") {
  for (int queues : {1, 2, 7, 31, 32})
    for (int a = 1; a <= kMaxRails; ++a)
      for (int b = 1; b <= kMaxRails; ++b)
        for (int sa = 0; sa <= std::min(kMaxStandby, kMaxRails - a); ++sa)
          for (int sb = 0; sb <= std::min(kMaxStandby, kMaxRails - b); ++sb) {
            // Not all can reach all.
            const auto reaches = [](int l, int r) { return (l + r) % 3 != 1; };
            const QueuePaths here = choose_paths(queues, {a, sa}, {b, sb}, reaches);
            QueuePaths there = choose_paths(queues, {b, sb}, {a, sa}, reaches);
            for (QueuePath& p : there.queues) std::swap(p.local, p.remote);
            REQUIRE(here.queues == there.queues);
            REQUIRE(here.regular == there.regular);
            REQUIRE(here.queues.size() <= static_cast<std::size_t>(kMaxQps));
          }
}

}  // namespace
}  // namespace twinpath
