// The parts of the threads that copy, each alone.
#include <cstdlib>
#include <mutex>
#include <thread>

#include "plugin/gpu/copy_counts.h"
#include "plugin/gpu/neighbour.h"
#include "test/support/catch.h"
#include "test/unit/fake_copy_gpu.h"

namespace twinpath::gpu {

using namespace test_copies;

namespace {

constexpr std::uint64_t kBytes = 4096;

// The memory on the other GPU that is allocated now, and was ever asked for.
std::size_t held(Machine& m) {
  const std::lock_guard lock(m.gpu().mutex);
  return m.gpu().allocations.size();
}
std::size_t asked(Machine& m) {
  const std::lock_guard lock(m.gpu().mutex);
  return m.gpu().alloc_calls;
}

}  // namespace

TEST_CASE("a job that failed counts, its bytes do not", "[cuda_copy]") {
  CopyCounts counts;
  counts.ended(Status::ok, 100);
  counts.ended(Status::system, 1000);
  counts.ended(Status::ok, 11);
  counts.issued({2, 30, 4});
  counts.issued({});
  counts.issued({1, 5, 6});
  const CopyStatistics s = counts.statistics();
  CHECK(s.jobs == 3);
  CHECK(s.bytes == 111);
  CHECK(s.batches == 3);
  CHECK(s.write_values == 35);
  CHECK(s.staged == 10);
}

TEST_CASE("a neighbour's memory is had once, and only between open and close", "[cuda_copy]") {
  Machine m;
  const cuda::Driver& d = *cuda::driver();
  NeighbourStage stage;
  stage.prepare(d, 0, kBytes, false);
  CHECK(stage.address() == 0);
  CHECK(asked(m) == 0);
  stage.open();
  for (int i = 0; i < 3; ++i) stage.prepare(d, 0, kBytes, false);
  CHECK(asked(m) == 1);
  REQUIRE(held(m) == 1);
  CHECK(stage.address() == m.gpu().allocations.begin()->first);
  SECTION("given back at the end, and had anew") {
    stage.close();
    CHECK(stage.address() == 0);
    CHECK(held(m) == 0);
    CHECK(m.gpu().retained[1] == 0);
    stage.prepare(d, 0, kBytes, false);
    CHECK(asked(m) == 1);
    stage.open();
    stage.prepare(d, 0, kBytes, false);
    CHECK(asked(m) == 2);
    CHECK(held(m) == 1);
    stage.close();
  }
  SECTION("left where it is at process end") {
    stage.leave();
    stage.prepare(d, 0, kBytes, false);
    stage.close();
    CHECK(asked(m) == 1);
    REQUIRE(held(m) == 1);
    std::free(pointer(m.gpu().allocations.begin()->first));
  }
}

TEST_CASE("a neighbour's memory that could not be had is not asked for again", "[cuda_copy]") {
  Machine m;
  const cuda::Driver& d = *cuda::driver();
  NeighbourStage stage;
  stage.open();
  SECTION("but that no GPU may serve yet is no refusal") {
    m.gpu().in_use[1] = false;
    stage.prepare(d, 0, kBytes, false);
    CHECK(asked(m) == 0);
    m.gpu().in_use[1] = true;
    stage.prepare(d, 0, kBytes, false);
    CHECK(stage.address() != 0);
  }
  SECTION("until it is opened anew") {
    m.gpu().alloc_result = 2;
    stage.prepare(d, 0, kBytes, false);
    m.gpu().alloc_result = 0;
    stage.prepare(d, 0, kBytes, false);
    CHECK(asked(m) == 1);
    CHECK(stage.address() == 0);
    stage.close();
    stage.open();
    stage.prepare(d, 0, kBytes, false);
    CHECK(stage.address() != 0);
  }
  SECTION("mapped memory needs no program that uses the GPU") {
    m.gpu().in_use[1] = false;
    stage.prepare(d, 0, kBytes, true);
    CHECK(stage.address() != 0);
    CHECK(m.gpu().retained[1] == 0);
  }
  stage.close();
  CHECK(held(m) == 0);
}

TEST_CASE("who closes waits for who prepares", "[cuda_copy]") {
  Machine m;
  const cuda::Driver& d = *cuda::driver();
  NeighbourStage stage;
  std::thread other([&] {
    for (int i = 0; i < 200; ++i) stage.prepare(d, 0, kBytes, false);
  });
  for (int i = 0; i < 200; ++i) {
    stage.open();
    stage.close();
  }
  other.join();
  CHECK(held(m) == 0);
  CHECK(stage.address() == 0);
}

}  // namespace twinpath::gpu
