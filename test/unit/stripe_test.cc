#include "proxy/wire/stripe.h"

#include <vector>

#include "test/support/catch.h"

namespace twinpath {
namespace {

struct Case {
  const char* what;
  std::size_t bytes;
  std::vector<std::uint32_t> weights;
  std::vector<Chunk> want;
};

TEST_CASE("A message is cut in proportion to the lanes' speeds at multiples of 128") {
  const Case cases[] = {
      {"empty", 0, {100, 100}, {{0, 0, 0}}},
      {"one byte goes whole", 1, {100, 100}, {{0, 0, 1}}},
      {"one lane takes all", 1000, {7}, {{0, 0, 1000}}},
      {"two equal lanes", 1024, {100, 100}, {{0, 0, 512}, {1, 512, 512}}},
      {"odd size leaves the rest to the last", 1000, {1, 1}, {{0, 0, 512}, {1, 512, 488}}},
      {"unequal lanes", 4096, {300, 100}, {{0, 0, 3072}, {1, 3072, 1024}}},
      {"a lane without speed gets nothing", 1024, {100, 0, 100}, {{0, 0, 512}, {2, 512, 512}}},
      {"all weights zero means equal", 512, {0, 0}, {{0, 0, 256}, {1, 256, 256}}},
      {"fewer lines than lanes", 129, {1, 1, 1, 1}, {{0, 0, 128}, {3, 128, 1}}},
  };
  for (const Case& c : cases) {
    INFO(c.what);
    const StripePlan plan = plan_stripes(c.bytes, c.weights);
    REQUIRE(static_cast<std::size_t>(plan.count) == c.want.size());
    for (std::size_t i = 0; i < c.want.size(); ++i) {
      CHECK(plan.chunks[i].lane == c.want[i].lane);
      CHECK(plan.chunks[i].offset == c.want[i].offset);
      CHECK(plan.chunks[i].bytes == c.want[i].bytes);
    }
  }
}

TEST_CASE("D1, D3: chunks cover every size over any number of lanes once and without a gap") {
  for (std::size_t lanes = 1; lanes <= 32; ++lanes) {
    std::vector<std::uint32_t> weights(lanes);
    for (std::size_t i = 0; i < lanes; ++i)
      weights[i] = static_cast<std::uint32_t>(100000 * (1 + i % 3));
    for (std::size_t bytes :
         {std::size_t{0}, std::size_t{127}, std::size_t{128}, std::size_t{4097}, std::size_t{65536},
          std::size_t{1} << 30, (std::size_t{1} << 30) + 77}) {
      const StripePlan plan = plan_stripes(bytes, weights);
      std::size_t at = 0;
      int lane = -1;
      for (int i = 0; i < plan.count; ++i) {
        const Chunk& c = plan.chunks[static_cast<std::size_t>(i)];
        CHECK(c.offset == at);
        CHECK(c.offset % kStripeAlign == 0);
        CHECK(c.lane > lane);
        lane = c.lane;
        at += c.bytes;
      }
      CHECK(at == bytes);
    }
  }
}

TEST_CASE("Both ends count the same queues") {
  CHECK(queues_for(1, 1, 1, 1) == 1);
  CHECK(queues_for(1, 4, 1, 1) == 4);
  CHECK(queues_for(2, 1, 1, 4) == 8);
  CHECK(queues_for(16, 16, 8, 8) == kMaxQps);
  CHECK(queues_for(3, 5, 2, 1) == queues_for(5, 3, 1, 2));
}

}  // namespace
}  // namespace twinpath
