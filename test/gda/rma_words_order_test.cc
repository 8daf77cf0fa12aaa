// Signals of RMA to words in GPU memory, which the adapter adds to (looped_words.h): what went over
// one port comes before what is read over another one.
#include "test/gda/rma_words.h"
#include "test/support/catch.h"
#include "test/support/log_capture.h"
#include "test/support/needs.h"

using namespace twinpath;
using namespace twinpath::gda;
using namespace twinpath::test;

namespace {

std::int64_t lose_once_written(const ibv_wc& wc) {
  (void)is_first_read(wc);
  return wc.opcode == IBV_WC_RDMA_WRITE && wc.qp_num == word_loop ? lose() : 0;
}

// One context has left the first port, has written over the second, and that is lost; the other one
// has been over the first all the time.
const Port* to_mend = nullptr;
std::int64_t trade_once_written(const ibv_wc& wc) {
  (void)is_first_read(wc);
  if (wc.opcode != IBV_WC_RDMA_WRITE || wc.qp_num != word_loop || to_lose == nullptr) return 0;
  (void)soft::set_port_loss(to_mend->context, to_mend->number, soft::PortLoss::none);
  const Port& lost = *to_lose.exchange(nullptr);
  (void)soft::set_port_state(lost.context, lost.number, false);
  return 0;
}
std::string after_another_context(Rank& r) {
  look_at_rank_0(r, trade_once_written, 1);
  RmaMember member = rma_join_first(r);
  EXPECT_GIN(member.context);
  auto made = member.comm->create_context({.contexts = 2});
  EXPECT_GIN(made);
  RmaContext &one = *member.context, &other = **made;
  RmaGpuMemory words(*member.comm, 64, never_reset);
  EXPECT_GIN(words);
  r.meeting->barrier();
  if (r.rank == 0) {
    to_mend = &*r.devices->rails(0).front().port;
    to_lose = &*r.devices->rails(1).front().port;
    set(*to_mend, false);
  }
  r.meeting->barrier();
  const RmaSignal signal{words.at(8), 1};
  const auto progress = [&] {
    (void)one.progress();  // which may come to its end
    (void)other.progress();
  };
  if (r.rank == 1) EXPECT_GIN(one.put(0, 0, {}, &signal));
  while (to_lose != nullptr) progress();
  for (const std::int64_t heard = now_ns() + 20 * kMillisecond; now_ns() < heard;) progress();
  if (r.rank == 1) EXPECT_GIN(other.put(0, 0, {}, &signal));
  const std::int64_t end = now_ns() + kLimit;
  while (words.word(8) < 2 && r.rank == 0) {
    progress();
    EXPECT_GIN(now_ns() < end, static_cast<std::int64_t>(words.word(8)));
  }
  meet(r, {&one, &other});
  EXPECT_GIN(!other.failed());
  r.meeting->barrier();
  mend(r);
  return {};
}

// Signals come by a queue of either port, where each rank has the other one's first as its second.
int by_queue = 0;
std::string lost_after(Rank& r) {
  look_at_rank_0(r, lose_once_written);
  RmaMember member = rma_join(r, {.contexts = 2}, r.rank % 2);
  EXPECT_GIN(member.context);
  RmaContext& context = *member.context;
  RmaGpuMemory words(*member.comm, 64, never_reset);
  EXPECT_GIN(words);
  r.meeting->barrier();
  if (r.rank == 0) to_lose = &*r.devices->rails(0).front().port;
  r.meeting->barrier();
  std::vector<RmaRequest*> puts;
  for (int n = 0; n < 2; ++n) {
    const RmaSignal signal{words.at(8), 1};
    if (r.rank == 1) {
      auto put = context.put(by_queue, 0, {}, &signal);
      EXPECT_GIN(put);
      puts.push_back(*put);
    }
    while (r.rank == 0 && to_lose != nullptr) EXPECT_RMA_OK(context.progress());
    meet(r, {&context});
  }
  EXPECT_GIN(r.rank != 0 || rma_await(context, words, 8, 2));
  for (RmaRequest* put : puts) EXPECT_RMA_OK(rma_wait(put));
  meet(r, {&context});
  EXPECT_GIN(!context.failed() && (r.rank != 0 || words.word(8) == 2));
  r.meeting->barrier();
  mend(r);
  return {};
}

// Two contexts of a team add to the same words, each to those of the other rank.  One has done so
// while a port was down; whether all that it wrote over the other one is there when the next one
// reads over the first no adapter knows.
std::string by_two_contexts(Rank& r) {
  RmaMember member = rma_join(r, {.contexts = 2}, r.rank % 2);
  EXPECT_GIN(member.context);
  auto made = member.comm->create_context({.contexts = 2});
  EXPECT_GIN(made);
  RmaContext &one = *member.context, &other = **made;
  RmaGpuMemory words(*member.comm, 64);
  EXPECT_GIN(words);
  std::uint64_t signals = 0;
  const auto round = [&](std::initializer_list<RmaContext*> by) -> std::string {
    const RmaSignal signal{words.at(8), 1};
    for (RmaContext* context : by) {
      auto put = context->put(static_cast<int>(signals % 2), 1 - r.rank, {}, &signal);
      EXPECT_GIN(put);
    }
    signals += by.size();
    const std::int64_t end = now_ns() + kLimit;
    while (words.word(8) < signals) {
      EXPECT_RMA_OK(one.progress());
      EXPECT_RMA_OK(other.progress());
      EXPECT_GIN(now_ns() < end, static_cast<std::int64_t>(words.word(8)),
                 static_cast<std::int64_t>(signals));
    }
    return {};
  };
  const Port& port = *r.devices->rails(struck).front().port;
  for (int n = 0; n < 5; ++n) TRY_TEXT(round({&one}));
  meet(r, {&one, &other});
  if (r.rank == 0) set(port, false);
  for (int n = 0; n < 5; ++n) TRY_TEXT(round({&one}));
  EXPECT_GIN(driven({&one, &other}, [] { return all_are_on(other_port(), true); }));
  TRY_TEXT(round({&one}));
  meet(r, {&one, &other});
  if (r.rank == 0) set(port, true);
  EXPECT_GIN(driven({&one, &other}, [] { return all_are_on(struck_port(), true); }));
  for (int n = 0; n < 60; ++n) TRY_TEXT(round({&one, &other}));
  meet(r, {&one, &other});
  EXPECT_GIN(words.word(8) == signals && !one.failed() && !other.failed());
  r.meeting->barrier();
  return {};
}

}  // namespace

TEST_CASE("What is on its way to a word over a port that is lost is not read past over another") {
  NEEDS(use_gpu() && !on_adapters(), "the late adapter is the soft HCA");
  FlushingGpu gpu;
  never_reset = false;
  by_queue = GENERATE(0, 1);
  fault = {"down", true};
  Config config = late_config();
  config.soft_hcas = "soft0,soft1";
  const LogCapture log;
  gpu.takes_ms = 150;  // longer than anything else, and not as long as adapters are late
  CHECK(run_threads(2, lost_after, config) == "");
  fault = {"lost", false, soft::PortLoss::all};
  CHECK(run_threads(2, after_another_context, late_config()) == "");
}

TEST_CASE("Two RMA contexts add to one word, over one port after the other") {
  NEEDS(use_gpu() && !on_adapters(), "the late adapter is the soft HCA");
  FlushingGpu gpu;
  gpu.whole_words = true;
  fault = {"down", true};
  const LogCapture log;
  fault.log = &log;
  Config config = late_and_soon_back();
  config.soft_hcas = "soft0,soft1";
  CHECK(run_threads(2, by_two_contexts, config) == "");
  CHECK(log.has(LogLevel::info, "goes back to soft0, which works again"));
  fault.log = nullptr;
}
