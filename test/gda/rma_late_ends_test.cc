// RMA with data in GPU memory leaves a port of late adapters (late_adapter.h): what had come stays,
// windows end after what is under way, and where the driver fails all ends in time.
#include "gda/served/back/work_request_id.h"
#include "test/gda/late_completions.h"
#include "test/gda/late_moves.h"
#include "test/gda/rma_moves.h"
#include "test/support/catch.h"
#include "test/support/log_capture.h"
#include "test/support/needs.h"

using namespace twinpath;
using namespace twinpath::gda;
using namespace twinpath::test;

namespace {

// Windows are given back while queues move: nothing is written or read there afterwards.
std::string late_given_back(Rank& r) {
  constexpr std::uint64_t kPuts = 12;
  RmaMember member = rma_join_first(r);
  EXPECT_GIN(member.context);
  RmaContext& context = *member.context;
  RmaGpuData from(*member.comm, kSlot * kPuts), to(*member.comm, kSlot * kPuts),
      fetched(*member.comm, kSlot);
  RmaMemory words(*member.comm, 64);
  EXPECT_GIN(from && to && fetched && words);
  from.fill(static_cast<unsigned>(r.rank), 0, kSlot * kPuts);
  r.meeting->barrier();
  if (r.rank == 0) set(*r.devices->rails(struck).front().port, false);
  r.meeting->barrier();
  std::vector<RmaRequest*> requests;
  for (std::uint64_t i = 0; i < kPuts; ++i) {
    const RmaSignal signal{words.at(0), 1};
    auto put = context.put(0, 1 - r.rank, {from.at(i * kSlot), to.at(i * kSlot), kSlot}, &signal);
    auto get = context.get(0, 1 - r.rank, {fetched.at(0), to.at(i * kSlot), kSlot});
    EXPECT_GIN(put && get);
    requests.push_back(*put);
    requests.push_back(*get);
  }
  from.release();
  fetched.release();
  from.fill(77, 0, kSlot * kPuts);
  fetched.fill(77, 0, kSlot);
  for (RmaRequest* request : requests) EXPECT_RMA_OK(rma_wait(request, 0));
  EXPECT_GIN(rma_await(context, words, 0, kPuts));
  EXPECT_GIN(to.has(static_cast<unsigned>(1 - r.rank), 0, kSlot * kPuts));
  r.meeting->barrier();  // nobody fetches any more
  to.release();
  to.fill(78, 0, kSlot * kPuts);
  for (const std::int64_t end = now_ns() + 500 * kMillisecond; now_ns() < end; sched_yield())
    EXPECT_RMA_OK(context.progress());
  EXPECT_GIN(fetched.has(77, 0, kSlot) && to.has(78, 0, kSlot * kPuts));
  EXPECT_GIN(words.word(0) == kPuts && !context.failed());
  r.meeting->barrier();
  mend(r);
  return {};
}

// The READs of one flush loop take long, and so does the last send of the queue of rank 0 that
// leaves; its gets are counted.
std::atomic<std::uint32_t> slow_loop{0};
std::atomic<int> gets_came{0};
std::int64_t slow_flush(const ibv_wc& wc) {
  if (WorkRequestId::is(wc, WorkRequestId::kLastSend) && WorkRequestId::pair(wc) == 1)
    return 300 * kMillisecond;
  if (wc.status != IBV_WC_SUCCESS || wc.opcode != IBV_WC_RDMA_READ) return 0;
  if (WorkRequestId::pair(wc) == 1) return ++gets_came, 0;
  std::uint32_t none = 0;
  (void)slow_loop.compare_exchange_strong(none, wc.qp_num);
  return wc.qp_num == slow_loop ? 3 * kSecond / 2 : 0;
}

// What a get has brought behind a flush that is not over is not fetched again: the signal behind it
// says that the memory may be written.
std::string held_get(Rank& r) {
  if (r.rank == 0) {
    slow_loop = 0;
    gets_came = 0;
    LateCompletions::hold(r, slow_flush);
  }
  r.meeting->barrier();
  RmaMember member = rma_join_first(r);
  EXPECT_GIN(member.context);
  RmaContext& context = *member.context;
  RmaGpuData data(*member.comm, kSlot);
  RmaMemory words(*member.comm, 64);
  EXPECT_GIN(data && words);
  const RmaSignal signal{words.at(0), 1};
  if (r.rank == 1) data.fill(1, 0, kSlot);
  r.meeting->barrier();
  if (r.rank == 1) {
    EXPECT_GIN(rma_await(context, words, 0, 1));
    data.fill(2, 0, kSlot);
    r.meeting->barrier();
    r.meeting->barrier();
    auto put = context.put(0, 0, {}, &signal);
    EXPECT_GIN(put && rma_await(context, words, 0, 2));
    EXPECT_RMA_OK(rma_wait(*put));
  } else {
    auto flush = context.flush(0, 1);
    EXPECT_GIN(flush);
    while (slow_loop == 0) EXPECT_RMA_OK(context.progress());
    auto get = context.get(0, 1, {data.at(0), data.at(0), kSlot});
    EXPECT_GIN(get);
    while (gets_came == 0) EXPECT_RMA_OK(context.progress());
    auto put = context.put(0, 1, {}, &signal);
    EXPECT_GIN(put);
    r.meeting->barrier();
    set(*r.devices->rails(struck).front().port, false);
    r.meeting->barrier();
    auto last = context.put(0, 1, {}, &signal);
    EXPECT_GIN(last);
    EXPECT_RMA_OK(rma_wait(*flush));
    EXPECT_RMA_OK(rma_wait(*get));
    EXPECT_RMA_OK(rma_wait(*put));
    EXPECT_RMA_OK(rma_wait(*last));
    EXPECT_GIN(rma_await(context, words, 0, 1));
    EXPECT_GIN(data.has(1, 0, kSlot));
  }
  r.meeting->barrier();
  EXPECT_GIN(!context.failed());
  mend(r);
  return {};
}

// The driver is done long before a READ of the loop is, for which the window's end waits.
std::string slow_read(Rank& r) {
  slow_loop = 0;
  LateCompletions::hold(r, slow_flush);
  RmaMember member = rma_join_first(r);
  EXPECT_GIN(member.context);
  RmaContext& context = *member.context;
  RmaGpuData data(*member.comm, kSlot);
  EXPECT_GIN(data);
  auto flush = context.flush(0, 0);
  EXPECT_GIN(flush);
  while (slow_loop == 0) EXPECT_RMA_OK(context.progress());
  set(*r.devices->rails(struck).front().port, false);
  EXPECT_RMA_OK(rma_wait(*flush));
  data.release();
  EXPECT_GIN(!context.failed());
  mend(r);
  return {};
}

// Nobody is told of what may not be there.
std::string rma_refused(Rank& r) {
  RmaMember member = rma_join_first(r);
  EXPECT_GIN(member.context);
  RmaContext& context = *member.context;
  RmaGpuData data(*member.comm, 2 * kSlot);
  RmaMemory words(*member.comm, 64);
  EXPECT_GIN(data && words);
  r.meeting->barrier();
  if (r.rank == 0) set(*r.devices->rails(struck).front().port, false);
  const RmaSignal signal{words.at(0), 1};
  (void)context.put(0, 1 - r.rank, {data.at(0), data.at(kSlot), kSlot}, &signal);
  EXPECT_GIN(fails_in_time(member));
  r.meeting->barrier();
  mend(r);
  return {};
}

}  // namespace

TEST_CASE("RMA does not fetch again what had come before its port was left, on late adapters") {
  NEEDS(use_gpu() && !on_adapters(), "the late adapter is the soft HCA");
  FlushingGpu gpu;
  fault = {"lost", false, soft::PortLoss::all};
  const LogCapture log;
  CHECK(run_threads(2, held_get, late_config()) == "");
  CHECK(log.has("leaves soft0 for soft1"));
}

TEST_CASE("The end of an RMA window in GPU memory waits for queues that move, on late adapters") {
  NEEDS(use_gpu() && !on_adapters(), "the late adapter is the soft HCA");
  FlushingGpu gpu;
  fault = {"down", true};
  const LogCapture log;
  CHECK(run_threads(1, slow_read, late_config()) == "");
  CHECK(run_threads(2, late_given_back, late_config()) == "");
  CHECK(log.has("leaves soft0 for soft1"));
}

TEST_CASE("Where the driver fails to make visible what came, RMA ends in time") {
  NEEDS(use_gpu() && !on_adapters(), "the late adapter is the soft HCA");
  ends_where_the_driver_fails(rma_refused);
}

TEST_CASE("Where the driver cannot make visible what adapters wrote, RMA with a GPU stays") {
  NEEDS(use_gpu() && !on_adapters(), "the late adapter is the soft HCA");
  FlushingGpu gpu(2);  // operations of streams can
  const LogCapture log;
  CHECK(run_threads(2, rma_meets, late_config()) == "");
  CHECK_FALSE(log.has("if that port fails"));
  CHECK(
      log.has(LogLevel::info,
              "RMA of rank 0 does not move if soft0 fails: what came over it to memory of GPU 0"));
  CHECK(log.has(LogLevel::info, "its driver has no cuFlushGPUDirectRDMAWrites for it"));
}
