// Signals of RMA to words in GPU memory, which the adapter adds to (looped_words.h), as its port
// fails in the midst of it; on late adapters (late_adapter.h).
#include "test/gda/rma_words.h"
#include "test/support/catch.h"
#include "test/support/log_capture.h"
#include "test/support/needs.h"

using namespace twinpath;
using namespace twinpath::gda;
using namespace twinpath::test;

namespace {

std::int64_t slow_first_read(const ibv_wc& wc) {
  return is_first_read(wc) ? 200 * kMillisecond : 0;
}
std::int64_t slow_first_write(const ibv_wc& wc) {
  (void)is_first_read(wc);
  const bool write = wc.opcode == IBV_WC_RDMA_WRITE && wc.qp_num == word_loop;
  return write && !wrote.exchange(true) ? 300 * kMillisecond : 0;
}

// READ before the port was lost, without a word, WRITTEN after it: where the words may have been
// reset since, nobody knows whether they may be written again.
std::string lost_between(Rank& r) {
  look_at_rank_0(r, slow_first_read);
  RmaMember member = rma_join_first(r);
  EXPECT_GIN(member.context);
  RmaContext& context = *member.context;
  RmaGpuMemory words(*member.comm, 64, never_reset);
  EXPECT_GIN(words);
  r.meeting->barrier();
  const Port& first = *r.devices->rails(0).front().port;
  const Port& second = *r.devices->rails(1).front().port;
  if (r.rank == 1) {
    const RmaSignal signal{words.at(8), 1};
    auto put = context.put(0, 0, {}, &signal);
    EXPECT_GIN(put);
    EXPECT_RMA_OK(rma_wait(*put));
  }
  while (word_loop == 0) EXPECT_RMA_OK(context.progress());
  r.meeting->barrier();
  if (r.rank == 0) set(first, false);
  if (!never_reset) {
    EXPECT_GIN(r.rank != 0 || fails_in_time(member));
    r.meeting->barrier();
    mend(r);
    return {};
  }
  EXPECT_GIN(r.rank != 0 || rma_await(context, words, 8, 1));
  meet(r, {&context});
  // Nothing else has noticed, so no queue is made anew over that port; yet words go over it again.
  if (r.rank == 0) {
    set(first, true);
    (void)soft::set_port_state(second.context, second.number, false);
  }
  for (std::uint64_t n = 2; n <= 5; ++n) TRY_TEXT(one_signal(r, context, words, n));
  EXPECT_GIN(!context.failed() && (r.rank != 0 || words.word(8) == 5));
  r.meeting->barrier();
  mend(r);
  return {};
}

// The last completion of what is left comes when another queue pair is there, over the same port.
std::int64_t lose_at_signal(const ibv_wc& wc) {
  if (wc.status == IBV_WC_WR_FLUSH_ERR && wc.wr_id == 0) return 100 * kMillisecond;
  return wc.status == IBV_WC_SUCCESS && (wc.opcode & IBV_WC_RECV) != 0 ? lose() : 0;
}
std::string lost_before(Rank& r) {
  look_at_rank_0(r, lose_at_signal);
  RmaMember member = rma_join_first(r);
  EXPECT_GIN(member.context);
  RmaContext& context = *member.context;
  RmaGpuMemory words(*member.comm, 64, never_reset);
  EXPECT_GIN(words);
  r.meeting->barrier();
  for (const std::uint64_t at : {16, 8}) {
    const RmaSignal signal{words.at(at), 1};
    if (r.rank != 1) continue;
    auto put = context.put(0, 0, {}, &signal);
    EXPECT_GIN(put);
    EXPECT_RMA_OK(rma_wait(*put));
  }
  if (r.rank == 0) to_lose = &*r.devices->rails(0).front().port;
  r.meeting->barrier();
  EXPECT_GIN(r.rank != 0 || (rma_await(context, words, 16, 1) && rma_await(context, words, 8, 1)));
  for (std::uint64_t n = 2; n <= 3; ++n) TRY_TEXT(one_signal(r, context, words, n));
  EXPECT_GIN(!context.failed() && (r.rank != 0 || words.word(8) == 3));
  r.meeting->barrier();
  mend(r);
  return {};
}

// Lost without a word, the port is left by queues, and so by words.
std::string lost_and_left(Rank& r) {
  RmaMember member = rma_join_first(r);
  EXPECT_GIN(member.context);
  RmaGpuMemory words(*member.comm, 64, never_reset);
  EXPECT_GIN(words);
  r.meeting->barrier();
  if (r.rank == 0) set(*r.devices->rails(0).front().port, false);
  r.meeting->barrier();
  for (std::uint64_t n = 1; n <= 3; ++n) TRY_TEXT(one_signal(r, *member.context, words, n));
  EXPECT_GIN(!member.context->failed());
  r.meeting->barrier();
  mend(r);
  return {};
}

// Nobody has heard that it is written when the port goes down.
std::string lost_behind(Rank& r) {
  look_at_rank_0(r, slow_first_write);
  RmaMember member = rma_join_first(r);
  EXPECT_GIN(member.context);
  RmaContext& context = *member.context;
  RmaGpuMemory words(*member.comm, 64, never_reset);
  EXPECT_GIN(words);
  r.meeting->barrier();
  const RmaSignal signal{words.at(8), 1};
  if (r.rank == 1) EXPECT_GIN(context.put(0, 0, {}, &signal));
  while (!wrote) EXPECT_RMA_OK(context.progress());
  r.meeting->barrier();
  if (r.rank == 0) set(*r.devices->rails(0).front().port, false);
  for (std::uint64_t n = 2; n <= 3; ++n) TRY_TEXT(one_signal(r, context, words, n));
  EXPECT_GIN(!context.failed() && (r.rank != 0 || words.word(8) == 3));
  r.meeting->barrier();
  mend(r);
  return {};
}

}  // namespace

TEST_CASE(
    "A word that is read before its port is lost is written over another, if none resets it") {
  NEEDS(use_gpu() && !on_adapters(), "the late adapter is the soft HCA");
  FlushingGpu gpu;
  never_reset = GENERATE(true, false);
  fault = {"lost", false, soft::PortLoss::all};
  const LogCapture log;
  CHECK(run_threads(2, lost_between, late_and_soon_back()) == "");
  CHECK(log.has(LogLevel::info, "begins again") == never_reset);
  CHECK(log.has("adding to a signal in GPU memory, by the adapter, fails") == !never_reset);
}

TEST_CASE("A word whose port is lost before it is read is read over another") {
  NEEDS(use_gpu() && !on_adapters(), "the late adapter is the soft HCA");
  FlushingGpu gpu;
  never_reset = false;
  fault = {"lost", false, soft::PortLoss::all};
  const LogCapture log;
  CHECK(run_threads(2, lost_before, late_and_soon_back()) == "");
  CHECK(log.has(LogLevel::info, "begins again"));
}

TEST_CASE("Words leave a port with the queues of their context") {
  NEEDS(use_gpu() && !on_adapters(), "the late adapter is the soft HCA");
  FlushingGpu gpu;
  never_reset = false;
  fault = {"lost", false, soft::PortLoss::all};
  const LogCapture log;
  CHECK(run_threads(2, lost_and_left, late_config()) == "");
  CHECK(log.has("leaves soft0 for soft1"));
  CHECK_FALSE(log.has("begins again"));
}

TEST_CASE("What is written to a word as its port goes down is added once") {
  NEEDS(use_gpu() && !on_adapters(), "the late adapter is the soft HCA");
  FlushingGpu gpu;
  never_reset = GENERATE(true, false);
  fault = {"down", true};
  const LogCapture log;
  CHECK(run_threads(2, lost_behind, late_config()) == "");
  CHECK(log.has("begins again: it is left") == never_reset);
}
