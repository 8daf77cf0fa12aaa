// Contexts that we serve, on adapters that place data in GPU memory late (late_adapter.h).
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <vector>

#include "test/gda/gpu_window.h"
#include "test/gda/late_adapter.h"
#include "test/gda/window_signals.h"
#include "test/support/catch.h"
#include "test/support/log_capture.h"
#include "test/support/needs.h"

using namespace twinpath;
using namespace twinpath::gda;
using namespace twinpath::test;

namespace {

constexpr std::size_t kPiece = 12000;  // bytes of a rank

std::uint8_t byte_of(int from, int to, int round, std::size_t i) {
  return static_cast<std::uint8_t>(static_cast<std::size_t>(from * 50 + to * 20 + round * 7) + i +
                                   (i >> 8));
}

// All to all: who sees the signal sees the data, at once, in GPU memory and in the host's.
std::string signalled_puts(Rank& r) {
  Member member = join(r);
  EXPECT_GIN(member.context);
  const auto n = static_cast<std::size_t>(r.ranks);
  GpuWindow from(*member.comm, kPiece * n), to(*member.comm, kPiece * n);
  WindowMemory host_from(*member.comm, 64 * n), host_to(*member.comm, 64 * n);
  EXPECT_GIN(from && to && host_from && host_to);
  auto kernel = member.kernel();
  const auto mine = static_cast<std::size_t>(r.rank);
  for (int round = 1; round <= 8; ++round) {
    const std::size_t bytes = round % 2 != 0 ? kPiece : 8;
    for (int p = 0; p < r.ranks; ++p) {
      const auto peer = static_cast<std::size_t>(p);
      for (std::size_t i = 0; i < bytes; ++i)
        from.data()[peer * kPiece + i] = byte_of(r.rank, p, round, i);
      host_from.fill(static_cast<unsigned>(round + r.rank * 10 + p), peer * 64, 64);
      TRY_GIN(kernel.put(p, to.handle(), mine * kPiece, from.handle(), peer * kPiece, bytes));
      TRY_GIN(kernel.put(p, host_to.handle(), mine * 64, host_from.handle(), peer * 64, 64,
                         {.signal = r.rank, .counter = p}));
    }
    for (int p = 0; p < r.ranks; ++p) {
      TRY_GIN(kernel.wait_signal(static_cast<std::uint64_t>(p), static_cast<std::uint64_t>(round)));
      const auto peer = static_cast<std::size_t>(p);
      for (std::size_t i = 0; i < bytes; ++i)
        EXPECT_GIN(to.data()[peer * kPiece + i] == byte_of(p, r.rank, round, i), round, p,
                   static_cast<std::int64_t>(i));
      EXPECT_GIN(
          host_to.mismatch(static_cast<unsigned>(round + p * 10 + r.rank), peer * 64, 64) < 0,
          round, p);
      TRY_GIN(
          kernel.wait_counter(static_cast<std::uint64_t>(p), static_cast<std::uint64_t>(round)));
      TRY_GIN(kernel.flush(p));
    }
    r.meeting->barrier();
  }
  EXPECT_GIN(!member.context->failed());
  return {};
}

// Two hosts of two ranks, as NCCL 2.32 has them meet: each rank puts to the rank across of the
// other host and waits until that has completed; a barrier within each host; then a signal between
// ranks of one number.  It must show all that was put before, though another queue, and another
// rank's.
std::string any_signal(Rank& r) {
  Member member = join(r, settings30());
  EXPECT_GIN(member.context);
  GpuWindow from(*member.comm, kPiece), to(*member.comm, kPiece);
  EXPECT_GIN(from && to);
  auto kernel = member.kernel<GinKernel30>();
  const int peer = (r.rank + 2) % 4, across = peer ^ 1;
  for (int round = 1; round <= 6; ++round) {
    for (std::size_t i = 0; i < kPiece; ++i) from.data()[i] = byte_of(r.rank, across, round, i);
    TRY_GIN(kernel.put(across, to.handle(), 0, from.handle(), 0, kPiece));
    TRY_GIN(kernel.flush(across));
    r.meeting->barrier();
    TRY_GIN(kernel.signal(peer, 2));
    TRY_GIN(kernel.wait_signal(2, static_cast<std::uint64_t>(round)));
    for (std::size_t i = 0; i < kPiece; ++i)
      EXPECT_GIN(to.data()[i] == byte_of(across, r.rank, round, i), round,
                 static_cast<std::int64_t>(i));
    TRY_GIN(kernel.flush(peer));
    r.meeting->barrier();
  }
  EXPECT_GIN(!member.context->failed());
  return {};
}

// Kernels that wait for signals and counters of a context that ends are let go, in either memory.
std::string let_go(Rank& r) {
  Member member = join(r);
  EXPECT_GIN(member.context);
  const std::uint64_t handle = member.context->device_handle();
  std::vector<std::thread> kernels;
  std::atomic<int> wrong{0};
  for (int k = 0; k < 2; ++k) {
    ++GpuWithMemory::kernels;
    kernels.emplace_back([&, k] {
      GinKernel28 kernel(handle, r.rank, kLimit);
      const int code = k == 0 ? kernel.wait_signal(5, 1) : kernel.wait_counter(5, 1);
      wrong += code != 0 ? 1 : 0;
      --GpuWithMemory::kernels;
    });
  }
  member.context.reset();
  for (auto& kernel : kernels) kernel.join();
  EXPECT_GIN(wrong == 0, wrong.load());
  return {};
}

// Who has flushed sees what its gets have brought, and goes on to put.
std::string flushed_gets(Rank& r) {
  Member member = join(r, settings30());
  EXPECT_GIN(member.context);
  GpuWindow from(*member.comm, kPiece), to(*member.comm, kPiece);
  EXPECT_GIN(from && to);
  auto kernel = member.kernel<GinKernel30>();
  const int peer = (r.rank + 1) % r.ranks;
  for (int round = 1; round <= 6; ++round) {
    for (std::size_t i = 0; i < kPiece; ++i) from.data()[i] = byte_of(r.rank, 0, round, i);
    r.meeting->barrier();
    for (std::size_t at = 0; at < kPiece; at += kPiece / 12)
      TRY_GIN(kernel.get(peer, from.handle(), at, to.handle(), at, kPiece / 12));
    TRY_GIN(kernel.flush(peer));
    for (std::size_t i = 0; i < kPiece; ++i)
      EXPECT_GIN(to.data()[i] == byte_of(peer, 0, round, i), round, static_cast<std::int64_t>(i));
    TRY_GIN(kernel.signal(peer, 0));
    TRY_GIN(kernel.wait_signal(0, static_cast<std::uint64_t>(round)));
    r.meeting->barrier();
  }
  EXPECT_GIN(!member.context->failed());
  return {};
}

// Windows go that signals may still wait for a flush of.
std::string windows_that_go(Rank& r) {
  Member member = join(r);
  EXPECT_GIN(member.context);
  auto kernel = member.kernel();
  const int peer = (r.rank + 1) % r.ranks;
  for (std::uint64_t round = 1; round <= 5; ++round) {
    GpuWindow window(*member.comm, 4096);
    EXPECT_GIN(window);
    for (int i = 0; i < 20; ++i)
      TRY_GIN(kernel.put(peer, window.handle(), 8, window.handle(), 2048, 8, {.signal = 1}));
    TRY_GIN(kernel.signal(peer, 1));
    TRY_GIN(kernel.flush(peer));
    r.meeting->barrier();
    if (round % 2 != 0) window.release();
    TRY_GIN(kernel.wait_signal(1, round * 21));
    r.meeting->barrier();
  }
  EXPECT_GIN(!member.context->failed());
  return {};
}

// What is in GPU memory cannot be pushed: the signal is not told, the context fails, and its
// kernels are let go.
std::string refused_flush(Rank& r) {
  Member member = join(r);
  EXPECT_GIN(member.context);
  GpuWindow window(*member.comm, 4096);
  EXPECT_GIN(window);
  auto kernel = member.kernel();
  fake->bad_address = reinterpret_cast<std::uintptr_t>(window.data());
  TRY_GIN(kernel.put(0, window.handle(), 2048, window.handle(), 1024, 8, {.signal = 1}));
  TRY_GIN(kernel.wait_signal(1, 1));
  EXPECT_GIN(kernel.read_signal(1) > 1);  // more than anybody has added
  EXPECT_GIN(member.context->failed());
  fake->bad_address = 0;
  return {};
}

// Rank 2 has no atomics: its signals are added by the CPU of who gets them, in the middle of the
// adapter's atomics if anybody used those on the same words.
std::string signals_of_all_kinds(Rank& r) {
  EXPECT_GIN(set_modes(r, ModeChoice::proxy, "", QueuePlace::host, r.rank != 2));
  Member member = join(r);
  EXPECT_GIN(member.context);
  auto kernel = member.kernel();
  constexpr int kEach = 60;
  for (int i = 0; i < kEach; ++i)
    for (int p = 0; p < r.ranks; ++p) {
      TRY_GIN(kernel.signal(p, 3));
      TRY_GIN(kernel.flush(p));
    }
  r.meeting->barrier();
  // A sum that was written may still be on the way to its signal; what was lost never comes.
  const auto all = static_cast<std::uint64_t>(kEach * r.ranks);
  const std::int64_t end = now_ns() + 3 * kSecond;
  while (kernel.read_signal(3) < all && now_ns() < end) std::this_thread::yield();
  EXPECT_GIN(kernel.read_signal(3) == all, static_cast<std::int64_t>(kernel.read_signal(3)));
  EXPECT_GIN(!member.context->failed());
  r.meeting->barrier();
  return {};
}

}  // namespace

TEST_CASE("Signals of ranks with atomics and without lose nothing to each other") {
  NEEDS(!on_adapters(), "the atomics that are the adapter's own are the soft HCA's");
  CHECK(run_threads(3, signals_of_all_kinds, ordering_config(true)) == "");
}

TEST_CASE(
    "Without atomics signals in windows come after their data in GPU memory, on late adapters") {
  NEEDS(use_gpu() && !on_adapters(), "the late adapter is the soft HCA");
  LogCapture log;
  GpuWithMemory gpu;
  gpu.slow = GENERATE(false, true);
  CHECK(run_threads(gpu.slow ? 2 : 3, (window_signals<2, 18>), ordering_config(false)) == "");
  CHECK(log.warnings().empty());
}

TEST_CASE("Without atomics a signal comes after its data in GPU memory, on late adapters") {
  NEEDS(use_gpu() && !on_adapters(), "the late adapter is the soft HCA");
  LogCapture log;
  GpuWithMemory gpu;
  gpu.slow = GENERATE(false, true);
  CHECK(run_threads(gpu.slow ? 2 : 3, signalled_puts, ordering_config(false)) == "");
  CHECK(log.warnings().empty());
}

TEST_CASE("With atomics a signal comes after its data in GPU memory, on late adapters") {
  NEEDS(use_gpu() && !on_adapters(), "the late adapter is the soft HCA");
  LogCapture log;
  GpuWithMemory gpu;
  gpu.slow = GENERATE(false, true);
  Config config = ordering_config(true);
  const bool gda_cqs = GENERATE(false, true);
  config.gin_cq = gda_cqs ? QueuePlace::gpu : QueuePlace::host;
  CHECK(run_threads(gpu.slow ? 2 : 3, signalled_puts, config) == "");
  CHECK(log.warnings().empty());
  CHECK(log.has("signals in GPU memory"));
}

TEST_CASE("Any signal shows what other ranks' queues have put before it, on late adapters") {
  NEEDS(use_gpu() && !on_adapters(), "the late adapter is the soft HCA");
  LogCapture log;
  GpuWithMemory gpu;
  const bool atomics = GENERATE(false, true);
  CHECK(run_threads(4, any_signal, ordering_config(atomics)) == "");
  CHECK(log.warnings().empty());
}

TEST_CASE("A context whose GPU memory cannot be read fails and lets its kernels go") {
  NEEDS(use_gpu() && !on_adapters(), "the made-up GPU is the soft HCA's");
  LogCapture log;
  GpuWithMemory gpu;
  CHECK(run_threads(1, refused_flush, ordering_config(false)) == "");
  CHECK(log.has("which makes what peers wrote there visible"));
}

TEST_CASE("Kernels that wait for signals in GPU memory are let go") {
  NEEDS(use_gpu() && !on_adapters(), "the made-up GPU is the soft HCA's");
  LogCapture log;
  GpuWithMemory gpu;
  gpu.whole_words = true;
  const bool atomics = GENERATE(false, true);
  CHECK(run_threads(2, let_go, ordering_config(atomics)) == "");
  CHECK(log.warnings().empty());
}

TEST_CASE("A flush comes after what gets have brought to GPU memory, on late adapters") {
  NEEDS(use_gpu() && !on_adapters(), "the late adapter is the soft HCA");
  LogCapture log;
  GpuWithMemory gpu;
  const bool atomics = GENERATE(false, true);
  CHECK(run_threads(2, flushed_gets, ordering_config(atomics)) == "");
  CHECK(log.warnings().empty());
}

// There the adapter pushes what it brought by fetching into the context's sink, which therefore is
// that GPU's memory, on a page of its own.
TEST_CASE("In mode gda a flush comes after what gets have brought to GPU memory") {
  NEEDS(use_gpu() && !on_adapters(), "the late adapter is the soft HCA");
  const PageSizeForTest of_host(GENERATE(4096, 65536));
  LogCapture log;
  GpuWithMemory gpu;
  Config config = ordering_config(true);
  config.mode = ModeChoice::gda;
  CHECK(run_threads(2, flushed_gets, config) == "");
  CHECK(log.warnings().empty());
}

TEST_CASE("Signals find their way when the windows that they wait for go, on late adapters") {
  NEEDS(use_gpu() && !on_adapters(), "the late adapter is the soft HCA");
  LogCapture log;
  GpuWithMemory gpu;
  CHECK(run_threads(2, windows_that_go, ordering_config(false)) == "");
  CHECK(log.warnings().empty());
}
