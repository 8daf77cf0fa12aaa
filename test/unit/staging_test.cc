#include "plugin/rdma/staging.h"

#include "test/support/catch.h"

namespace twinpath {
namespace {

constexpr std::size_t kKiB = 1024, kMiB = 1024 * kKiB;

struct CellCase {
  const char* what;
  std::size_t bytes, chunk_bytes;
  int count;
  std::size_t last;
};

TEST_CASE("A staged message is cut into at most 32 chunks of 256 KiB or more") {
  const CellCase cases[] = {
      {"empty", 0, 256 * kKiB, 1, 0},
      {"one byte", 1, 256 * kKiB, 1, 1},
      {"one chunk", 256 * kKiB, 256 * kKiB, 1, 256 * kKiB},
      {"one byte more", 256 * kKiB + 1, 256 * kKiB, 2, 1},
      {"NCCL's usual step", 512 * kKiB, 256 * kKiB, 2, 256 * kKiB},
      {"the longest of 256 KiB chunks", 8 * kMiB, 256 * kKiB, 32, 256 * kKiB},
      {"one byte more", 8 * kMiB + 1, 256 * kKiB + 128, 32, 8 * kMiB + 1 - 31 * (256 * kKiB + 128)},
      {"64 MiB", 64 * kMiB, 2 * kMiB, 32, 2 * kMiB},
      {"the longest message", std::size_t{1} << 30, 32 * kMiB, 32, 32 * kMiB},
  };
  for (const CellCase& c : cases) {
    INFO(c.what << ", " << c.bytes << " bytes");
    const ChunkPlan plan = plan_chunks(c.bytes);
    CHECK(plan.chunk_bytes == c.chunk_bytes);
    REQUIRE(plan.count == c.count);
    CHECK(plan.size(plan.count - 1) == c.last);
  }
}

TEST_CASE("Chunks follow each other without gap, and are cut at multiples of 128") {
  for (std::size_t bytes = 0; bytes < 300 * kMiB; bytes = bytes * 5 / 3 + 1) {
    const ChunkPlan plan = plan_chunks(bytes);
    REQUIRE(plan.count >= 1);
    REQUIRE(plan.count <= kMostChunks);
    std::size_t at = 0;
    for (int i = 0; i < plan.count; ++i) {
      REQUIRE(plan.offset(i) == at);
      REQUIRE(at % kStripeAlign == 0);
      REQUIRE((plan.size(i) > 0 || bytes == 0));
      at += plan.size(i);
    }
    REQUIRE(at == bytes);
  }
}

TEST_CASE("The plan of an end says which registrations it needs") {
  CHECK(staging_of(EndPlan{0}) == Staging::always);
  CHECK(staging_of(EndPlan{64 * kKiB}) == Staging::some);
  CHECK(staging_of(EndPlan{kAnySize}) == Staging::never);
}

}  // namespace
}  // namespace twinpath
