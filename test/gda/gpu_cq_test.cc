// CQs in GPU memory: over a made-up CUDA driver whose streams really run later, CPU threads poll
// them as kernels do.
#include <atomic>
#include <chrono>
#include <thread>

#include "gda/memory/retired.h"
#include "gda/memory/signal_release.h"
#include "test/gda/gpu_cq_rig.h"
#include "test/support/log_capture.h"

namespace twinpath::gda {
namespace {

using test::LogCapture;

// A kernel that waits for signals and counters nobody raises, in all the ways there are.
void wait_in_vain(GinKernel28 kernel, const DeviceContext72& context, std::atomic<int>& passed) {
  const auto word = [](const DeviceTable& table, std::uint64_t id) {
    return device::atomic((&device::at<std::uint64_t>(table.buffer))[id]);
  };
  for (int i = 0; i < 20; ++i) {
    if (kernel.wait_signal(1, 5) != 0) return;
    word(context.signals, 1).store(0);  // as ncclGin's resetSignal does
    if (kernel.wait_signal(2, kernel.read_signal(2) + 3) != 0) return;
    if (kernel.wait_counter(3, 1) != 0) return;
    word(context.counters, 3).store(0);
    ++passed;
  }
}

}  // namespace

TEST_CASE("Kernels see every CQE in GPU memory, lap after lap") {
  LogCapture log;
  SlowGpu gpu;
  {
    Queues all(3);
    REQUIRE(all.filled == Status::ok);
    REQUIRE(all.memory->cq(0) == nullptr);
    REQUIRE(all.cqe(1, 3)[63] == kCqeFill);
    SECTION("many threads on each queue") { kernels_come_through(all, 4, 1000); }
    SECTION("a GPU that takes its time") {
      gpu.slow = true;
      kernels_come_through(all, 2, 40);
    }
  }
  CHECK(log.warnings().empty());
}

TEST_CASE("A GPU that does not move holds nobody up, and gets every CQE later") {
  LogCapture log;
  SlowGpu gpu;
  {
    Queues all(2, 1024);
    REQUIRE(all.filled == Status::ok);
    gpu.pause(true);
    // More turns with something to say than batches may be under way.
    Producer<DeviceQp28> queue = all.kernel().queue_to(1);
    for (int i = 0; i < 1000; ++i) {
      std::uint64_t first = 0;
      REQUIRE(queue.reserve(1, first) == 0);
      queue.write(first, make_nop(first, queue.qpn()));
      REQUIRE(queue.submit(first, 1) == 0);
      if (i % 40 == 0) all.turn();
    }
    for (int i = 0; i < 50; ++i) all.turn();
    CHECK(all.queues[1]->produced() == 1000);
    CHECK(all.cqe(1, 0)[63] == kCqeFill);
    CHECK_FALSE(all.cqs->wait(kMillisecond));
    gpu.pause(false);
    const std::int64_t end = now_ns() + kTimeLimit;
    while (all.cqs->send() && now_ns() < end) std::this_thread::yield();
    CHECK(all.cqs->wait(kTimeLimit));
    for (std::uint64_t i = 0; i < 1000; ++i) REQUIRE(queue.poll(i) == 0);
    CHECK(all.cqe(1, 1000)[63] == kCqeFill);
    CHECK(all.cqe(0, 0)[63] == kCqeFill);
  }
  CHECK(log.warnings().empty());
}

TEST_CASE("An error CQE in GPU memory has its syndrome, and those behind it are flushed") {
  LogCapture log;
  SlowGpu gpu;
  Queues all(2);
  REQUIRE(all.filled == Status::ok);
  Producer<DeviceQp28> queue = all.kernel().queue_to(1);
  std::uint64_t first = 0;
  REQUIRE(queue.reserve(3, first) == 0);
  queue.write(0, make_nop(0, queue.qpn()));
  queue.write(1, make_write(1, queue.qpn(), 0, 0x00bad000, 0, 0x00bad000, 64));
  queue.write(2, make_nop(2, queue.qpn()));
  REQUIRE(queue.submit(first, 3) == 0);
  all.turn();
  REQUIRE(all.cqs->wait(kTimeLimit));
  CHECK(queue.poll(0) == 0);
  CHECK(queue.poll(1) == -EIO);
  CHECK(queue.poll(2) == -EIO);
  CHECK(cqe_syndrome(*reinterpret_cast<const CqeBytes*>(all.cqe(1, 1))) ==
        Syndrome::local_protection);
  CHECK(cqe_syndrome(*reinterpret_cast<const CqeBytes*>(all.cqe(1, 2))) == Syndrome::flushed);
}

TEST_CASE("A GPU that refuses words is given up, and it is said once") {
  LogCapture log;
  SlowGpu gpu;
  Queues all(2);
  REQUIRE(all.filled == Status::ok);
  gpu.bad_address = all.memory->cq_address(0) + 56;
  for (int i = 0; i < 5; ++i) {
    for (int r = 0; r < 2; ++r) {
      Producer<DeviceQp28> queue = all.kernel().queue_to(r);
      std::uint64_t first = 0;
      REQUIRE(queue.reserve(1, first) == 0);
      queue.write(first, make_nop(first, queue.qpn()));
      REQUIRE(queue.submit(first, 1) == 0);
    }
    all.turn();
  }
  CHECK(all.cqs->wait(kTimeLimit));
  CHECK(all.cqs->dead());
  CHECK_FALSE(all.cqs->send());
  CHECK(log.warnings().size() == 2);
  CHECK(log.has(LogLevel::warn, "cuStreamBatchMemOp to 0x"));
  CHECK(log.has(LogLevel::warn, "GPU 0: completions no longer reach its kernels (system error)"));
}

TEST_CASE("Freeing a context's GPU memory lets kernels go that wait again and again") {
  LogCapture log;
  SlowGpu gpu;
  Queues all(2, 16, 4);
  REQUIRE(all.filled == Status::ok);
  std::atomic<int> passed{0};
  const auto& context = device::at<DeviceContext72>(all.memory->device_handle());
  SlowGpu::kernels = 1;
  std::thread kernel([&, handles = all.kernel()] {
    wait_in_vain(handles, context, passed);
    --SlowGpu::kernels;
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(5));
  CHECK(passed == 0);
  Retired retired;
  CHECK(retired.put({.free = [&] { all.memory->free_gpu_memory(); },
                     .release = [&] { all.memory->release_waiters(); }}));
  CHECK(passed == 20);
  kernel.join();
}

TEST_CASE("Words are released in 32, 56 and 64 bits, whatever kernels do with them") {
  const auto ahead = [](std::uint64_t word, std::uint64_t expected, int bits) {
    const std::uint64_t distance = (word - expected) << (64 - bits) >> (64 - bits);
    return distance < std::uint64_t{1} << (bits - 1);
  };
  for (const std::uint64_t start :
       {std::uint64_t{0}, std::uint64_t{7}, std::uint64_t{0xfffffff0}, std::uint64_t{1} << 40}) {
    std::uint64_t words[2] = {start, start};
    for (int round = 0; round < 100; ++round) {
      const std::uint64_t before = words[1];
      release_waiters(words, 2);
      for (const int bits : {32, 56, 64}) {
        CHECK(ahead(words[0], start + 1, bits));
        CHECK(ahead(words[1], before + 1000, bits));
      }
      words[0] = start;  // set back
    }
  }
}

}  // namespace twinpath::gda
