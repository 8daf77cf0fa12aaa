// A team's port fails while hosts put (RMA), or kernels (GIN), with signals in memory of a GPU that
// is made up.
#include <mutex>
#include <optional>
#include <set>
#include <utility>

#include "gda/served/back/work_request_id.h"
#include "test/gda/gpu_window.h"
#include "test/gda/move_seeds.h"
#include "test/gda/rma_moves.h"
#include "test/support/catch.h"
#include "test/support/log_capture.h"

using namespace twinpath;
using namespace twinpath::gda;
using namespace twinpath::test;

namespace {

// The first rank's receives: of a queue pair each has a slot of memory of its own, as long as it is
// posted.
struct Slots {
  static inline std::mutex lock;
  static inline std::set<std::pair<std::uint32_t, std::uint64_t>> posted;  // by QP number
  static inline int twice = 0;
  static inline int (*recv_below)(ibv_qp*, ibv_recv_wr*, ibv_recv_wr**) = nullptr;
  static inline int (*poll_below)(ibv_cq*, int, ibv_wc*) = nullptr;

  static int recv(ibv_qp* qp, ibv_recv_wr* wr, ibv_recv_wr** bad) {
    const std::lock_guard hold(lock);
    const std::uint64_t slot = WorkRequestId::number(wr->wr_id) - WorkRequestId::kSlots;
    const std::uint32_t number = qp->qp_num;
    if (qp->state == IBV_QPS_INIT && slot == 0)  // a new one, perhaps with another's number
      posted.erase(posted.lower_bound({number, 0}),
                   posted.upper_bound({number, ~std::uint64_t{0}}));
    if (slot < WorkRequestId::kMostSlots) twice += posted.insert({number, slot}).second ? 0 : 1;
    return recv_below(qp, wr, bad);
  }
  static int poll(ibv_cq* cq, int most, ibv_wc* wcs) {
    const std::lock_guard hold(lock);
    const int n = poll_below(cq, most, wcs);
    for (int i = 0; i < n; ++i) posted.erase({wcs[i].qp_num, WorkRequestId::slot(wcs[i])});
    return n;
  }
};

std::string moves_by_slots(Rank& r) {
  if (r.rank == 0) {
    Slots::posted.clear();
    Slots::twice = 0;
    for (const int port : {0, 1}) {
      auto& ops = r.devices->rails(port).front().port->context->ops;
      Slots::recv_below = std::exchange(ops.post_recv, Slots::recv);
      Slots::poll_below = std::exchange(ops.poll_cq, Slots::poll);
    }
  }
  r.meeting->barrier();
  const std::string wrong = rma_moves<RmaGpuMemory>(r);
  EXPECT_GIN(r.rank != 0 || Slots::twice == 0, Slots::twice);
  return wrong;
}

std::string gin_moves(Rank& r) {
  Member member = join_first(r);
  return play_and_mend<GpuWindow>(r, member);
}

Config gpu_soon_back() {
  Config config = soon_back();
  config.soft_cuda = SoftCuda::inprocess;
  return config;
}

// F4, by seed.  `queues`: to each rank.
void come_back(std::string (*ranks)(Rank&), std::size_t (*queues)(const Fault&)) {
  if (on_adapters()) return;
  FakeGpu gpu;
  fake = &gpu;
  each_seed([&](unsigned seed, const LogCapture& log) {
    Fault often{"often", seed % 2 != 0, soft::PortLoss::all};
    often.times = 3;
    REQUIRE(by_seed(seed, often, log, {ranks, queues(often), gpu_soon_back}) == "");
    CHECK(log.has(LogLevel::info, "goes back to soft0, which works again"));
  });
}

// A window is GPU memory, which adapters behind PCIe cannot settle: nothing moves, and all ends
// when the first port is lost.
template <class Member, class Memory>
std::string stays(Rank& r, Member member) {
  EXPECT_GIN(member.context);
  std::optional<Memory> window;
  window.emplace(*member.comm, 4096);
  EXPECT_GIN(*window);
  r.meeting->barrier();
  if (r.rank == 0) set(*r.devices->rails(0).front().port, false);
  const bool failed = fails_in_time(member);
  r.meeting->barrier();
  if (r.rank == 0) mend(r);
  EXPECT_GIN(failed);
  return {};
}
std::string rma_stays(Rank& r) { return stays<RmaMember, RmaGpuMemory>(r, rma_join_first(r)); }
std::string gin_stays(Rank& r) {
  return stays<twinpath::test::Member, GpuWindow>(r, join_first(r));
}

void stay(const char* name, std::string (*ranks)(Rank&)) {
  if (on_adapters()) return;
  FakeGpu gpu;
  fake = &gpu;
  Config config = merged_config();
  config.soft_cuda = SoftCuda::inprocess;
  config.failover_hold_ms = 300;
  fault = {"down", true};
  const LogCapture log;
  CHECK(run_threads(2, ranks, config, unordered) == "");
  CHECK(log.has(LogLevel::info, std::string(name) +
                                    " of rank 1 does not move to soft1 any more: a window is GPU "
                                    "memory"));
  CHECK(!log.has("leaves soft0"));
}

// F1; in the later runs the GPU may take its time.
void go_on(std::string (*ranks)(Rank&), bool slow_later) {
  if (on_adapters()) return;
  FakeGpu gpu;
  fake = &gpu;
  Config config = merged_config();
  config.soft_cuda = SoftCuda::inprocess;
  for (unsigned seed = 1; seed <= 4; ++seed) {
    INFO("seed " << seed);
    gpu.slow = slow_later && seed > 2;
    fault = {"down", seed % 2 != 0, soft::PortLoss::all, 5000 * seed, seed};
    const UntilStruck waits;
    const LogCapture log;
    CHECK(run_threads(2, ranks, config) == "");
    CHECK(log.has("leaves soft0 for soft1"));
  }
}

}  // namespace

TEST_CASE("F4: Host RMA with signals in GPU memory goes back to the first port, by seed") {
  come_back(moves_by_slots, queues_of);
}

TEST_CASE("F1: Host RMA with signals in GPU memory goes on over the second port") {
  go_on(rma_moves<RmaGpuMemory>, false);
}

TEST_CASE("F4: Kernels with signals in windows of GPU memory go back to the first port, by seed") {
  come_back(gin_moves, [](const Fault&) -> std::size_t { return 1; });
}

TEST_CASE("A window in GPU memory that adapters cannot settle keeps RMA on its port") {
  stay("RMA", rma_stays);
}

TEST_CASE("A window in GPU memory that adapters cannot settle keeps kernels on their port") {
  stay("GIN", gin_stays);
}

TEST_CASE("F1: Kernels with signals in windows of GPU memory go on over the second port") {
  go_on(gin_moves, true);
}
