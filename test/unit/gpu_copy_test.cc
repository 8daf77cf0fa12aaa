// The copy threads of the soft HCA over a fake CUDA driver: queueing, order, batching, errors.
//
// How: "GPU" memory is ordinary memory.  A stream of the fake keeps the operations it is given,
// and a thread of the fake runs them later, one stream at a time, as a GPU would; the pinned
// completion words are thus written by another thread, which is what TSan has to see.
#include <atomic>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <set>
#include <thread>
#include <vector>

#include "plugin/gpu/driver.h"
#include "plugin/gpu/lane.h"
#include "test/support/catch.h"
#include "test/support/log_capture.h"

namespace twinpath::gpu {
namespace {

struct FakeStream {
  std::deque<std::function<void()>> work;
};

// The fake driver's functions are plain pointers, so their state is one object per process.
struct FakeGpu {
  std::mutex mutex;
  std::condition_variable changed;
  std::set<FakeStream*> streams;
  bool paused = false, quit = false;
  // What is to fail.
  std::uint64_t bad_address = 0;
  std::atomic<bool> dead{false};
  bool batch_refused = false;
  // What was seen.
  std::vector<std::size_t> batch_sizes;
  std::size_t copies = 0, mem_op_calls = 0, same_gpu_copies = 0;
  std::uint64_t device_low = 0, device_high = 0;
  std::thread thread;

  bool on_device(std::uint64_t a) const { return a >= device_low && a < device_high; }
  void pause(bool on) {
    std::lock_guard lock(mutex);
    paused = on;
    changed.notify_all();
  }
  void run() {
    std::unique_lock lock(mutex);
    while (!quit) {
      FakeStream* ready = nullptr;
      if (!paused)
        for (FakeStream* s : streams)
          if (!s->work.empty()) ready = s;
      if (ready == nullptr) {
        changed.wait(lock);
        continue;
      }
      ready->work.front()();
      ready->work.pop_front();
    }
  }
};
FakeGpu* fake = nullptr;

void* pointer(std::uint64_t a) { return reinterpret_cast<void*>(a); }

int enqueue(cuda::Stream stream, std::function<void()> f) {
  if (fake->dead) return 719;  // launch failed: the context is lost
  static_cast<FakeStream*>(stream)->work.push_back(std::move(f));
  fake->changed.notify_all();
  return 0;
}
int copy_one(cuda::Address to, cuda::Address from, std::size_t n, cuda::Stream s) {
  if (to == fake->bad_address) return 1;
  ++fake->copies;
  if (fake->on_device(to) && fake->on_device(from)) ++fake->same_gpu_copies;
  return enqueue(s, [=] { std::memcpy(pointer(to), pointer(from), n); });
}
int write_one(cuda::Stream s, cuda::Address to, std::uint64_t value) {
  if (to == fake->bad_address) return 1;
  return enqueue(s, [=] {
    std::atomic_ref(*static_cast<std::uint64_t*>(pointer(to)))
        .store(value, std::memory_order_release);
  });
}

cuda::Driver fake_table() {
  cuda::Driver d;
  d.get_error_name = [](int, const char** name) { return *name = "FAKE_ERROR", 0; };
  d.device_count = [](int* n) { return *n = 2, 0; };
  d.primary_retain = [](cuda::Context* c, int) { return *c = fake, 0; };
  d.primary_release = [](int) { return 0; };
  d.primary_state = [](int, unsigned*, int* active) { return *active = 1, 0; };
  d.ctx_set = [](cuda::Context) { return 0; };
  d.exchange_capture_mode = [](int*) { return 0; };
  d.host_alloc = [](void** p, std::size_t n, unsigned) {
    *p = std::aligned_alloc(4096, n);
    return *p == nullptr ? 2 : 0;
  };
  d.host_free = [](void* p) { return std::free(p), 0; };
  d.stream_create = [](cuda::Stream* s, unsigned) {
    std::lock_guard lock(fake->mutex);
    auto* made = new FakeStream;
    fake->streams.insert(made);
    *s = made;
    return 0;
  };
  d.stream_destroy = [](cuda::Stream s) {
    std::lock_guard lock(fake->mutex);
    fake->streams.erase(static_cast<FakeStream*>(s));
    delete static_cast<FakeStream*>(s);
    return 0;
  };
  d.stream_query = [](cuda::Stream s) {
    std::lock_guard lock(fake->mutex);
    if (fake->dead) return 719;
    return static_cast<FakeStream*>(s)->work.empty() ? 0 : cuda::kNotReady;
  };
  d.copy_async = [](cuda::Address to, cuda::Address from, std::size_t n, cuda::Stream s) {
    std::lock_guard lock(fake->mutex);
    return copy_one(to, from, n, s);
  };
  d.copy_batch_async = [](cuda::Address* to, cuda::Address* from, std::size_t* n, std::size_t count,
                          cuda::CopyAttributes* a, std::size_t* first, std::size_t attributes,
                          std::size_t*, cuda::Stream s) {
    std::lock_guard lock(fake->mutex);
    if (attributes != 1 || *first != 0 || a->source_order != cuda::kSourceOrderStream) return 1;
    if (fake->batch_refused) return 801;
    for (std::size_t i = 0; i < count; ++i)
      if (to[i] == fake->bad_address) return 1;
    fake->batch_sizes.push_back(count);
    // Backwards: copies of one batch have no order.
    for (std::size_t i = count; i-- > 0;)
      if (int r = copy_one(to[i], from[i], n[i], s); r != 0) return r;
    return 0;
  };
  d.write_value64 = [](cuda::Stream s, cuda::Address to, std::uint64_t value, unsigned) {
    std::lock_guard lock(fake->mutex);
    return write_one(s, to, value);
  };
  d.batch_mem_op = [](cuda::Stream s, unsigned count, cuda::MemOp* ops, unsigned) {
    std::lock_guard lock(fake->mutex);
    ++fake->mem_op_calls;
    if (count > 255) return 1;
    for (unsigned i = 0; i < count; ++i)
      if (ops[i].operation != cuda::kOpWriteValue64 || ops[i].address == fake->bad_address)
        return 1;
    for (unsigned i = 0; i < count; ++i)
      if (int r = write_one(s, ops[i].address, ops[i].value); r != 0) return r;
    return 0;
  };
  return d;
}

struct Job : CopyJob {
  std::atomic<bool> finished{false};
  Status status = Status::again;
  std::size_t index = 0;
  std::vector<std::size_t>* log = nullptr;
};

// The fake in the driver's place, with 8 MiB on "GPU 0" and as much on the host.
class Machine {
 public:
  Machine() : table_(fake_table()), device_(kBytes / 8), host_(kBytes / 8) {
    gpu_.device_low = device();
    gpu_.device_high = device() + kBytes;
    fake = &gpu_;
    gpu_.thread = std::thread([this] { gpu_.run(); });
    cuda::set_driver_for_test(&table_);
  }
  ~Machine() {
    gpu_.pause(false);
    stop_copy_threads();
    cuda::set_driver_for_test(nullptr);
    {
      std::lock_guard lock(gpu_.mutex);
      gpu_.quit = true;
      gpu_.changed.notify_all();
    }
    gpu_.thread.join();
  }
  static constexpr std::size_t kBytes = 8 << 20;
  std::uint64_t device() { return reinterpret_cast<std::uint64_t>(device_.data()); }
  std::uint64_t host() { return reinterpret_cast<std::uint64_t>(host_.data()); }
  std::vector<std::uint64_t>& device_words() { return device_; }
  std::vector<std::uint64_t>& host_words() { return host_; }
  FakeGpu& gpu() { return gpu_; }
  // Waits until the copy thread stands still: nothing more is in its inbox or being issued.
  static void settle() { std::this_thread::sleep_for(std::chrono::milliseconds(50)); }

 private:
  cuda::Driver table_;
  FakeGpu gpu_;
  std::vector<std::uint64_t> device_, host_;
};

void fill(Job& job, CopyEnd to, CopyEnd from, std::uint64_t bytes, std::uint64_t order = 1) {
  job.to = to;
  job.from = from;
  job.bytes = bytes;
  job.order = order;
  job.done = [](CopyJob* base, Status status) {
    auto* j = static_cast<Job*>(base);
    j->status = status;
    if (j->log != nullptr) j->log->push_back(j->index);
    j->finished.store(true, std::memory_order_release);
    j->finished.notify_all();
  };
}
Status wait(Job& job) {
  job.finished.wait(false, std::memory_order_acquire);
  return job.status;
}
Status move(CopyEnd to, CopyEnd from, std::uint64_t bytes) {
  Job job;
  fill(job, to, from, bytes);
  const Status s = submit_copy(&job);
  return s == Status::ok ? wait(job) : s;
}

}  // namespace

TEST_CASE("each kind of copy lands", "[cuda_copy]") {
  Machine m;
  for (std::size_t i = 0; i < m.host_words().size(); ++i) m.host_words()[i] = i * 3 + 1;

  SECTION("tiny ones are written as values, with no copy") {
    CHECK(move({m.device() + 64, 0}, {m.host(), -1}, 32) == Status::ok);
    CHECK(std::memcmp(pointer(m.device() + 64), pointer(m.host()), 32) == 0);
    CHECK(m.gpu().copies == 0);
    CHECK(m.gpu().mem_op_calls == 1);
  }
  SECTION("what is not aligned or not a multiple of 8 is copied") {
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
  SECTION("same-GPU copies longer than the stage go through the host in rounds") {
    const std::uint64_t half = Machine::kBytes / 2;
    const std::uint64_t n = 3 * kStageBytes + 12345;
    for (std::size_t i = 0; i < m.device_words().size() / 2; ++i) m.device_words()[i] = i ^ 0x5a5a;
    CHECK(move({m.device() + half, 0}, {m.device(), 0}, n) == Status::ok);
    CHECK(std::memcmp(pointer(m.device() + half), pointer(m.device()), n) == 0);
    CHECK(m.gpu().same_gpu_copies == 0);
  }
  SECTION("host to host is not ours") {
    CHECK(move({m.host(), -1}, {m.host() + 64, -1}, 8) == Status::bad_argument);
  }
}

TEST_CASE("same-GPU bytes beyond the limit of a batch continue in the next batch", "[cuda_copy]") {
  Machine m;
  std::vector<std::unique_ptr<Job>> jobs;
  const std::uint64_t half = Machine::kBytes / 2;
  for (std::size_t i = 0; i < m.device_words().size() / 2; ++i) m.device_words()[i] = i + 9;
  m.gpu().pause(true);
  for (int i = 0; i < 6; ++i) {  // 24 MiB; the first goes alone
    jobs.push_back(std::make_unique<Job>());
    fill(*jobs.back(), {m.device() + half, 0}, {m.device(), 0}, half);
    REQUIRE(submit_copy(jobs.back().get()) == Status::ok);
  }
  m.gpu().pause(false);
  for (auto& job : jobs) CHECK(wait(*job) == Status::ok);
  CHECK(std::memcmp(pointer(m.device() + half), pointer(m.device()), half) == 0);
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
  Machine::settle();
  FakeStream* busy = nullptr;  // the big copy's stream stands still
  {
    std::lock_guard lock(m.gpu().mutex);
    for (FakeStream* s : m.gpu().streams)
      if (!s->work.empty()) busy = s;
    REQUIRE(busy != nullptr);
    m.gpu().streams.erase(busy);
  }
  m.gpu().pause(false);
  Job tiny;
  fill(tiny, {m.device() + (5 << 20), 0}, {m.host(), -1}, 8, 2);
  REQUIRE(submit_copy(&tiny) == Status::ok);
  CHECK(wait(tiny) == Status::ok);
  CHECK_FALSE(big.finished.load());
  {
    std::lock_guard lock(m.gpu().mutex);
    m.gpu().streams.insert(busy);
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
  CHECK(log.warnings().size() == 1);
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
