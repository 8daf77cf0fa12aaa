// Signals of RMA to words in GPU memory, which the adapter adds to (looped_words.h), as its port
// fails in the midst of it; on late adapters (late_adapter.h).
#include "test/gda/late_completions.h"
#include "test/gda/late_moves.h"
#include "test/gda/rma_moves.h"
#include "test/support/catch.h"
#include "test/support/log_capture.h"
#include "test/support/needs.h"

using namespace twinpath;
using namespace twinpath::gda;
using namespace twinpath::test;

#define TRY_TEXT(wrong) \
  if (std::string text = (wrong); !text.empty()) return text

namespace {

// Of a run: what NCCL says of the words, and the queue pair at rank 0 that was asked for them.
bool never_reset = true;
std::atomic<std::uint32_t> word_loop{0};

// The first READ of words; no get is asked for here, and READs that flush have numbers.
bool is_first_read(const ibv_wc& wc) {
  std::uint32_t none = 0;
  return wc.opcode == IBV_WC_RDMA_READ && wc.wr_id == 0 &&
         word_loop.compare_exchange_strong(none, wc.qp_num);
}
std::int64_t slow_first_read(const ibv_wc& wc) {
  return is_first_read(wc) ? 200 * kMillisecond : 0;
}
std::atomic<bool> wrote{false};
std::int64_t slow_first_write(const ibv_wc& wc) {
  (void)is_first_read(wc);
  const bool write = wc.opcode == IBV_WC_RDMA_WRITE && wc.qp_num == word_loop;
  return write && !wrote.exchange(true) ? 300 * kMillisecond : 0;
}

// Rank 1 signals to rank 0's word, which comes to `value`.
std::string one_signal(Rank& r, RmaContext& context, RmaGpuMemory& words, std::uint64_t value) {
  if (r.rank == 1) {
    const RmaSignal signal{words.at(8), 1};
    auto put = context.put(0, 0, {}, &signal);
    EXPECT_GIN(put);
    EXPECT_RMA_OK(rma_wait(*put));
  } else {
    EXPECT_GIN(rma_await(context, words, 8, value), static_cast<std::int64_t>(value));
  }
  driven({&context}, [&r] { return r.meeting->barrier(), true; });
  return {};
}

// READ before the port was lost, without a word, WRITTEN after it: where the words may have been
// reset since, nobody knows whether they may be written again.
std::string lost_between(Rank& r) {
  if (r.rank == 0) {
    word_loop = 0;
    LateCompletions::hold(r, slow_first_read);
  }
  r.meeting->barrier();
  RmaMember member = rma_join_first(r);
  EXPECT_GIN(member.context);
  RmaContext& context = *member.context;
  RmaGpuMemory words(*member.comm, 64, never_reset);
  EXPECT_GIN(words);
  r.meeting->barrier();
  const Port& first = *r.devices->rails(0).front().port;
  const Port& second = *r.devices->rails(1).front().port;
  const auto lose = [&] {
    while (word_loop == 0) EXPECT_RMA_OK(context.progress());
    set(first, false);
    return std::string();
  };
  if (!never_reset) {
    const RmaSignal signal{words.at(8), 1};
    if (r.rank == 1) EXPECT_GIN(context.put(0, 0, {}, &signal));
    if (r.rank == 0) TRY_TEXT(lose());
    EXPECT_GIN(r.rank != 0 || fails_in_time(member));
    r.meeting->barrier();
    mend(r);
    return {};
  }
  if (r.rank == 0) TRY_TEXT(lose());
  TRY_TEXT(one_signal(r, context, words, 1));
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

// The port is lost before the word is read, or as soon as that is known to be written.
std::atomic<const Port*> to_lose{nullptr};
std::int64_t lose() {
  if (const Port* port = to_lose.exchange(nullptr); port != nullptr) set(*port, false);
  return 0;
}
// The last completion of what is left comes when another queue pair is there, over the same port.
std::int64_t lose_at_signal(const ibv_wc& wc) {
  if (wc.status == IBV_WC_WR_FLUSH_ERR && wc.wr_id == 0) return 100 * kMillisecond;
  return wc.status == IBV_WC_SUCCESS && (wc.opcode & IBV_WC_RECV) != 0 ? lose() : 0;
}
std::int64_t lose_once_written(const ibv_wc& wc) {
  (void)is_first_read(wc);
  return wc.opcode == IBV_WC_RDMA_WRITE && wc.qp_num == word_loop ? lose() : 0;
}
void hold_of_first(Rank& r, LateCompletions::Pause by, int device = 0) {
  if (r.rank == 0) {
    to_lose = nullptr;
    word_loop = 0;
    LateCompletions::hold(r, by, device);
  }
  r.meeting->barrier();
}
std::string lost_before(Rank& r) {
  hold_of_first(r, lose_at_signal);
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
  hold_of_first(r, trade_once_written, r.rank == 0 ? 1 : 0);
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
  driven({&one, &other}, [&r] { return r.meeting->barrier(), true; });
  EXPECT_GIN(!other.failed());
  r.meeting->barrier();
  mend(r);
  return {};
}

// Signals come by a queue of either port, where each rank has the other one's first as its second.
int by_queue = 0;
std::string lost_after(Rank& r) {
  hold_of_first(r, lose_once_written);
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
    driven({&context}, [&r] { return r.meeting->barrier(), true; });
  }
  EXPECT_GIN(r.rank != 0 || rma_await(context, words, 8, 2));
  for (RmaRequest* put : puts) EXPECT_RMA_OK(rma_wait(put));
  driven({&context}, [&r] { return r.meeting->barrier(), true; });
  EXPECT_GIN(!context.failed() && (r.rank != 0 || words.word(8) == 2));
  r.meeting->barrier();
  mend(r);
  return {};
}

// Nobody has heard that it is written when the port goes down.
std::string lost_behind(Rank& r) {
  if (r.rank == 0) {
    word_loop = 0;
    wrote = false;
    LateCompletions::hold(r, slow_first_write);
  }
  r.meeting->barrier();
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
  TRY_TEXT(one_signal(r, context, words, 2));
  TRY_TEXT(one_signal(r, context, words, 3));
  EXPECT_GIN(!context.failed() && (r.rank != 0 || words.word(8) == 3));
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
  const auto meet = [&] {
    return driven({&one, &other}, [&] { return r.meeting->barrier(), true; });
  };
  const Port& port = *r.devices->rails(struck).front().port;
  for (int n = 0; n < 5; ++n) TRY_TEXT(round({&one}));
  meet();
  if (r.rank == 0) set(port, false);
  for (int n = 0; n < 5; ++n) TRY_TEXT(round({&one}));
  EXPECT_GIN(driven({&one, &other}, [] { return all_are_on(other_port(), true); }));
  TRY_TEXT(round({&one}));
  meet();
  if (r.rank == 0) set(port, true);
  EXPECT_GIN(driven({&one, &other}, [] { return all_are_on(struck_port(), true); }));
  for (int n = 0; n < 60; ++n) TRY_TEXT(round({&one, &other}));
  meet();
  EXPECT_GIN(words.word(8) == signals && !one.failed() && !other.failed());
  r.meeting->barrier();
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

TEST_CASE("What is written to a word as its port goes down is added once") {
  NEEDS(use_gpu() && !on_adapters(), "the late adapter is the soft HCA");
  FlushingGpu gpu;
  never_reset = GENERATE(true, false);
  fault = {"down", true};
  const LogCapture log;
  CHECK(run_threads(2, lost_behind, late_config()) == "");
  CHECK(log.has("begins again: it is left") == never_reset);
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
