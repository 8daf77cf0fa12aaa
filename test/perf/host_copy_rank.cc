// One rank of host_copy.
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/uio.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <string>
#include <thread>

#include "plugin/base/clock.h"
#include "plugin/fabric/soft/hca.h"
#include "plugin/fabric/soft/stream_copy.h"
#include "test/perf/host_copy.h"

namespace twinpath::perf {
namespace {

class Rank {
 public:
  Rank(Board& board, int rank, bool together, const Settings& settings)
      : s_(settings),
        board_(board),
        me_(board.ranks[rank]),
        far_(board.ranks[1 - rank]),
        rank_(rank),
        together_(together) {}

  bool set_up();
  // Bytes sent in the time; -1: an error.
  std::int64_t run(const Variant& v);

 private:
  std::size_t half() const {
    return s_.bytes * static_cast<std::size_t>(s_.slots) * static_cast<std::size_t>(s_.queue_pairs);
  }
  bool say(const char* what) const {
    std::fprintf(stderr, "host_copy: rank %d: %s\n", rank_, what);
    board_.failed = true;
    return false;
  }
  bool make_queue_pairs();
  bool connect();
  bool post(std::size_t q);
  std::int64_t through_hca(bool sends);
  std::int64_t raw(const Variant& v) const;

  const Settings& s_;
  Board& board_;
  Board::Rank &me_, &far_;
  const int rank_;
  const bool together_;
  Verbs verbs_;
  ibv_context* context_ = nullptr;
  ibv_pd* pd_ = nullptr;
  ibv_cq* cq_ = nullptr;
  ibv_mr* mr_ = nullptr;
  std::uint8_t* memory_ = nullptr;  // what is sent, then what comes
  std::vector<ibv_qp*> qps_;
  std::vector<std::uint64_t> posted_;
};

bool Rank::set_up() {
  Config config;
  config.soft_job = "host-copy-" + std::to_string(together_ ? ::getpid() : ::getppid());
  std::string why;
  if (!load_soft_hca(verbs_, config, why)) return say(why.c_str());
  ibv_device** list = verbs_.get_device_list(nullptr);
  context_ = verbs_.open_device(list[0]);
  verbs_.free_device_list(list);
  pd_ = verbs_.alloc_pd(context_);
  cq_ = verbs_.create_cq(context_, 4096, nullptr, nullptr, 0);
  // As NCCL's: memory that could be shared, written once before it is used.
  void* p = ::mmap(nullptr, 2 * half(), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (p == MAP_FAILED) return say("no memory");
  memory_ = static_cast<std::uint8_t*>(p);
  if (s_.huge) (void)::madvise(p, 2 * half(), MADV_HUGEPAGE);
  std::memset(memory_, rank_ + 1, 2 * half());
  mr_ = verbs_.reg_mr_iova2(pd_, memory_, 2 * half(), reinterpret_cast<std::uint64_t>(memory_),
                            IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
  if (mr_ == nullptr) return say("memory cannot be registered");
  if (!make_queue_pairs()) return say("queue pairs cannot be made");
  me_.pid = ::getpid();
  me_.buffers = reinterpret_cast<std::uint64_t>(memory_);
  me_.rkey = mr_->rkey;
  if (!board_.meet()) return false;
  return (connect() || say("queue pairs cannot be connected")) && board_.meet();
}

bool Rank::make_queue_pairs() {
  posted_.assign(static_cast<std::size_t>(s_.queue_pairs), 0);
  for (std::size_t i = 0; i < posted_.size(); ++i) {
    ibv_qp_init_attr a{};
    a.send_cq = a.recv_cq = cq_;
    a.qp_type = IBV_QPT_RC;
    a.cap = {64, 1, 1, 1, 0};
    qps_.push_back(verbs_.create_qp(pd_, &a));
    if (qps_.back() == nullptr) return false;
    me_.qpn[i] = qps_.back()->qp_num;
  }
  return verbs_.query_gid(context_, 1, 1, &me_.gid) == 0;
}

bool Rank::connect() {
  for (std::size_t i = 0; i < qps_.size(); ++i) {
    ibv_qp_attr a{};
    a.qp_state = IBV_QPS_INIT;
    a.port_num = 1;
    a.qp_access_flags = IBV_ACCESS_REMOTE_WRITE;
    if (verbs_.modify_qp(qps_[i], &a,
                         IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS) != 0)
      return false;
    a = {};
    a.qp_state = IBV_QPS_RTR;
    a.path_mtu = IBV_MTU_4096;
    a.dest_qp_num = far_.qpn[i];
    a.ah_attr.is_global = 1;
    a.ah_attr.grh.dgid = far_.gid;
    a.ah_attr.grh.sgid_index = 1;
    a.ah_attr.port_num = 1;
    if (verbs_.modify_qp(qps_[i], &a,
                         IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |
                             IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER) != 0)
      return false;
    a = {};
    a.qp_state = IBV_QPS_RTS;
    a.timeout = 20;
    a.retry_cnt = 7;
    a.rnr_retry = 7;
    if (verbs_.modify_qp(qps_[i], &a,
                         IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
                             IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC) != 0)
      return false;
  }
  return true;
}

bool Rank::post(std::size_t q) {
  const auto slots = static_cast<std::size_t>(s_.slots);
  const std::size_t at = (q * slots + posted_[q]++ % slots) * s_.bytes;
  ibv_sge sge{me_.buffers + at, static_cast<std::uint32_t>(s_.bytes), mr_->lkey};
  ibv_send_wr wr{}, *bad = nullptr;
  wr.wr_id = q;
  wr.sg_list = &sge;
  wr.num_sge = 1;
  wr.opcode = IBV_WR_RDMA_WRITE;
  wr.send_flags = IBV_SEND_SIGNALED;
  wr.wr.rdma.remote_addr = far_.buffers + half() + at;
  wr.wr.rdma.rkey = far_.rkey;
  return ibv_post_send(qps_[q], &wr, &bad) == 0;
}

std::int64_t Rank::through_hca(bool sends) {
  const std::int64_t end = now_ns() + static_cast<std::int64_t>(s_.seconds * 1e9);
  std::int64_t moved = 0;
  int under_way = 0;
  for (std::size_t q = 0; sends && q < qps_.size(); ++q)
    for (int i = 0; i < s_.window; ++i, ++under_way)
      if (!post(q)) return -1;
  std::array<ibv_wc, 16> done{};
  for (bool over = false; !over || under_way != 0;) {
    const int n = ibv_poll_cq(cq_, static_cast<int>(done.size()), done.data());
    over = now_ns() >= end;
    for (int i = 0; i < n; ++i) {
      const ibv_wc& wc = done[static_cast<std::size_t>(i)];
      if (wc.status != IBV_WC_SUCCESS) return -1;
      --under_way;
      if (over) continue;  // begun within the time, not ended in it
      moved += static_cast<std::int64_t>(s_.bytes);
      if (!post(wc.wr_id)) return -1;
      ++under_way;
    }
  }
  return moved;
}

// The same memory without any queue: what the machine gives.
std::int64_t Rank::raw(const Variant& v) const {
  std::atomic<std::int64_t> moved{0};
  std::atomic<bool> bad{false};
  std::vector<std::thread> threads;
  const std::int64_t end = now_ns() + static_cast<std::int64_t>(s_.seconds * 1e9);
  const std::size_t chunks = half() / soft::kChunk;
  for (int t = 0; t < v.threads; ++t) {
    threads.emplace_back([&, t] {
      const auto step = static_cast<std::size_t>(v.threads);
      for (auto i = static_cast<std::size_t>(t); now_ns() < end && !bad; i += step) {
        const std::size_t at = i % chunks * soft::kChunk;
        if (!soft::move_host(together_ ? 0 : far_.pid, me_.buffers + at, far_.buffers + half() + at,
                             soft::kChunk, true, v.stream))
          bad = true;
        moved += static_cast<std::int64_t>(soft::kChunk);
      }
    });
  }
  for (std::thread& t : threads) t.join();
  return bad ? -1 : moved.load();
}

std::int64_t Rank::run(const Variant& v) {
  const bool sends = v.both || rank_ == 0;
  if (v.way == Way::raw) return sends ? raw(v) : 0;
  if (!together_ || rank_ == 0) soft::Hca::existing()->team().set(v.threads, v.share, v.stream);
  if (!board_.meet()) return -1;
  const std::int64_t moved = through_hca(sends);
  // The other may still need our polls.
  for (const std::uint32_t mine = board_.met.fetch_add(1), all = (mine / 2 + 1) * 2;
       board_.met.load() < all && !board_.failed.load();)
    (void)ibv_poll_cq(cq_, 0, nullptr);
  return moved;
}

std::uint64_t cpu_us() {
  rusage u{};
  ::getrusage(RUSAGE_SELF, &u);
  return static_cast<std::uint64_t>(u.ru_utime.tv_sec + u.ru_stime.tv_sec) * 1'000'000 +
         static_cast<std::uint64_t>(u.ru_utime.tv_usec + u.ru_stime.tv_usec);
}

void print(const Variant& v, bool together, double bytes, double wall_s, double cpu_s) {
  const char* move = v.stream ? "stream" : (together ? "memcpy" : "process_vm");
  std::printf("%-4s %-5s %7d %8zu %-10s %8.1f %8.1f %6.1f\n", v.way == Way::raw ? "raw" : "hca",
              v.both ? "both" : "one", v.threads, v.way == Way::raw ? 0 : v.share / 1024, move,
              bytes / wall_s / 1e9, bytes / wall_s / 1e9 / (v.both ? 2 : 1), cpu_s / wall_s);
  std::fflush(stdout);
}

}  // namespace

void play(Board& board, int number, bool together, const Settings& settings,
          const std::vector<Variant>& variants) {
  Rank rank(board, number, together, settings);
  if (!rank.set_up()) return;
  if (number == 0) {
    std::printf("%-4s %-5s %7s %8s %-10s %8s %8s %6s\n", "way", "sends", "threads", "share/K",
                "copy", "GB/s", "each way", "cores");
  }
  for (const Variant& v : variants) {
    if (!board.meet()) return;
    const std::int64_t begin = now_ns();
    const std::uint64_t before = cpu_us();
    const std::int64_t moved = rank.run(v);
    if (moved < 0) board.failed = true;
    board.ranks[number].moved = static_cast<std::uint64_t>(moved);
    board.ranks[number].cpu_us = cpu_us() - before;
    if (!board.meet()) {
      std::fprintf(stderr, "host_copy: rank %d: a copy failed\n", number);
      return;
    }
    if (number != 0) continue;
    const auto& [a, b] = board.ranks;
    const double wall = static_cast<double>(now_ns() - begin) / 1e9;
    print(v, together, static_cast<double>(a.moved + b.moved), std::min(wall, settings.seconds),
          static_cast<double>(a.cpu_us + (together ? 0 : b.cpu_us.load())) / 1e6);
  }
}

}  // namespace twinpath::perf
