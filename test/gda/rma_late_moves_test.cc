// The same as late_moves_test.cc, of puts and gets of the host.
#include "test/gda/late_moves.h"
#include "test/gda/rma_moves.h"
#include "test/support/catch.h"
#include "test/support/log_capture.h"
#include "test/support/needs.h"

using namespace twinpath;
using namespace twinpath::gda;
using namespace twinpath::test;

namespace {

std::string rma_late_moves(Rank& r) { return rma_moves<RmaMemory, RmaGpuData>(r); }
std::string rma_late_words(Rank& r) { return rma_moves<RmaGpuMemory, RmaGpuData>(r); }

bool come_to(RmaContext& context, const std::string& port) {
  return driven({&context}, [&port] { return all_are_on(port); });
}

using Between = std::string (*)(Rank&, RmaContext&);

// The port goes down, so a signal that follows finds its queue on the way.
std::string rma_goes_down(Rank& r, RmaContext&) {
  if (r.rank == 0) set(*r.devices->rails(struck).front().port, false);
  return {};
}
std::string rma_comes_back(Rank& r, RmaContext& context) {
  EXPECT_GIN(come_to(context, other_port()));
  r.meeting->barrier();
  if (r.rank == 0) set(*r.devices->rails(struck).front().port, true);
  EXPECT_GIN(come_to(context, struck_port()));
  return {};
}
std::string rma_stays(Rank&, RmaContext&) { return {}; }

// What rank 1 puts has been acknowledged, over one port; its signal comes over the other one.  Then
// rank 0 fetches what rank 1 had put from.
std::string rma_put_then_signal(Rank& r, RmaContext& context, RmaGpuData& data, RmaMemory& words,
                                Between between, unsigned round) {
  if (r.rank == 1) {
    data.fill(round, 0, kSlot);
    auto put = context.put(0, 0, {data.at(0), data.at(kSlot), kSlot}, nullptr);
    EXPECT_GIN(put);
    EXPECT_RMA_OK(rma_wait(*put));
  }
  r.meeting->barrier();
  if (std::string wrong = between(r, context); !wrong.empty()) return wrong;
  r.meeting->barrier();
  if (r.rank == 0) {
    EXPECT_GIN(rma_await(context, words, 0, round));
    EXPECT_GIN(data.has(round, kSlot, kSlot), round);
    auto get = context.get(0, 1, {data.at(2 * kSlot), data.at(0), kSlot});
    auto flush = context.flush(0, 1);
    EXPECT_GIN(get && flush);
    EXPECT_RMA_OK(rma_wait(*flush));
    EXPECT_RMA_OK(rma_wait(*get));
    EXPECT_GIN(data.has(round, 2 * kSlot, kSlot), round);
  }
  const RmaSignal signal{words.at(0), 1};
  auto put = context.put(0, 1 - r.rank, {}, &signal);
  EXPECT_GIN(put);
  EXPECT_RMA_OK(rma_wait(*put));
  EXPECT_GIN(rma_await(context, words, 0, round));
  return {};
}

std::string rma_across_ports(Rank& r) {
  RmaMember member = rma_join_first(r);
  EXPECT_GIN(member.context);
  RmaContext& context = *member.context;
  RmaGpuData data(*member.comm, 3 * kSlot);
  RmaMemory words(*member.comm, 64);
  RmaGpuMemory read(*member.comm, 64);  // by flushes
  EXPECT_GIN(data && words && read);
  unsigned round = 0;
  for (const Between between : {rma_goes_down, rma_stays, rma_comes_back, rma_stays}) {
    if (std::string wrong = rma_put_then_signal(r, context, data, words, between, ++round);
        !wrong.empty())
      return wrong;
    r.meeting->barrier();
  }
  EXPECT_GIN(!context.failed());
  mend(r);
  return {};
}

// A signal in host memory tells of what peers have put, once a put to oneself is done, on the way
// between ports, too.
std::string put_to_itself(Rank& r) {
  RmaMember member = rma_join_first(r);
  EXPECT_GIN(member.context);
  RmaContext& context = *member.context;
  RmaGpuData data(*member.comm, 2 * kSlot), flush(*member.comm, 64);
  RmaMemory words(*member.comm, 64);
  EXPECT_GIN(data && flush && words);
  for (unsigned round = 1; round <= 30; ++round) {
    data.fill(round, 0, kSlot);
    const RmaSignal signal{words.at(0), 1};
    auto put = context.put(0, 1 - r.rank, {data.at(0), data.at(kSlot), kSlot}, &signal);
    EXPECT_GIN(put);
    if (round == 10 && r.rank == 0) set(*r.devices->rails(struck).front().port, false);
    EXPECT_GIN(rma_await(context, words, 0, round));
    auto self = context.put(0, r.rank, {flush.at(8), flush.at(8), 8}, nullptr);
    EXPECT_GIN(self);
    EXPECT_RMA_OK(rma_wait(*self));
    EXPECT_GIN(data.has(round, kSlot, kSlot), round);
    EXPECT_RMA_OK(rma_wait(*put));
    const RmaSignal seen{words.at(8), 1};
    auto back = context.put(0, 1 - r.rank, {}, &seen);
    EXPECT_GIN(back && rma_await(context, words, 8, round));
    EXPECT_RMA_OK(rma_wait(*back));
  }
  EXPECT_GIN(!context.failed());
  r.meeting->barrier();
  mend(r);
  return {};
}

// Each queue between the two is over the first port of one and the second of the other.
template <class Words>
std::string rma_crossed_words(Rank& r) {
  RmaMember member = rma_join(r, {.contexts = 2}, r.rank % 2);
  EXPECT_GIN(member.context);
  RmaContext& context = *member.context;
  RmaGpuData data(*member.comm, 2 * kSlot);
  Words words(*member.comm, 64);
  RmaGpuMemory read(*member.comm, 64);  // by flushes
  EXPECT_GIN(data && words && read);
  for (unsigned round = 1; round <= 20; ++round) {
    const int by = static_cast<int>(round % 2);
    data.fill(round, 0, kSlot);
    const RmaSignal signal{words.at(8), 1};
    auto put = context.put(by, 1 - r.rank, {data.at(0), data.at(kSlot), kSlot}, &signal);
    EXPECT_GIN(put);
    EXPECT_GIN(rma_await(context, words, 8, round));
    EXPECT_GIN(data.has(round, kSlot, kSlot), round);
    EXPECT_RMA_OK(rma_wait(*put));
    const RmaSignal seen{words.at(16), 1};
    auto back = context.put(by, 1 - r.rank, {}, &seen);
    EXPECT_GIN(back && rma_await(context, words, 16, round));
    EXPECT_RMA_OK(rma_wait(*back));
  }
  EXPECT_GIN(!context.failed());
  r.meeting->barrier();
  return {};
}

}  // namespace

TEST_CASE("F1: RMA's data in GPU memory comes before its signals over either port, late adapters") {
  NEEDS(use_gpu() && !on_adapters(), "the late adapter is the soft HCA");
  leaves_late({1, 2, 4}, rma_late_moves);
}

TEST_CASE("F1: RMA's signals in GPU memory, too, are added over either port, late adapters") {
  NEEDS(use_gpu() && !on_adapters(), "the late adapter is the soft HCA");
  leaves_late({1, 2, 4}, rma_late_words);
}

TEST_CASE(
    "What RMA put to GPU memory before its port was left is there before signals over the other") {
  NEEDS(use_gpu() && !on_adapters(), "the late adapter is the soft HCA");
  goes_back_late(GENERATE(false, true), 8, rma_across_ports);
}

TEST_CASE("An RMA put to the own rank shows what came over either port, on late adapters") {
  NEEDS(use_gpu() && !on_adapters(), "the late adapter is the soft HCA");
  FlushingGpu gpu;
  fault = {"down", GENERATE(true, false), soft::PortLoss::all};
  const LogCapture log;
  CHECK(run_threads(2, put_to_itself, late_config()) == "");
  CHECK(log.has("leaves soft0 for soft1"));
}

TEST_CASE("F4: RMA's data in GPU memory comes before its signals on the way back, late adapters") {
  NEEDS(use_gpu() && !on_adapters(), "the late adapter is the soft HCA");
  goes_back_late_by_seed(rma_late_moves, queues_of);
}

TEST_CASE("F4: RMA's signals in GPU memory are added on the way back, late adapters") {
  NEEDS(use_gpu() && !on_adapters(), "the late adapter is the soft HCA");
  goes_back_late_by_seed(rma_late_words, queues_of);
}

TEST_CASE("RMA signals come after data that came over either port, on late adapters") {
  NEEDS(use_gpu() && !on_adapters(), "the late adapter is the soft HCA");
  const bool on_gpu = GENERATE(true, false);
  in_order_over_crossed_ports(on_gpu ? rma_crossed_words<RmaGpuMemory>
                                     : rma_crossed_words<RmaMemory>);
}
