// One stream of a copy thread, over a made-up GPU: when its values need a copy before them.
#include <array>
#include <cstddef>
#include <mutex>
#include <thread>
#include <vector>

#include "plugin/base/clock.h"
#include "plugin/gpu/lane.h"
#include "test/support/catch.h"
#include "test/unit/fake_copy_gpu.h"

namespace twinpath::gpu {
namespace {

using test_copies::FakeGpu;
using test_copies::fill;
using test_copies::Job;
using test_copies::Machine;

CopyEnd host_at(const void* p) { return {reinterpret_cast<std::uintptr_t>(p), -1}; }

// What brings a stream to the copy engine is a copy that nobody asked for.
TEST_CASE("values go without a copy where the stream is on the copy engine", "[gpu_process]") {
  Machine machine;
  FakeGpu& fake = machine.gpu();
  std::vector<std::uint64_t> pinned(16 + CopyLane::kMaxDepth * CopyLane::kStageWords);
  CopyLane::Setup setup;
  setup.driver = cuda::driver();
  setup.gpu = 0;
  REQUIRE(setup.driver->stream_create(&setup.stream, 0) == 0);
  setup.word = pinned.data();
  setup.rows_below = kRowsBelow;
  setup.word_stage = &pinned[16];
  setup.nudge_from = machine.device();
  setup.nudge_to = reinterpret_cast<std::uintptr_t>(&pinned[8]);
  std::array<std::uint64_t, 4> words = {1, 2, 3, 4};
  const auto carry_out = [](CopyLane& lane, Job& job) {
    lane.add(&job);
    LaneCounts counts;
    REQUIRE(lane.issue(counts));
    while (!lane.poll([](CopyJob* j, Status status) { j->done(j, status); }))
      std::this_thread::yield();
    return job.status;
  };
  // The copies that the GPU is given for one job of so many bytes.
  const auto copies_of = [&](CopyLane& lane, std::uint64_t bytes) {
    const auto count = [&] {
      const std::lock_guard lock(fake.mutex);
      return fake.copies;
    };
    const std::size_t before = count();
    Job job;
    fill(job, {machine.device() + 64, 0}, host_at(words.data()), bytes);
    CHECK(carry_out(lane, job) == Status::ok);
    return count() - before;
  };
  setup.late = {60 * kSecond, 600 * kSecond};
  SECTION("once a stream, and again after what went by the compute engine") {
    CopyLane lane(setup);
    CHECK(copies_of(lane, 8) == 1);
    CHECK(copies_of(lane, 8) == 0);
    CHECK(copies_of(lane, 16) == 0);
    CHECK(copies_of(lane, 24) == 3);  // rows
    CHECK(copies_of(lane, 4) == 0);
    CHECK(copies_of(lane, 1) == 2);  // makes no rows, and the word at its end is a value, too
    CHECK(copies_of(lane, 8) == 0);
  }
  SECTION("where the copy that would have brought it there was refused") {
    CopyLane lane(setup);
    const std::vector<std::byte> source(64 << 10);
    {
      const std::lock_guard lock(fake.mutex);
      fake.bad_address = machine.device() + 64;
    }
    Job job;
    fill(job, {machine.device() + 64, 0}, host_at(source.data()), source.size());
    CHECK(carry_out(lane, job) == Status::system);
  }
  SECTION("always, where they are late all the same") {
    setup.late.late = -1;
    CopyLane lane(setup);
    CHECK(copies_of(lane, 8) == 1);
    for (unsigned i = 0; i < LateValues::kOften; ++i) CHECK(copies_of(lane, 8) == 0);
    for (int i = 0; i < 3; ++i) CHECK(copies_of(lane, 8) == 1);
    CHECK(copies_of(lane, 32) == 2);
  }
  REQUIRE(setup.driver->stream_destroy(setup.stream) == 0);
  const std::lock_guard lock(fake.mutex);
  CHECK(fake.bare_values == 0);
}

TEST_CASE("values are trusted until more are late than in time", "[gpu_process]") {
  LateValues values({10, 100});
  const auto took = [&](std::int64_t at, std::int64_t ns) { return values.took(at - ns, at); };
  CHECK(values.trusted(0));
  for (std::int64_t at = 0; at < 100; at += 2) {  // every other one is late
    CHECK_FALSE(took(at, 11));
    CHECK_FALSE(took(at + 1, 10));
  }
  CHECK(values.trusted(100));
  CHECK_FALSE(took(200, 11));
  CHECK_FALSE(took(201, 11));
  CHECK_FALSE(took(202, 10));
  CHECK_FALSE(took(203, 11));
  CHECK(values.trusted(203));
  CHECK(took(204, 11));
  CHECK_FALSE(values.trusted(204));
  CHECK_FALSE(values.trusted(303));
  CHECK(values.trusted(304));    // one is tried
  CHECK_FALSE(took(310, 5000));  // late again: not told again
  CHECK_FALSE(values.trusted(409));
  CHECK(values.trusted(410));
  CHECK_FALSE(took(411, 3));  // in time
  CHECK(values.trusted(412));
  CHECK_FALSE(took(420, 11));
  CHECK_FALSE(values.trusted(421));
}

}  // namespace
}  // namespace twinpath::gpu
