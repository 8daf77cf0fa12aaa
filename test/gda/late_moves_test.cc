// The first port of a team fails while kernels put to memory of a GPU that is made up, with
// adapters that place data there late (late_adapter.h): what has come over a port becomes visible
// when that port's adapter reads there, when the driver flushes, or long after all else.
#include "test/gda/late_moves.h"
#include "test/support/catch.h"
#include "test/support/log_capture.h"
#include "test/support/needs.h"
#include "test/support/pattern.h"

using namespace twinpath;
using namespace twinpath::gda;
using namespace twinpath::test;

namespace {

struct GpuData : GpuWindow {
  using GpuWindow::GpuWindow;
  void fill(unsigned seed, std::size_t at, std::size_t bytes) {
    KnownBytes(seed * 31 + 1).fill(data() + at, bytes);
  }
  std::int64_t mismatch(unsigned seed, std::size_t at, std::size_t bytes) const {
    const std::size_t i = KnownBytes(seed * 31 + 1).differs_at(data() + at, bytes);
    return i == bytes ? -1 : static_cast<std::int64_t>(i);
  }
};

std::string late_moves(Rank& r) {
  Member member = join_first(r);
  return play_and_mend<WindowMemory, GpuData>(r, member);
}

// What rank 1 puts has been acknowledged, over one port; its signal comes over the other one.
std::string put_then_signal(Rank& r, Member& member, GpuData& data, std::string (*between)(Rank&),
                            unsigned round) {
  auto kernel = member.kernel<GinKernel30>();
  if (r.rank == 1) {
    data.fill(round, 0, kSlot);
    TRY_GIN(kernel.put(0, data.handle(), kSlot, data.handle(), 0, kSlot));
    TRY_GIN(kernel.flush(0));
  }
  r.meeting->barrier();
  if (std::string wrong = between(r); !wrong.empty()) return wrong;
  r.meeting->barrier();
  if (r.rank == 1) {
    TRY_GIN(kernel.signal(0, 3));
  } else {
    TRY_GIN(kernel.wait_signal(3, round));
    EXPECT_GIN(data.mismatch(round, kSlot, kSlot) == -1, round);
  }
  return {};
}

// The port goes down, so a signal that follows finds its queue on the way.
std::string goes_down(Rank& r) {
  if (r.rank == 0) set(*r.devices->rails(struck).front().port, false);
  return {};
}
std::string comes_back(Rank& r) {
  EXPECT_GIN(all_are_on(other_port()));
  r.meeting->barrier();
  if (r.rank == 0) set(*r.devices->rails(struck).front().port, true);
  EXPECT_GIN(all_are_on(struck_port()));
  return {};
}
std::string stays(Rank&) { return {}; }

std::string across_ports(Rank& r, Member& member) {
  GpuData data(*member.comm, 2 * kSlot);
  EXPECT_GIN(data);
  unsigned round = 0;
  for (const auto between : {goes_down, stays, comes_back, stays}) {
    if (std::string wrong = put_then_signal(r, member, data, between, ++round); !wrong.empty())
      return wrong;
    r.meeting->barrier();
  }
  EXPECT_GIN(!member.context->failed());
  return {};
}
std::string across_mended_ports(Rank& r) {
  Member member = join_first(r);
  EXPECT_GIN(member.context);
  const std::string wrong = across_ports(r, member);
  mend(r);
  return wrong;
}

// Nobody is told of what may not be there: the kernels that wait for it are let go.
std::string refused(Rank& r) {
  Member member = join_first(r);
  EXPECT_GIN(member.context);
  GpuData data(*member.comm, 2 * kSlot);
  EXPECT_GIN(data);
  (void)put_then_signal(r, member, data, goes_down, 1);
  const bool failed = comes([&] { return member.context->failed(); });
  EXPECT_GIN(failed);
  r.meeting->barrier();
  mend(r);
  return {};
}

// Each queue between the two is over the first port of one and the second of the other.
std::string crossed_words(Rank& r) {
  Member member = crossed_join(r);
  EXPECT_GIN(member.context);
  GpuData data(*member.comm, 2 * kSlot);
  GpuWindow words(*member.comm, 4096);
  EXPECT_GIN(data && words);
  auto kernel = member.kernel<GinKernel30>();
  for (unsigned round = 1; round <= 20; ++round) {
    data.fill(round, 0, kSlot);
    PutExtras extras;
    extras.signal_window = words.handle();
    extras.signal_offset = 8;
    TRY_GIN(kernel.put(1 - r.rank, data.handle(), kSlot, data.handle(), 0, kSlot, extras));
    TRY_GIN(wait_word(words, 8, round));
    EXPECT_GIN(data.mismatch(round, kSlot, kSlot) == -1, round);
    TRY_GIN(kernel.flush(1 - r.rank));
    r.meeting->barrier();
  }
  EXPECT_GIN(!member.context->failed());
  return {};
}

std::string talks(Rank& r) {
  Member member = join_first(r);
  EXPECT_GIN(member.context);
  const std::string wrong = talk(member, 1);
  r.meeting->barrier();
  return wrong;
}

}  // namespace

TEST_CASE("F1: Data in GPU memory comes before its signals over either port, on late adapters") {
  NEEDS(use_gpu() && !on_adapters(), "the late adapter is the soft HCA");
  leaves_late({1, 4}, late_moves);
}

TEST_CASE(
    "What came to GPU memory before its port was left is there before signals over the other") {
  NEEDS(use_gpu() && !on_adapters(), "the late adapter is the soft HCA");
  goes_back_late(GENERATE(false, true), 4, across_mended_ports);
}

TEST_CASE("A team whose GPU's driver must flush counts its signals, unless it is told not to") {
  NEEDS(use_gpu() && !on_adapters(), "the late adapter is the soft HCA");
  FlushingGpu gpu;
  Config config = late_config();
  using enum AtomicsChoice;
  config.gin_atomics = GENERATE(automatic, never, always);
  const bool counted = config.gin_atomics != always;
  const LogCapture log;
  CHECK(run_threads(2, talks, config) == "");
  CHECK(log.has("if that port fails") == counted);
  CHECK(log.has("signals without atomics") == counted);
}

TEST_CASE("Where the driver fails to make visible what came, kernels are let go in time") {
  NEEDS(use_gpu() && !on_adapters(), "the late adapter is the soft HCA");
  ends_where_the_driver_fails(refused);
}

TEST_CASE("Signals in GPU memory come after data that came over either port, on late adapters") {
  NEEDS(use_gpu() && !on_adapters(), "the late adapter is the soft HCA");
  in_order_over_crossed_ports(crossed_words);
}

TEST_CASE("F4: Data in GPU memory comes before its signals on the way back, on late adapters") {
  NEEDS(use_gpu() && !on_adapters(), "the late adapter is the soft HCA");
  goes_back_late_by_seed(late_moves, [](const Fault&) { return std::size_t{1}; });
}

TEST_CASE("Where the driver cannot make visible what adapters wrote, a team with a GPU stays") {
  NEEDS(use_gpu() && !on_adapters(), "the late adapter is the soft HCA");
  FlushingGpu gpu(2);  // operations of streams can
  const LogCapture log;
  CHECK(run_threads(2, talks, late_config()) == "");
  CHECK_FALSE(log.has("if that port fails"));
  CHECK(log.has(LogLevel::info, "what came over it to memory of GPU 0 is not known to be there"));
  CHECK(log.has(LogLevel::info, "its driver has no cuFlushGPUDirectRDMAWrites for it"));
}
