// Windows in GPU memory, mode gda-cpu: copy engines that run later and drift apart, over a made-up
// CUDA driver.  A signal is never seen before the data of all puts before it.
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <thread>

#include "gda/rma/rma_transport.h"
#include "test/gda/gpu_window.h"
#include "test/gda/window_signals.h"
#include "test/support/catch.h"
#include "test/support/log_capture.h"
#include "test/support/needs.h"

using namespace twinpath;
using namespace twinpath::gda;
using namespace twinpath::test;

namespace {

Config with_gpu() {
  Config c = gin_config();
  c.soft_cuda = SoftCuda::inprocess;
  c.mode = ModeChoice::gda_cpu;
  return c;
}

// What a rank sends to each in a round, in this order; the signal comes with the last.
struct Piece {
  bool gpu;
  std::size_t at, bytes;
};
constexpr Piece kPieces[] = {
    {true, 0, 200000},     {true, 200000, 8},   {false, 0, 100},
    {true, 200064, 4099},  {false, 4096, 9000},  // too long for who sees the data before it arrive
    {true, 208896, 65536},
};
constexpr std::size_t kOf = 300 * 1024;  // bytes of a rank

std::uint8_t pattern(int from, int to, int round, std::size_t piece, std::size_t i) {
  return static_cast<std::uint8_t>(static_cast<std::size_t>(from * 50 + to * 20 + round * 7) +
                                   piece * 3 + i + (i >> 8));
}

std::string gpu_puts(Rank& r) {
  Member member = join(r);
  EXPECT_GIN(member.context);
  const auto n = static_cast<std::size_t>(r.ranks);
  GpuWindow from(*member.comm, kOf * n), to(*member.comm, kOf * n);
  WindowMemory host_from(*member.comm, kOf * n), host_to(*member.comm, kOf * n);
  EXPECT_GIN(from && to && host_from && host_to);
  auto kernel = member.kernel();
  const auto mine = static_cast<std::size_t>(r.rank) * kOf;
  for (int round = 1; round <= 12; ++round) {
    for (int p = 0; p < r.ranks; ++p) {
      const auto theirs = static_cast<std::size_t>(p) * kOf;
      for (std::size_t k = 0; k < std::size(kPieces); ++k) {
        const Piece& piece = kPieces[k];
        std::uint8_t* data = (piece.gpu ? from.data() : host_from.data()) + theirs + piece.at;
        for (std::size_t i = 0; i < piece.bytes; ++i) data[i] = pattern(r.rank, p, round, k, i);
        PutExtras extras;
        if (k + 1 == std::size(kPieces)) extras = {.signal = r.rank, .add = 1, .counter = p};
        TRY_GIN(kernel.put(p, piece.gpu ? to.handle() : host_to.handle(), mine + piece.at,
                           piece.gpu ? from.handle() : host_from.handle(), theirs + piece.at,
                           piece.bytes, extras));
      }
      TRY_GIN(kernel.put_value(p, to.handle(), mine + 290000,
                               static_cast<std::uint64_t>(round * 100 + r.rank), 8,
                               {.signal = 40 + r.rank, .add = 1}));
    }
    const auto count = static_cast<std::uint64_t>(round);
    for (int p = 0; p < r.ranks; ++p) {
      const auto at = static_cast<std::size_t>(p) * kOf;
      TRY_GIN(kernel.wait_signal(static_cast<std::uint64_t>(p), count));
      for (std::size_t k = 0; k < std::size(kPieces); ++k) {
        const Piece& piece = kPieces[k];
        const std::uint8_t* data = (piece.gpu ? to.data() : host_to.data()) + at + piece.at;
        for (std::size_t i = 0; i < piece.bytes; ++i)
          EXPECT_GIN(data[i] == pattern(p, r.rank, round, k, i), round, p,
                     static_cast<std::int64_t>(k * 1000000 + i));
      }
      TRY_GIN(kernel.wait_signal(static_cast<std::uint64_t>(40 + p), count));
      std::uint64_t value = 0;
      std::memcpy(&value, to.data() + at + 290000, sizeof value);
      EXPECT_GIN(value == static_cast<std::uint64_t>(round * 100 + p), round, p);
      TRY_GIN(kernel.wait_counter(static_cast<std::uint64_t>(p), count));
      TRY_GIN(kernel.flush(p));
    }
    r.meeting->barrier();
  }
  EXPECT_GIN(!member.context->failed());
  return {};
}

// Between the two others the GPU's copy thread adds, and for rank 1 the CPU of who gets them.
std::string window_signals_of_all_kinds(Rank& r) {
  EXPECT_GIN(set_modes(r, ModeChoice::gda_cpu, "", QueuePlace::host, r.rank != 1));
  return window_signals<>(r);
}

// The GPU refuses the word: that queue fails.
std::string refused_word(Rank& r) {
  Member member = join(r, settings30());
  EXPECT_GIN(member.context);
  GpuWindow words(*member.comm, 4096);
  EXPECT_GIN(words);
  auto kernel = member.kernel<GinKernel30>();
  TRY_GIN(kernel.signal_word(0, words.handle(), 16));
  TRY_GIN(kernel.flush(0));
  fake->bad_address = reinterpret_cast<std::uintptr_t>(words.data()) + 8;
  TRY_GIN(kernel.signal_word(0, words.handle(), 8));
  (void)kernel.flush(0);  // an error CQE, or let go
  const std::int64_t end = now_ns() + kLimit;
  while (!member.context->failed() && now_ns() < end) std::this_thread::yield();
  EXPECT_GIN(member.context->failed());
  fake->bad_address = 0;
  EXPECT_GIN(words.data()[8] == 0);
  EXPECT_GIN(words.data()[16] == 1);
  return {};
}

// One rank that puts to itself while its GPU stands still.
struct Alone {
  Member member;
  std::unique_ptr<GpuWindow> from, to;
  std::string start(Rank& r) {
    member = join(r);
    EXPECT_GIN(member.context);
    from = std::make_unique<GpuWindow>(*member.comm, kOf);
    to = std::make_unique<GpuWindow>(*member.comm, kOf);
    EXPECT_GIN(*from && *to);
    std::memset(from->data(), 77, kOf);
    auto kernel = member.kernel();
    TRY_GIN(kernel.put(0, to->handle(), 0, from->handle(), 0, 4096, {.signal = 0}));
    TRY_GIN(kernel.wait_signal(0, 1));  // its copy thread has started
    fake->pause(true);
    for (int i = 0; i < 4; ++i)
      TRY_GIN(kernel.put(0, to->handle(), 4096, from->handle(), 0, 100000,
                         {.signal = 0, .counter = 0}));
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    EXPECT_GIN(kernel.read_signal(0) == 1);
    EXPECT_GIN(kernel.read_counter(0) == 0);
    return {};
  }
};

// The GPU moves again 100 ms after `wait` returns; how long `f` took meanwhile, in ms.
template <class Wait, class F>
std::int64_t timed_with_gpu_back_after(Wait wait, F f) {
  const std::int64_t start = now_ns();
  std::thread later([&] {
    wait();
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    fake->pause(false);
  });
  f();
  const std::int64_t took = (now_ns() - start) / kMillisecond;
  later.join();
  return took;
}

std::string destroyed_under_way(Rank& r) {
  Alone all;
  if (std::string error = all.start(r); !error.empty()) return error;
  const std::int64_t took = timed_with_gpu_back_after([] {}, [&] { all.member.context.reset(); });
  EXPECT_GIN(took >= 90 && took < 5000, took);
  return {};
}

// What is under way does not end in the time that giving back a window waits: the queue is failed,
// and memory goes only once the copies are over.
std::string window_back_under_way(Rank& r) {
  Alone all;
  if (std::string error = all.start(r); !error.empty()) return error;
  // As long as that time lasts: it is time in which this process ran.
  std::atomic<bool> failed{false};
  const auto until_failed = [&] {
    const std::int64_t end = now_ns() + 60 * kSecond;
    while (!all.member.context->failed() && now_ns() < end)
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    failed = all.member.context->failed();
  };
  const std::int64_t took = timed_with_gpu_back_after(until_failed, [&] { all.from->release(); });
  EXPECT_GIN(failed.load());
  EXPECT_GIN(took >= 3000, took);
  EXPECT_GIN(all.to->data()[5000] == 77);  // the copy was complete before the window went
  return {};
}

}  // namespace

TEST_CASE("Host RMA is offered where all adapters reach GPU memory, by either way") {
  NEEDS(!on_adapters(), "the made-up GPU is the soft HCA's");
  FakeGpu gpu;
  Config config = with_gpu();
  const auto [adapters, reached] = GENERATE(table<const char*, bool>({
      {"rma0", true},  // by dma-bufs
      {"rma1,peermem=yes,like=erdma", true},
      {"rma0,rma2,like=erdma", false},
  }));
  CAPTURE(adapters);
  config.soft_hcas = adapters;
  auto fabric = open_fabric(config);
  REQUIRE(fabric);
  auto transport = make_rma_transport(std::make_shared<Devices>(std::move(fabric).take(), config));
  REQUIRE(transport);
  CHECK((*transport)->reaches_gpus() == reached);
}

TEST_CASE("A signal comes after the data of all puts before it, in GPU memory and in the host's") {
  NEEDS(!on_adapters(), "the made-up GPU is the soft HCA's");
  LogCapture log;
  FakeGpu gpu;
  fake = &gpu;
  Config config = with_gpu();
  config.mode = GENERATE(ModeChoice::gda_cpu, ModeChoice::gda);
  SECTION("a quick GPU") { CHECK(run_threads(3, gpu_puts, config) == ""); }
  SECTION("a GPU that takes its time") {
    gpu.slow = true;
    CHECK(run_threads(2, gpu_puts, config) == "");
  }
  SECTION("a host with pages of 64 KiB") {
    const PageSizeForTest of_host(65536);
    CHECK(run_threads(2, gpu_puts, config) == "");
  }
  CHECK(gpu.copies > 100);
  CHECK(log.warnings().empty());
}

TEST_CASE("Signals in windows of GPU memory come after their data, and none is lost") {
  NEEDS(!on_adapters(), "the made-up GPU is the soft HCA's");
  LogCapture log;
  FakeGpu gpu;
  fake = &gpu;
  Config config = with_gpu();
  const auto [mode, atomics] = GENERATE(table<ModeChoice, bool>({{ModeChoice::gda_cpu, true},
                                                                 {ModeChoice::proxy, true},
                                                                 {ModeChoice::gda, true},
                                                                 {ModeChoice::gda_cpu, false},
                                                                 {ModeChoice::proxy, false}}));
  CAPTURE(static_cast<int>(mode), atomics);
  config.mode = mode;
  config.gin_atomics = atomics ? AtomicsChoice::always : AtomicsChoice::never;
  SECTION("a quick GPU") { CHECK(run_threads(3, window_signals<>, config) == ""); }
  SECTION("a GPU that takes its time") {
    gpu.slow = true;
    CHECK(run_threads(2, window_signals<>, config) == "");
  }
  CHECK(log.warnings().empty());
}

TEST_CASE("A signal in a window that the GPU refuses fails its queue") {
  NEEDS(!on_adapters(), "the made-up GPU is the soft HCA's");
  LogCapture log;
  FakeGpu gpu;
  fake = &gpu;
  Config config = with_gpu();
  config.mode = GENERATE(ModeChoice::gda_cpu, ModeChoice::proxy);
  config.gin_atomics = GENERATE(AtomicsChoice::always, AtomicsChoice::never);
  CHECK(run_threads(1, refused_word, config) == "");
  CHECK_FALSE(log.warnings().empty());
}

TEST_CASE("Signals of ranks with atomics and without lose nothing in windows of GPU memory") {
  NEEDS(!on_adapters(), "the made-up GPU is the soft HCA's");
  LogCapture log;
  FakeGpu gpu;
  fake = &gpu;
  CHECK(run_threads(3, window_signals_of_all_kinds, with_gpu()) == "");
  CHECK(log.warnings().empty());
}

TEST_CASE("A context is destroyed with copies under way, which it waits for") {
  NEEDS(!on_adapters(), "the made-up GPU is the soft HCA's");
  FakeGpu gpu;
  fake = &gpu;
  CHECK(run_threads(1, destroyed_under_way, with_gpu()) == "");
}

TEST_CASE("A queue that fails with copies under way keeps their memory until they end") {
  NEEDS(!on_adapters(), "the made-up GPU is the soft HCA's");
  FakeGpu gpu;
  fake = &gpu;
  CHECK(run_threads(1, window_back_under_way, with_gpu()) == "");
}
