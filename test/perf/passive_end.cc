// What one-sided operations cost whose target does nothing, beside one that polls its CQ: there
// the soft HCA's engine thread serves them, here the poller.  Each row is a median of rounds in
// which both kinds of target take turns.
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstdio>
#include <iterator>
#include <string>
#include <vector>

#include "plugin/base/clock.h"
#include "plugin/fabric/soft_hca.h"
#include "test/support/numbers.h"

using namespace twinpath;
using test::median;

namespace {

constexpr std::size_t kMemory = 16u << 20;
constexpr int kRounds = 7;
constexpr std::int64_t kTime = 150 * kMillisecond;  // of each measurement

struct Operation {
  const char* name;
  ibv_wr_opcode opcode;
  std::uint32_t bytes;
  int window;
};
constexpr Operation kOperations[] = {
    {"write", IBV_WR_RDMA_WRITE, 65536, 16},
    {"read", IBV_WR_RDMA_READ, 65536, 16},
    {"write", IBV_WR_RDMA_WRITE, 64, 16},
    {"write", IBV_WR_RDMA_WRITE, 64, 1},
    {"read", IBV_WR_RDMA_READ, 64, 16},
    {"read", IBV_WR_RDMA_READ, 64, 1},
    {"fetch-add", IBV_WR_ATOMIC_FETCH_AND_ADD, 8, 16},
    {"fetch-add", IBV_WR_ATOMIC_FETCH_AND_ADD, 8, 1},
    {"compare-swap", IBV_WR_ATOMIC_CMP_AND_SWP, 8, 16},
    {"compare-swap", IBV_WR_ATOMIC_CMP_AND_SWP, 8, 1},
};

// What the two processes tell each other, in memory that they share.
struct Told {
  std::uint32_t qpn = 0, rkey = 0;
  std::uint64_t memory = 0;
  ibv_gid gid{};
  std::atomic<int> step{0};  // 1: the above is there; 2: connected
};

[[noreturn]] void fail(const char* what) {
  std::fprintf(stderr, "passive_end: %s\n", what);
  ::_exit(1);
}

class End {
 public:
  End(const std::string& job, Told& mine, Told& theirs) : theirs_(theirs) {
    Config config;
    config.soft_job = job;
    std::string why;
    if (!load_soft_hca(verbs_, config, why)) fail(why.c_str());
    ibv_device** list = verbs_.get_device_list(nullptr);
    ibv_context* context = verbs_.open_device(list[0]);
    verbs_.free_device_list(list);
    ibv_pd* pd = verbs_.alloc_pd(context);
    cq_ = verbs_.create_cq(context, 64, nullptr, nullptr, 0);
    memory_.assign(kMemory, 1);
    mr_ = verbs_.reg_mr_iova2(pd, memory_.data(), kMemory, address(0), kAccess);
    ibv_qp_init_attr a{};
    a.send_cq = a.recv_cq = cq_;
    a.qp_type = IBV_QPT_RC;
    a.cap = {32, 1, 1, 1, 0};
    qp_ = verbs_.create_qp(pd, &a);
    if (mr_ == nullptr || qp_ == nullptr) fail("no memory region or queue pair");
    if (verbs_.query_gid(context, 1, 1, &mine.gid) != 0) fail("no GID");
    mine.qpn = qp_->qp_num;
    mine.rkey = mr_->rkey;
    mine.memory = address(0);
    mine.step = 1;
    wait_for(1);
    connect();
    mine.step = 2;
    wait_for(2);
  }

  // Operations a second.
  double run(const Operation& o) {
    std::int64_t done = 0;
    int under_way = 0;
    std::size_t at = 0;
    const std::int64_t began = now_ns();
    bool over = false;
    while (!over || under_way != 0) {
      over = now_ns() - began >= kTime;
      for (; !over && under_way < o.window; ++under_way, at = (at + 65536) % kMemory) post(o, at);
      under_way -= reap(done);
    }
    return static_cast<double>(done) * 1e9 / static_cast<double>(now_ns() - began);
  }

  [[noreturn]] void poll() {
    for (std::int64_t done = 0;;) (void)reap(done);
  }

 private:
  static constexpr int kAccess = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE |
                                 IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC;

  std::uint64_t address(std::size_t at) const {
    return reinterpret_cast<std::uint64_t>(memory_.data()) + at;
  }
  void wait_for(int step) const {
    while (theirs_.step < step) ::usleep(100);
  }
  int reap(std::int64_t& done) {
    ibv_wc wc[16];
    const int n = ibv_poll_cq(cq_, 16, wc);
    for (int i = 0; i < n; ++i)
      if (wc[i].status != IBV_WC_SUCCESS) fail("an operation failed");
    done += n;
    return n;
  }
  void post(const Operation& o, std::size_t at) {
    ibv_sge sge{address(at), o.bytes, mr_->lkey};
    ibv_send_wr wr{}, *bad = nullptr;
    wr.sg_list = &sge;
    wr.num_sge = 1;
    wr.opcode = o.opcode;
    wr.send_flags = IBV_SEND_SIGNALED;
    if (o.opcode == IBV_WR_RDMA_WRITE || o.opcode == IBV_WR_RDMA_READ)
      wr.wr.rdma = {theirs_.memory + at, theirs_.rkey};
    else
      wr.wr.atomic = {theirs_.memory + at, 1, 1, theirs_.rkey};
    if (ibv_post_send(qp_, &wr, &bad) != 0) fail("an operation was refused");
  }
  void modify(ibv_qp_attr a, ibv_qp_state to, int mask) {
    a.qp_state = to;
    if (verbs_.modify_qp(qp_, &a, IBV_QP_STATE | mask) != 0) fail("a queue pair's state");
  }
  void connect() {
    ibv_qp_attr a{};
    a.port_num = a.ah_attr.port_num = 1;
    a.qp_access_flags = kAccess;
    a.path_mtu = IBV_MTU_4096;
    a.dest_qp_num = theirs_.qpn;
    a.max_dest_rd_atomic = a.max_rd_atomic = 16;
    a.ah_attr.is_global = 1;
    a.ah_attr.grh.dgid = theirs_.gid;
    a.ah_attr.grh.sgid_index = 1;
    a.timeout = 20;
    a.retry_cnt = a.rnr_retry = 7;
    modify(a, IBV_QPS_INIT, IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
    modify(a, IBV_QPS_RTR,
           IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
               IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER);
    modify(a, IBV_QPS_RTS,
           IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
               IBV_QP_MAX_QP_RD_ATOMIC);
  }

  Told& theirs_;
  Verbs verbs_;
  ibv_cq* cq_ = nullptr;
  ibv_mr* mr_ = nullptr;
  ibv_qp* qp_ = nullptr;
  std::vector<std::uint8_t> memory_;
};

constexpr std::size_t kOperationCount = std::size(kOperations);
using Rates = std::array<double, kOperationCount>;  // operations a second

struct Board {
  Told initiator, target;
  Rates rates{};
};

// Two new processes.
Rates measure(int round, bool polls) {
  void* shared =
      ::mmap(nullptr, sizeof(Board), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (shared == MAP_FAILED) fail("no memory");
  Board& board = *new (shared) Board;
  const std::string job = "passive-" + std::to_string(::getpid()) + "-" + std::to_string(round);
  const pid_t target = ::fork();
  if (target == 0) {
    End end(job, board.target, board.initiator);
    if (polls) end.poll();
    for (;;) ::pause();
  }
  const pid_t initiator = ::fork();
  if (initiator == 0) {
    End end(job, board.initiator, board.target);
    for (std::size_t i = 0; i < kOperationCount; ++i) board.rates[i] = end.run(kOperations[i]);
    ::_exit(0);
  }
  if (target < 0 || initiator < 0) fail("no process");
  int status = 0;
  (void)::waitpid(initiator, &status, 0);
  (void)::kill(target, SIGKILL);
  (void)::waitpid(target, nullptr, 0);
  if (status != 0) fail("the initiator failed");
  const Rates rates = board.rates;
  (void)::munmap(shared, sizeof(Board));
  return rates;
}

}  // namespace

int main() {
  std::array<std::vector<double>, kOperationCount> by[2];
  for (int round = 0; round < 2 * kRounds; ++round) {
    const bool polls = round % 2 != 0;
    const Rates rates = measure(round, polls);
    for (std::size_t i = 0; i < kOperationCount; ++i) by[polls][i].push_back(rates[i]);
  }
  std::printf("%-14s %8s %7s %14s %14s %6s\n", "operation", "bytes", "window", "passive (1/s)",
              "polling (1/s)", "ratio");
  for (std::size_t i = 0; i < kOperationCount; ++i) {
    const Operation& o = kOperations[i];
    const double passive = median(by[0][i]), polling = median(by[1][i]);
    std::printf("%-14s %8u %7d %14.0f %14.0f %6.2f\n", o.name, o.bytes, o.window, passive, polling,
                passive / polling);
  }
  return 0;
}
