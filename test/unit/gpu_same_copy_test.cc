// Copies within one GPU over a fake CUDA driver: through host memory and through another GPU, in
// rounds, and out of the way of everything else.
#include <array>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <memory>
#include <random>
#include <vector>

#include "test/support/catch.h"
#include "test/support/log_capture.h"
#include "test/unit/fake_copy_gpu.h"

namespace twinpath::gpu {

using namespace test_copies;

namespace {

using test::LogCapture;
constexpr std::uint64_t kKiB = 1024, kMiB = 1 << 20;

// Pinned and device memory asked for until now.
std::size_t allocated(Machine& m) {
  std::lock_guard lock(m.gpu().mutex);
  return m.gpu().alloc_calls + m.gpu().host_allocs;
}
template <class T>
T look(Machine& m, const T& value) {
  std::lock_guard lock(m.gpu().mutex);
  return value;
}
// Waits until `value` gets there (a loaded machine takes its time), and then for what goes beyond.
template <class T>
T settled(Machine& m, const T& value, T expected) {
  m.settle_when([&] { return value >= expected; });
  return look(m, value);
}
void number(std::vector<std::uint64_t>& words, std::uint64_t seed) {
  for (std::size_t i = 0; i < words.size(); ++i) words[i] = (i + seed) * 0x9E3779B97F4A7C15ull;
}
std::vector<std::unique_ptr<Job>> make_jobs(std::size_t n) {
  std::vector<std::unique_ptr<Job>> jobs;
  for (std::size_t i = 0; i < n; ++i) jobs.push_back(std::make_unique<Job>());
  return jobs;
}

}  // namespace

TEST_CASE("a same-GPU copy of any size lands whole and no copy stays within a GPU", "[cuda_copy]") {
  const bool neighbour = GENERATE(false, true);
  Machine m(80 * kMiB);
  number(m.device_words(), 1);
  if (neighbour) prepare_copies(0);
  const std::uint64_t half = 40 * kMiB;
  CHECK(move({m.device() + half, 0}, {m.device(), 0}, 1) == Status::ok);  // the thread is up
  const std::size_t before = allocated(m);
  for (const std::uint64_t n :
       {std::uint64_t{1}, std::uint64_t{7}, kSmallStaged - 1, kSmallStaged, kSmallStaged + 1,
        kSmallStage, kHostStage - 1, kHostStage, kHostStage + 1, 3 * kHostStage + 12345,
        kPeerStage - 1, kPeerStage, kPeerStage + 257}) {
    INFO("bytes " << n);
    auto* to = reinterpret_cast<std::uint8_t*>(m.device() + half + 3);
    std::memset(to - 3, 0xEE, n + 6);
    REQUIRE(move({m.device() + half + 3, 0}, {m.device() + 5, 0}, n) == Status::ok);
    CHECK(std::memcmp(to, pointer(m.device() + 5), n) == 0);
    CHECK((to[-1] == 0xEE && to[n] == 0xEE));
  }
  CHECK(m.gpu().same_gpu_copies == 0);
  CHECK((m.gpu().through_peer != 0) == neighbour);
  CHECK(allocated(m) == before);
  CHECK(m.gpu().alloc_calls == (neighbour ? 1 : 0));
}

TEST_CASE("small same-GPU copies go through the host even when there is a neighbour",
          "[cuda_copy]") {
  Machine m;
  prepare_copies(0);
  CHECK(move({m.device() + kMiB, 0}, {m.device(), 0}, kSmallStaged) == Status::ok);
  CHECK(m.gpu().through_peer == 0);
  CHECK(move({m.device() + kMiB, 0}, {m.device(), 0}, kSmallStaged + 1) == Status::ok);
  CHECK(m.gpu().through_peer != 0);
}

TEST_CASE("a same-GPU copy goes out and in by as much as the stage holds", "[cuda_copy]") {
  const bool neighbour = GENERATE(false, true);
  const std::uint64_t stage = neighbour ? kPeerStage : kHostStage;
  Machine m(80 * kMiB);
  number(m.device_words(), 2);
  if (neighbour) prepare_copies(0);
  const std::uint64_t half = 40 * kMiB;
  m.gpu().hold(true);
  Job first, second;
  fill(first, {m.device() + half, 0}, {m.device(), 0}, 36 * kMiB, 1);
  fill(second, {m.device() + half + 36 * kMiB, 0}, {m.device() + 36 * kMiB, 0}, 4 * kMiB, 2);
  REQUIRE(submit_copy(&first) == Status::ok);
  REQUIRE(submit_copy(&second) == Status::ok);
  CHECK(settled(m, m.gpu().ran_out, stage) == stage);
  CHECK_FALSE(first.finished.load());
  m.gpu().hold(false);
  CHECK(wait(first) == Status::ok);
  CHECK(wait(second) == Status::ok);
  CHECK(std::memcmp(pointer(m.device() + half), pointer(m.device()), 40 * kMiB) == 0);
  CHECK(m.gpu().copies == (neighbour ? 6 : 12));
}

TEST_CASE("same-GPU copies that stand still hold up no other order", "[cuda_copy]") {
  Machine m;
  number(m.device_words(), 3);
  // The order may have used each of the lanes before; what is in flight there may be its own.
  const int before = GENERATE(0, 1, 2);
  // as<>: of a named constant GENERATE would keep references, also to what is gone by then.
  const std::uint64_t bytes = GENERATE(as<std::uint64_t>{}, kSmallStaged, 4 * kMiB);
  Job earlier, staged;
  m.gpu().pause(true);
  if (before == 1) fill(earlier, {m.host(), -1}, {m.device(), 0}, 4096);
  if (before == 2) fill(earlier, {m.device() + 7 * kMiB, 0}, {m.host(), -1}, 8);
  if (before != 0) REQUIRE(submit_copy(&earlier) == Status::ok);
  fill(staged, {m.device() + 4 * kMiB, 0}, {m.device(), 0}, bytes);
  REQUIRE(submit_copy(&staged) == Status::ok);
  Machine::settle();
  m.gpu().hold(true);
  m.gpu().pause(false);
  if (before != 0) CHECK(wait(earlier) == Status::ok);
  auto others = make_jobs(64);
  for (std::size_t i = 0; i < others.size(); ++i) {
    const std::uint64_t at = kMiB + i * 4096;
    if (i % 2 == 0)
      fill(*others[i], {m.host() + at, -1}, {m.device() + at, 0}, 4096, 100 + i);
    else
      fill(*others[i], {m.device() + 6 * kMiB + at, 0}, {m.host(), -1}, 8, 100 + i);
    REQUIRE(submit_copy(others[i].get()) == Status::ok);
  }
  for (auto& j : others) CHECK(wait(*j) == Status::ok);
  Machine::settle();
  CHECK_FALSE(staged.finished.load());
  m.gpu().hold(false);
  CHECK(wait(staged) == Status::ok);
  CHECK(std::memcmp(pointer(m.device() + 4 * kMiB), pointer(m.device()), bytes) == 0);
}

TEST_CASE("a large same-GPU copy that stands still does not hold up small ones of other orders",
          "[cuda_copy]") {
  Machine m;
  number(m.device_words(), 4);
  Job large;
  fill(large, {m.device() + 4 * kMiB, 0}, {m.device(), 0}, 2 * kMiB, 1);
  m.gpu().pause(true);
  REQUIRE(submit_copy(&large) == Status::ok);
  m.given(1);
  std::vector<FakeStream*> busy;
  {
    std::lock_guard lock(m.gpu().mutex);
    for (FakeStream* s : m.gpu().streams)
      if (!s->work.empty()) busy.push_back(s);
    for (FakeStream* s : busy) m.gpu().streams.erase(s);
  }
  CHECK(busy.size() == 1);
  m.gpu().pause(false);
  Job small;
  fill(small, {m.device() + 7 * kMiB, 0}, {m.device() + 3 * kMiB, 0}, 4096, 2);
  REQUIRE(submit_copy(&small) == Status::ok);
  CHECK(wait(small) == Status::ok);
  CHECK_FALSE(large.finished.load());
  {
    std::lock_guard lock(m.gpu().mutex);
    m.gpu().streams.insert(busy.begin(), busy.end());
    m.gpu().changed.notify_all();
  }
  CHECK(wait(large) == Status::ok);
}

TEST_CASE("mixed orders keep their order and every byte lands, with and without a neighbour",
          "[cuda_copy]") {
  const bool neighbour = GENERATE(false, true);
  constexpr std::size_t kJobs = 1200, kOrders = 23;
  constexpr std::uint64_t kCell = 200 * kKiB, kCells = 190;
  Machine m(2 * kCells * kCell + kMiB);
  number(m.device_words(), 5);
  number(m.host_words(), 6);
  if (neighbour) prepare_copies(0);
  std::mt19937 random(7);
  auto jobs = make_jobs(kJobs);
  std::array<std::vector<std::size_t>, kOrders> logs;
  // Sources are the first half of each memory, targets cells of the second: job i's cell is
  // written again only by later jobs, which wait for it below.
  const std::uint64_t half = kCells * kCell;
  for (std::size_t from = 0; from < kJobs; from += kCells) {
    const std::size_t to = std::min(from + kCells, kJobs);
    for (std::size_t i = from; i < to; ++i) {
      const std::uint64_t at = (i - from) * kCell;
      const CopyEnd gpu{m.device() + at, 0}, cpu{m.host() + at, -1};
      const CopyEnd far_gpu{m.device() + half + at, 0}, far_cpu{m.host() + half + at, -1};
      const std::uint64_t small = 1 + random() % 2000, large = 70 * kKiB + random() % (100 * kKiB);
      switch (random() % 6) {
        case 0:
          fill(*jobs[i], far_gpu, cpu, 8);
          break;
        case 1:
          fill(*jobs[i], far_gpu, cpu, small);
          break;
        case 2:
          fill(*jobs[i], far_cpu, gpu, large);
          break;
        case 3:
          fill(*jobs[i], far_gpu, gpu, small);
          break;
        default:
          fill(*jobs[i], far_gpu, gpu, large);
          break;
      }
      jobs[i]->order = random() % kOrders;
      jobs[i]->index = i;
      jobs[i]->log = &logs[jobs[i]->order];
      REQUIRE(submit_copy(jobs[i].get()) == Status::ok);
    }
    for (std::size_t i = from; i < to; ++i) {
      const Job& j = *jobs[i];
      CHECK(wait(*jobs[i]) == Status::ok);
      CHECK(std::memcmp(pointer(j.to.address), pointer(j.from.address), j.bytes) == 0);
    }
  }
  for (const auto& log : logs) CHECK(std::is_sorted(log.begin(), log.end()));
  CHECK(m.gpu().same_gpu_copies == 0);
  CHECK((m.gpu().through_peer != 0) == neighbour);
}

TEST_CASE("a transfer and its signal finish in order, again and again", "[cuda_copy]") {
  Machine m;
  number(m.device_words(), 8);
  auto jobs = make_jobs(200);
  std::vector<std::size_t> log;
  for (std::size_t i = 0; i < jobs.size(); ++i) {
    if (i % 2 == 0) {
      fill(*jobs[i], {m.device() + 4 * kMiB, 0}, {m.device(), 0}, (i % 3 + 1) * 50 * kKiB);
    } else {
      fill(*jobs[i], {m.device() + 7 * kMiB, 0}, {m.host() + i * 8, -1}, 8);
    }
    jobs[i]->index = i;
    jobs[i]->log = &log;
    REQUIRE(submit_copy(jobs[i].get()) == Status::ok);
    if (i % 7 == 0) (void)wait(*jobs[i]);  // at times the order is idle
  }
  for (auto& j : jobs) CHECK(wait(*j) == Status::ok);
  REQUIRE(log.size() == jobs.size());
  CHECK(std::is_sorted(log.begin(), log.end()));
}

TEST_CASE("the neighbour's memory is on the other GPU, is had once and is given back",
          "[cuda_copy]") {
  LogCapture log;
  Machine m;
  for (int i = 0; i < 5; ++i) prepare_copies(0);
  CHECK(log.has(LogLevel::info, "GPU 0: large copies within it go through 32 MiB of GPU 1"));
  {
    std::lock_guard lock(m.gpu().mutex);
    REQUIRE(m.gpu().allocations.size() == 1);
    CHECK(m.gpu().allocations.begin()->second.gpu == 1);
    CHECK(m.gpu().retained[1] == 1);
  }
  stop_copy_threads();
  CHECK(m.gpu().allocations.empty());
  CHECK((m.gpu().retained[0] == 0 && m.gpu().retained[1] == 0));
  // Started anew by a copy: nothing is allocated on another GPU on the way of data.
  CHECK(move({m.device() + 4 * kMiB, 0}, {m.device(), 0}, kMiB) == Status::ok);
  CHECK(m.gpu().through_peer == 0);
}

TEST_CASE("without the neighbour's memory copies go through the host, and it is said once",
          "[cuda_copy]") {
  LogCapture log;
  Machine m;
  number(m.device_words(), 9);
  SECTION("the allocation fails") { m.gpu().alloc_result = 2; }
  SECTION("peer access fails") { m.gpu().peer_result = 217; }
  for (int i = 0; i < 5; ++i) prepare_copies(0);
  CHECK(m.gpu().alloc_calls == 1);
  CHECK(m.gpu().allocations.empty());
  CHECK(m.gpu().retained[1] == 0);
  CHECK(move({m.device() + 4 * kMiB, 0}, {m.device(), 0}, 3 * kMiB) == Status::ok);
  CHECK(std::memcmp(pointer(m.device() + 4 * kMiB), pointer(m.device()), 3 * kMiB) == 0);
  CHECK(m.gpu().through_peer == 0);
  CHECK(log.warnings().empty());
  std::size_t said = 0;
  for (const auto& line : log.lines())
    if (line.text.find("FAKE_ERROR") != std::string::npos) ++said;
  CHECK(said == 1);
}

TEST_CASE("peer access that is on already is no failure", "[cuda_copy]") {
  Machine m;
  m.gpu().peer_result = cuda::kPeerAccessAlreadyEnabled;
  prepare_copies(0);
  CHECK(move({m.device() + 4 * kMiB, 0}, {m.device(), 0}, kMiB) == Status::ok);
  CHECK(m.gpu().through_peer != 0);
}

TEST_CASE("only a GPU that the program uses and that is reached serves as neighbour",
          "[cuda_copy]") {
  LogCapture log;
  Machine m;
  SECTION("not used") { m.gpu().in_use[1] = false; }
  SECTION("not reached") { m.gpu().peers = false; }
  prepare_copies(0);
  CHECK(m.gpu().alloc_calls == 0);
  CHECK(m.gpu().retained[1] == 0);
  CHECK(move({m.device() + 4 * kMiB, 0}, {m.device(), 0}, kMiB) == Status::ok);
  CHECK(m.gpu().through_peer == 0);
  // Later the program uses it: the next registration finds it.
  m.gpu().in_use[1] = true;
  m.gpu().peers = true;
  prepare_copies(0);
  CHECK(move({m.device() + 4 * kMiB, 0}, {m.device(), 0}, kMiB) == Status::ok);
  CHECK(m.gpu().through_peer != 0);
}

TEST_CASE("another GPU that issues a copy does not bounce it where it comes from", "[cuda_copy]") {
  Machine m;
  number(m.device_words(), 10);
  prepare_copies(1);  // its neighbour is GPU 0, where the data are
  REQUIRE(m.gpu().allocations.begin()->second.gpu == 0);
  Job job;
  fill(job, {m.device() + 4 * kMiB, 0}, {m.device(), 0}, 3 * kMiB);
  job.executor = 1;
  REQUIRE(submit_copy(&job) == Status::ok);
  CHECK(wait(job) == Status::ok);
  CHECK(std::memcmp(pointer(m.device() + 4 * kMiB), pointer(m.device()), 3 * kMiB) == 0);
  CHECK(m.gpu().same_gpu_copies == 0);
}

TEST_CASE("a part that cannot be read or written fails its copy alone", "[cuda_copy]") {
  LogCapture log;
  Machine m;
  number(m.device_words(), 11);
  const bool reading = GENERATE(true, false);
  // In the second round of job 3.
  const std::uint64_t cell = 500 * kKiB;
  auto jobs = make_jobs(7);
  m.gpu().pause(true);
  for (std::size_t i = 0; i < jobs.size(); ++i) {
    const std::uint64_t to = m.device() + 4 * kMiB + i * cell;
    std::memset(pointer(to), 0xEE, cell);
    fill(*jobs[i], {to, 0}, {m.device() + i * cell, 0}, cell, i);
  }
  (reading ? m.gpu().bad_source : m.gpu().bad_address) =
      reading ? jobs[3]->from.address : jobs[3]->to.address;
  for (auto& j : jobs) REQUIRE(submit_copy(j.get()) == Status::ok);
  m.gpu().pause(false);
  for (std::size_t i = 0; i < jobs.size(); ++i) {
    const Job& j = *jobs[i];
    CHECK(wait(*jobs[i]) == (i == 3 ? Status::system : Status::ok));
    if (i != 3) CHECK(std::memcmp(pointer(j.to.address), pointer(j.from.address), cell) == 0);
  }
  CHECK(log.warnings().size() == 1);
}

TEST_CASE("an early part that fails is not forgotten by the later batches", "[cuda_copy]") {
  LogCapture log;
  Machine m(80 * kMiB);
  m.gpu().bad_source = m.device();
  Job job;
  fill(job, {m.device() + 40 * kMiB, 0}, {m.device(), 0}, 30 * kMiB);
  REQUIRE(submit_copy(&job) == Status::ok);
  CHECK(wait(job) == Status::system);
  CHECK(move({m.device() + 40 * kMiB, 0}, {m.device() + 64, 0}, 30 * kMiB) == Status::ok);
}

TEST_CASE("when the context dies, what is held ends too, in order", "[cuda_copy]") {
  LogCapture log;
  Machine m;
  m.gpu().pause(true);
  auto jobs = make_jobs(40);
  std::vector<std::size_t> order;
  for (std::size_t i = 0; i < jobs.size(); ++i) {
    const std::uint64_t at = i * 4096;
    // The first goes to a lane of plain copies; all later ones are held.
    if (i % 4 == 0) fill(*jobs[i], {m.host() + at, -1}, {m.device() + at, 0}, 4096);
    if (i % 4 == 1) fill(*jobs[i], {m.device() + 4 * kMiB + at, 0}, {m.device() + at, 0}, 4096);
    if (i % 4 == 2) fill(*jobs[i], {m.device() + 4 * kMiB, 0}, {m.device(), 0}, 2 * kMiB);
    if (i % 4 == 3) fill(*jobs[i], {m.device() + 7 * kMiB, 0}, {m.host(), -1}, 8);
    jobs[i]->index = i;
    jobs[i]->log = &order;
    REQUIRE(submit_copy(jobs[i].get()) == Status::ok);
  }
  Machine::settle();
  m.gpu().dead = true;
  for (auto& j : jobs) CHECK(wait(*j) == Status::system);
  REQUIRE(order.size() == jobs.size());
  CHECK(std::is_sorted(order.begin(), order.end()));
  // Of the stream, and perhaps of the one copy that was being submitted; not one a job.
  const std::size_t warnings = log.warnings().size();
  CHECK((warnings == 1 || warnings == 2));
}

}  // namespace twinpath::gpu
