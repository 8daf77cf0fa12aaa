// The parts of the threads that copy, each alone.
#include <array>
#include <cstdlib>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "plugin/gpu/batch_calls.h"
#include "plugin/gpu/batch_ring.h"
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

// A stream of the fake.
class Stream {
 public:
  Stream() { REQUIRE(driver.stream_create(&stream, 0) == 0); }
  ~Stream() { (void)driver.stream_destroy(stream); }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  // Until all that it was given is done.
  void drain() const {
    while (driver.stream_query(stream) != 0) std::this_thread::yield();
  }
  const cuda::Driver& driver = *cuda::driver();
  cuda::Stream stream = nullptr;
};

CopyJob tiny(Machine& m, std::size_t word, std::uint64_t bytes, std::uint64_t order = 1) {
  return {{m.device() + 8 * word, 0}, {m.host() + 8 * word, -1}, bytes, -1, order};
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

TEST_CASE("batches under way are numbered in their order, and begin anew", "[cuda_copy]") {
  BatchRing ring;
  CHECK(ring.empty());
  std::uint64_t next = 1, oldest = 1;
  CopyJob job;
  for (int lap = 0; lap < 3; ++lap) {
    while (ring.size() < BatchRing::kMost) {
      Batch& batch = ring.add();
      CHECK(batch.sequence == next++);
      CHECK(batch.jobs.empty());
      CHECK(batch.failed.none());
      CHECK(batch.bare_since == 0);
      batch.jobs.push(&job);
      batch.failed.set(7);
      batch.bare_since = 5;
      if (ring.size() == 1) CHECK(&batch == &ring.oldest());
    }
    while (ring.size() > 1) {
      CHECK(ring.oldest().sequence == oldest);
      const Batch batch = ring.take();
      CHECK(batch.sequence == oldest++);
      CHECK(batch.jobs.front() == &job);
      CHECK(batch.failed.count() == 1);
    }
  }
  CHECK_FALSE(ring.empty());
  CHECK(ring.take().sequence == oldest);
  CHECK(ring.empty());
}

TEST_CASE("values go in one call with the word behind them", "[cuda_copy]") {
  Machine m;
  const Stream s;
  const std::uint64_t word = m.device() + 8 * 1000;
  std::vector<std::size_t> refused;
  const auto note = [&](std::size_t index, cuda::Address, cuda::Result) {
    refused.push_back(index);
  };
  for (std::size_t i = 0; i < 300; ++i) m.host_words()[i] = (i + 1) << 33 | (i + 1);
  ValueCall call;
  SECTION("none: the word alone") {
    CHECK(call.submit(s.driver, s.stream, word, 3, note) == 0);
    s.drain();
    CHECK(m.gpu().mem_op_calls == 0);
  }
  SECTION("as many as a call takes") {
    for (std::size_t i = 0; i < 63; ++i) CHECK(call.add(tiny(m, 4 * i, 32), i));
    CHECK_FALSE(call.add(tiny(m, 252, 24), 63));
    CHECK(call.add(tiny(m, 252, 8), 63));
    CHECK(call.add(tiny(m, 253, 4), 64));
    CHECK_FALSE(call.add(tiny(m, 254, 4), 65));
    CHECK(call.size() == 254);
    CHECK(call.submit(s.driver, s.stream, word, 3, note) == 0);
    s.drain();
    CHECK(m.gpu().mem_op_calls == 1);
    CHECK(m.gpu().written.back() == word);
    for (std::size_t i = 0; i < 253; ++i) CHECK(m.device_words()[i] == m.host_words()[i]);
    CHECK(m.device_words()[253] == 254);  // the upper half is not written
    CHECK(m.device_words()[254] == 0);
    CHECK(call.size() == 254);
    call.clear();
    CHECK(call.empty());
  }
  SECTION("one that is refused fails alone") {
    CHECK(call.add(tiny(m, 0, 16), 4));
    CHECK(call.add(tiny(m, 10, 16), 5));
    CHECK(call.add(tiny(m, 20, 8), 6));
    m.gpu().bad_address = m.device() + 8 * 11;
    CHECK(call.submit(s.driver, s.stream, word, 3, note) == 0);
    s.drain();
    CHECK(refused == std::vector<std::size_t>{5});
    refused.clear();
    for (const std::size_t i : {0, 1, 10, 20}) CHECK(m.device_words()[i] == m.host_words()[i]);
    CHECK(m.device_words()[11] == 0);
  }
  CHECK(m.device_words()[1000] == 3);
  CHECK(refused.empty());
  m.gpu().bad_address = word;
  CHECK(call.submit(s.driver, s.stream, word, 4, note) != 0);
  CHECK(refused.empty());
}

TEST_CASE("a call of values knows whose orders it has", "[cuda_copy]") {
  Machine m;
  ValueCall call;
  const CopyJob one = tiny(m, 0, 8, 1), other = tiny(m, 1, 8, 2);
  REQUIRE(order_slot(one, 6) != order_slot(other, 6));
  CHECK_FALSE(call.has_order_of(one));
  CHECK(call.add(one, 0));
  CHECK(call.has_order_of(one));
  CHECK_FALSE(call.has_order_of(other));
  call.clear();
  CHECK_FALSE(call.has_order_of(one));
}

TEST_CASE("a call of copies has what came since it was cleared", "[cuda_copy]") {
  Machine m;
  const Stream s;
  CopyCall call(4);
  for (std::size_t i = 0; i < 64; ++i) m.host_words()[i] = i + 1;
  call.add(m.device(), m.host(), 8);
  call.clear();
  call.add(m.device() + 64, m.host() + 64, 128);
  call.add(m.device() + 256, m.host() + 256, 8);
  CHECK(call.submit(s.driver, s.stream) == 0);
  s.drain();
  CHECK(m.gpu().batch_sizes == std::vector<std::size_t>{2});
  CHECK(m.device_words()[0] == 0);
  CHECK(m.device_words()[8] == 9);
  CHECK(m.device_words()[23] == 24);
  CHECK(m.device_words()[24] == 0);
  CHECK(m.device_words()[32] == 33);
}

TEST_CASE("a call of copies is not made where the driver has none or refused it", "[cuda_copy]") {
  Machine m;
  cuda::Driver old = *cuda::driver();
  old.copy_batch_async = nullptr;
  CopyCall call(4);
  CHECK_FALSE(call.usable(old));
  CHECK(call.usable(*cuda::driver()));
  call.distrust();
  call.clear();
  CHECK_FALSE(call.usable(*cuda::driver()));
}

}  // namespace twinpath::gpu
