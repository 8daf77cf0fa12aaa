// The copy threads over a fake CUDA driver: queueing, order, batching, errors.  Copies within one
// GPU: gpu_same_copy_test.cc.
#include <array>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "test/support/catch.h"
#include "test/support/log_capture.h"
#include "test/unit/fake_copy_gpu.h"

namespace twinpath::gpu {

using namespace test_copies;

TEST_CASE("each kind of copy lands", "[cuda_copy]") {
  Machine m;
  for (std::size_t i = 0; i < m.host_words().size(); ++i) m.host_words()[i] = i * 3 + 1;

  SECTION("tiny ones are written as values, with no copy") {
    CHECK(move({m.device() + 64, 0}, {m.host(), -1}, 32) == Status::ok);
    CHECK(std::memcmp(pointer(m.device() + 64), pointer(m.host()), 32) == 0);
    CHECK(m.gpu().copies == 0);
    CHECK(m.gpu().mem_op_calls == 1);
    CHECK(move({m.device() + 4, 0}, {m.host() + 12, -1}, 4) == Status::ok);
    CHECK(std::memcmp(pointer(m.device() + 4), pointer(m.host() + 12), 4) == 0);
    CHECK((m.device_words()[0] & 0xffffffffu) == 0);
    CHECK(m.device_words()[1] == 0);
    CHECK(m.gpu().copies == 0);
    CHECK(m.gpu().mem_op_calls == 2);
  }
  SECTION("what is not aligned or not a multiple of 8 is copied") {
    CHECK(move({m.device() + 202, 0}, {m.host() + 8, -1}, 4) == Status::ok);
    CHECK(std::memcmp(pointer(m.device() + 202), pointer(m.host() + 8), 4) == 0);
    CHECK(std::exchange(m.gpu().copies, 0) == 1);
    CHECK(move({m.device() + 4, 0}, {m.host(), -1}, 16) == Status::ok);
    CHECK(move({m.device() + 64, 0}, {m.host() + 1, -1}, 16) == Status::ok);
    CHECK(move({m.device() + 128, 0}, {m.host(), -1}, 12) == Status::ok);
    CHECK(m.gpu().copies == 3);
    CHECK(m.gpu().mem_op_calls == 0);
    CHECK(std::memcmp(pointer(m.device() + 4), pointer(m.host()), 16) == 0);
    CHECK(std::memcmp(pointer(m.device() + 64), pointer(m.host() + 1), 16) == 0);
  }
  SECTION("GPU to host") {
    m.device_words()[5] = 77;
    CHECK(move({m.host(), -1}, {m.device() + 40, 0}, 8) == Status::ok);
    CHECK(m.host_words()[0] == 77);
  }
  SECTION("no bytes") { CHECK(move({m.device(), 0}, {m.host(), -1}, 0) == Status::ok); }
  SECTION("host to host is not ours") {
    CHECK(move({m.host(), -1}, {m.host() + 64, -1}, 8) == Status::bad_argument);
  }
}

TEST_CASE("who prepares copies waits until the thread has what it allocates", "[cuda_copy]") {
  Machine m;
  const auto taken = [](auto f) {
    const auto start = std::chrono::steady_clock::now();
    f();
    return std::chrono::steady_clock::now() - start;
  };
  using std::chrono::milliseconds;
  SECTION("it comes") {
    m.gpu().host_alloc_ms = 50;
    CHECK(taken([] { prepare_copies(0, 10'000'000'000); }) >= milliseconds(50));
    CHECK(m.gpu().host_allocs == 1);
    CHECK(taken([] { prepare_copies(0, 10'000'000'000); }) < milliseconds(1000));
  }
  // Who waited for it all the same would never come back.
  SECTION("it does not come in time") {
    m.gpu().host_alloc_held = true;
    CHECK(taken([] { prepare_copies(0, 20'000'000); }) >= milliseconds(20));
    m.gpu().host_alloc_held = false;
  }
  SECTION("nobody asked to wait") {
    m.gpu().host_alloc_held = true;
    prepare_copies(0);
    m.gpu().host_alloc_held = false;
  }
  CHECK(move({m.device(), 0}, {m.host(), -1}, 8) == Status::ok);
  CHECK(m.gpu().host_allocs == 1);
}

TEST_CASE("jobs of one order finish in the order of their submission", "[cuda_copy]") {
  Machine m;
  constexpr std::size_t kJobs = 2000;
  constexpr std::size_t kOrders = 7;
  std::vector<std::unique_ptr<Job>> jobs;
  std::array<std::vector<std::size_t>, kOrders> logs;
  for (std::size_t i = 0; i < kJobs; ++i) {
    jobs.push_back(std::make_unique<Job>());
    Job& j = *jobs.back();
    // Tiny, plain and same-GPU mixed within an order.
    const std::uint64_t at = i * 512;
    const CopyEnd host{m.host() + at, -1};
    const CopyEnd device{m.device() + at, 0};
    const CopyEnd other{m.device() + Machine::kBytes / 2 + at, 0};
    switch (i * 7 / 3 % 4) {
      case 0:
        fill(j, device, host, 64);
        break;
      case 1:
        fill(j, device, host, 500);
        break;
      case 2:
        fill(j, other, device, 256);
        break;
      default:
        fill(j, host, device, 512);
        break;
    }
    j.order = i % kOrders;
    j.index = i;
    j.log = &logs[i % kOrders];
  }
  for (auto& j : jobs) REQUIRE(submit_copy(j.get()) == Status::ok);
  for (auto& j : jobs) CHECK(wait(*j) == Status::ok);
  for (std::size_t o = 0; o < kOrders; ++o) {
    REQUIRE(logs[o].size() >= kJobs / kOrders);
    for (std::size_t i = 0; i < logs[o].size(); ++i) REQUIRE(logs[o][i] == o + i * kOrders);
  }
}

TEST_CASE("what waits while the lane is busy becomes one batch", "[cuda_copy]") {
  Machine m;
  m.gpu().pause(true);
  std::vector<std::unique_ptr<Job>> jobs;
  const auto add = [&] {
    jobs.push_back(std::make_unique<Job>());
    fill(*jobs.back(), {m.device() + jobs.size() * 4096, 0}, {m.host(), -1}, 4096);
    REQUIRE(submit_copy(jobs.back().get()) == Status::ok);
  };
  // Fill both places of the lane of this order one at a time.
  add();
  Machine::settle();
  add();
  Machine::settle();
  for (int i = 0; i < 200; ++i) add();
  Machine::settle();
  m.gpu().pause(false);
  for (auto& j : jobs) CHECK(wait(*j) == Status::ok);
  const std::vector<std::size_t> expected = {kBatchJobs, 200 - kBatchJobs};
  CHECK(m.gpu().batch_sizes == expected);
}

TEST_CASE("many tiny jobs are split at the limit of the driver", "[cuda_copy]") {
  Machine m;
  m.gpu().pause(true);
  std::vector<std::unique_ptr<Job>> jobs;
  for (std::size_t i = 0; i < 100; ++i) {
    m.host_words()[i * 4] = i;
    jobs.push_back(std::make_unique<Job>());
    fill(*jobs.back(), {m.device() + i * 32, 0}, {m.host() + i * 32, -1}, 32);
    REQUIRE(submit_copy(jobs.back().get()) == Status::ok);
  }
  m.gpu().pause(false);
  for (auto& j : jobs) CHECK(wait(*j) == Status::ok);
  CHECK(std::memcmp(pointer(m.device()), pointer(m.host()), 3200) == 0);
  CHECK(m.gpu().mem_op_calls >= 2);  // 400 values, at most 255 a call
}

TEST_CASE("a big copy does not hold up tiny jobs of another order", "[cuda_copy]") {
  Machine m;
  m.gpu().pause(true);
  Job big;
  fill(big, {m.device(), 0}, {m.host(), -1}, 4 << 20, 1);
  REQUIRE(submit_copy(&big) == Status::ok);
  m.given(1);
  FakeStream* busy = nullptr;  // the big copy's stream stands still
  {
    std::lock_guard lock(m.gpu().mutex);
    for (FakeStream* s : m.gpu().streams)
      if (!s->work.empty()) busy = s;
    // No REQUIRE: the copy thread has the big job until it is done.
    CHECK(m.gpu().streams.erase(busy) == 1);
  }
  m.gpu().pause(false);
  Job tiny;
  fill(tiny, {m.device() + (5 << 20), 0}, {m.host(), -1}, 8, 2);
  REQUIRE(submit_copy(&tiny) == Status::ok);
  CHECK(wait(tiny) == Status::ok);
  CHECK_FALSE(big.finished.load());
  {
    std::lock_guard lock(m.gpu().mutex);
    if (busy != nullptr) m.gpu().streams.insert(busy);
    m.gpu().changed.notify_all();
  }
  CHECK(wait(big) == Status::ok);
}

TEST_CASE("one refused copy fails alone and the rest of its batch lands", "[cuda_copy]") {
  test::LogCapture log;
  Machine m;
  m.gpu().bad_address = m.device() + 20 * 4096;
  m.gpu().pause(true);
  std::vector<std::unique_ptr<Job>> jobs;
  const std::uint64_t bytes = GENERATE(std::uint64_t{4096}, std::uint64_t{64});
  std::fill(m.host_words().begin(), m.host_words().end(), 42u);
  for (std::size_t i = 0; i < 60; ++i) {
    jobs.push_back(std::make_unique<Job>());
    fill(*jobs.back(), {m.device() + i * 4096, 0}, {m.host(), -1}, bytes);
    REQUIRE(submit_copy(jobs.back().get()) == Status::ok);
  }
  m.gpu().pause(false);
  for (std::size_t i = 0; i < jobs.size(); ++i) {
    CHECK(wait(*jobs[i]) == (i == 20 ? Status::system : Status::ok));
    if (i != 20) CHECK(m.device_words()[i * 512] == 42);
  }
  CHECK(log.warnings().size() == 1);
  CHECK(log.has(LogLevel::warn, "FAKE_ERROR"));
}

TEST_CASE("a driver that refuses batches is served one by one, and says so once", "[cuda_copy]") {
  test::LogCapture log;
  Machine m;
  m.gpu().batch_refused = true;
  m.gpu().pause(true);
  std::vector<std::unique_ptr<Job>> jobs;
  for (std::size_t i = 0; i < 300; ++i) {
    jobs.push_back(std::make_unique<Job>());
    fill(*jobs.back(), {m.device() + i * 4096, 0}, {m.host(), -1}, 4096);
    REQUIRE(submit_copy(jobs.back().get()) == Status::ok);
  }
  m.gpu().pause(false);
  for (auto& j : jobs) CHECK(wait(*j) == Status::ok);
  CHECK(log.warnings().size() == 1);
}

TEST_CASE("when the context dies everything ends with system and nothing hangs", "[cuda_copy]") {
  test::LogCapture log;
  Machine m;
  m.gpu().pause(true);
  std::vector<std::unique_ptr<Job>> jobs;
  for (std::size_t i = 0; i < 50; ++i) {
    jobs.push_back(std::make_unique<Job>());
    fill(*jobs.back(), {m.device() + i * 4096, 0}, {m.host(), -1}, 4096, i);
    REQUIRE(submit_copy(jobs.back().get()) == Status::ok);
  }
  Machine::settle();
  m.gpu().dead = true;  // never to run what it has
  for (auto& j : jobs) CHECK(wait(*j) == Status::system);
  CHECK(move({m.device(), 0}, {m.host(), -1}, 64) == Status::system);
  // Of the stream, and perhaps of the one copy that was being submitted; not one a job.
  const std::size_t warnings = log.warnings().size();
  CHECK((warnings == 1 || warnings == 2));
}

TEST_CASE("threads may submit at the same time, and a callback may submit", "[cuda_copy]") {
  Machine m;
  struct Chain : Job {
    int left = 200;
  };
  const CopyStatistics before = copy_statistics();
  std::vector<std::thread> submitters;
  for (std::uint64_t t = 0; t < 4; ++t) {
    submitters.emplace_back([&m, t] {
      Chain chain;
      fill(chain, {m.device() + t * 4096, static_cast<int>(t % 2)}, {m.host() + t * 4096, -1},
           t < 2 ? 8 : 1000, t);
      static constexpr auto again = [](CopyJob* base, Status status) {
        auto* c = static_cast<Chain*>(base);
        if (status == Status::ok && --c->left > 0 && submit_copy(c) == Status::ok) return;
        c->status = status;
        c->finished.store(true, std::memory_order_release);
        c->finished.notify_all();
      };
      chain.done = again;
      if (submit_copy(&chain) != Status::ok) std::abort();
      if (wait(chain) != Status::ok || chain.left != 0) std::abort();
      for (int i = 0; i < 20; ++i) {  // long enough apart that the copy thread falls asleep
        std::this_thread::sleep_for(std::chrono::microseconds(700));
        if (move({m.device() + t * 4096, 0}, {m.host() + t * 4096, -1}, 8) != Status::ok)
          std::abort();
      }
    });
  }
  for (auto& t : submitters) t.join();
  const CopyStatistics after = copy_statistics();
  CHECK(after.jobs - before.jobs == 4 * 220);
  CHECK(after.batches > before.batches);
}

TEST_CASE("without a driver copies are unsupported and every pointer is host memory",
          "[cuda_copy]") {
  int x = 0;
  CHECK(inspect_pointer(&x).kind == MemoryKind::host);
  if (cuda::driver() != nullptr) return;  // the program was started with a CUDA driver loaded
  Job job;
  fill(job, {64, 0}, {128, -1}, 8);
  CHECK(submit_copy(&job) == Status::unsupported);
  CHECK(cuda_notes().find("not loaded") != std::string::npos);
}

}  // namespace twinpath::gpu
