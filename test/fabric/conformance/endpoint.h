#pragma once
// What a behaviour is tried on: an opened device with PD, CQ, buffer, MR and RC queue pair, and two
// of them connected.  Plain libibverbs throughout, so that the same program runs on the kernel's
// soft-RoCE and, with another libibverbs.so.1 in front, on the soft HCA.
//
// Threads: one thread drives an endpoint.  Every object is freed in the order that verbs demand
// (QP, SRQ, CQ, MR, PD, context), also when an assertion throws.  All waits end after kPatience.
#include <infiniband/verbs.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "test/fabric/conformance/deviations.h"
#include "test/support/catch.h"

namespace twinpath::conformance {

template <auto kFree>
struct Free {
  template <typename T>
  void operator()(T* object) const {
    (void)kFree(object);
  }
};
using Context = std::unique_ptr<ibv_context, Free<ibv_close_device>>;
using Pd = std::unique_ptr<ibv_pd, Free<ibv_dealloc_pd>>;
using Mr = std::unique_ptr<ibv_mr, Free<ibv_dereg_mr>>;
using Cq = std::unique_ptr<ibv_cq, Free<ibv_destroy_cq>>;
using Channel = std::unique_ptr<ibv_comp_channel, Free<ibv_destroy_comp_channel>>;
using Srq = std::unique_ptr<ibv_srq, Free<ibv_destroy_srq>>;
using Qp = std::unique_ptr<ibv_qp, Free<ibv_destroy_qp>>;

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;
constexpr milliseconds kPatience{5000};  // a wait that takes longer is a failure
constexpr milliseconds kQuiet{15};       // how long "nothing comes" is watched
constexpr std::uint8_t kPort = 1;

constexpr unsigned kAllRights = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE |
                                IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC;
constexpr unsigned kRemoteRights =
    IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC;

// The attributes that each transition of an RC QP must bring (IB vol. 1, 11.2, Modify Queue Pair).
constexpr int kInitMask = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS;
constexpr int kRtrMask = IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |
                         IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
constexpr int kRtsMask = IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
                         IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC;

struct Options {
  unsigned mr_access = kAllRights;
  unsigned qp_access = kRemoteRights;
  // 4.096 us << 13 = 34 ms for each of six tries; retry_cnt 7 would be for ever on rxe.
  std::uint8_t timeout = 13, retry_cnt = 5, rnr_retry = 7;
  std::uint8_t min_rnr_timer = 12;  // 0.64 ms
  std::uint8_t rd_atomic = 4;
  ibv_mtu mtu = IBV_MTU_1024;
  std::uint32_t rq_psn = 0x123456, sq_psn = 0x123456;
  ibv_qp_cap cap = {32, 32, 4, 4, 64};
  int cqe = 128;
  bool signal_all = false;
  bool channel = false;  // the CQ has a completion channel
  bool srq = false;      // the QP takes its receives from an SRQ of 32
  std::size_t bytes = 64 << 10;
};

// The two devices: TWINPATH_CONFORMANCE_DEVICES=NAME,NAME, else the first two there are.
std::string device_name(int which);
Context open_device(int which);

// Of its port: whether it is InfiniBand's; else the index of the RoCE v2 GID with an IPv4-mapped
// address, 0 on InfiniBand.
bool is_infiniband(ibv_context* context);
int gid_index(ibv_context* context);

// One transition each; errno values, 0 = done.
ibv_qp_attr init_attributes(const Options& o);
ibv_qp_attr rts_attributes(const Options& o);
int modify(ibv_qp* qp, ibv_qp_attr attributes, int mask);
int to_state(ibv_qp* qp, ibv_qp_state state);  // without further attributes
ibv_qp_state state_of(ibv_qp* qp);             // as query_qp tells it

// A work request with room for one SGE; change it before post().
struct Wr {
  ibv_sge sge{};
  ibv_send_wr wr{};
};
int post(ibv_qp* qp, Wr& w);
int post_receive(ibv_qp* qp, ibv_sge sge, std::uint64_t id, int num_sge = 1);

ibv_wc wait(ibv_cq* cq);  // the next completion; fails the case when none comes
bool quiet(ibv_cq* cq, milliseconds time = kQuiet);  // no completion comes
bool readable(int fd, milliseconds time);
// The next asynchronous event, acknowledged; nothing when none comes.
std::optional<ibv_async_event> next_event(ibv_context* context, milliseconds time = kPatience);
// Reads events until one of that type comes.
std::optional<ibv_async_event> wait_event(ibv_context* context, ibv_event_type type,
                                          milliseconds time = kPatience);

struct Endpoint {
  Options options;
  Context context;
  std::vector<std::uint8_t> buffer;
  Pd pd;
  Mr mr;
  Channel channel;
  Cq cq;
  Srq srq;
  Qp qp;
  ibv_device_attr limits{};
  unsigned all_rights = kAllRights;  // but for atomics, where the device has none
  bool infiniband = false;
  int sgid_index = 0;
  ibv_gid gid{};
  std::uint16_t lid = 0;

  // With as many SGEs as the device has, at most.
  explicit Endpoint(int device = 0, const Options& o = {});

  ibv_qp_init_attr qp_attributes() const;
  Qp make_qp() const { return make_qp(qp_attributes()); }
  Qp make_qp(ibv_qp_init_attr attributes) const;
  Cq make_cq(int cqe = 64) const;
  Mr make_mr(unsigned access, std::size_t at = 0, std::size_t bytes = 4096);

  std::uint64_t address(std::size_t at = 0) const {
    return reinterpret_cast<std::uint64_t>(buffer.data()) + at;
  }
  ibv_sge sge(std::size_t at, std::uint32_t bytes) const { return {address(at), bytes, mr->lkey}; }
  std::uint64_t& word(std::size_t at = 0) {
    return *reinterpret_cast<std::uint64_t*>(buffer.data() + at);
  }
  void fill(std::size_t at, std::size_t bytes, unsigned seed = 1);
  // A receive into the buffer; none of it when `bytes` is 0.
  int receive(std::size_t at, std::uint32_t bytes, std::uint64_t id = 55) {
    return post_receive(qp.get(), sge(at, bytes), id, bytes != 0 ? 1 : 0);
  }
  int init(ibv_qp* q) const { return modify(q, init_attributes(options), kInitMask); }
  ibv_qp_attr rtr_attributes(std::uint32_t peer_qpn, const Endpoint& peer) const;
  int rtr(ibv_qp* q, std::uint32_t peer_qpn, const Endpoint& peer) const {
    return modify(q, rtr_attributes(peer_qpn, peer), kRtrMask);
  }
  int rts(ibv_qp* q) const { return modify(q, rts_attributes(options), kRtsMask); }
};

// Connects a QP of `a` with one of `b`, both from RESET.
void connect(Endpoint& a, ibv_qp* qa, Endpoint& b, ibv_qp* qb);
// The same, but `b` stays in RTR: it may answer, not ask.
void connect_asker(Endpoint& a, ibv_qp* qa, Endpoint& b, ibv_qp* qb);

// Two connected endpoints on two devices: `a` asks, `b` answers.
struct Pair {
  Endpoint a, b;

  explicit Pair(const Options& both = {}) : Pair(both, both) {}
  Pair(const Options& oa, const Options& ob);

  // A signalled request with id 77 from a.buffer[at] to b.buffer[to].
  Wr request(ibv_wr_opcode opcode, std::uint32_t bytes, std::size_t at = 0, std::size_t to = 0);
  Wr write(std::uint32_t bytes, std::size_t at = 0, std::size_t to = 0) {
    return request(IBV_WR_RDMA_WRITE, bytes, at, to);
  }
  Wr send(std::uint32_t bytes, std::size_t at = 0) { return request(IBV_WR_SEND, bytes, at); }
  Wr add(std::uint64_t value, std::size_t at = 0, std::size_t to = 0);
  Wr swap(std::uint64_t expected, std::uint64_t value, std::size_t at = 0, std::size_t to = 0);
  int post(Wr& w) { return conformance::post(a.qp.get(), w); }
  ibv_wc run(Wr w);  // posted, and its completion
  // True, and checked, where the adapter has no atomics, or fewer SGEs than that: posting them is
  // refused.
  bool without_atomics();
  bool without_sges(Endpoint& e, std::uint32_t n);
  bool same(std::size_t bytes, std::size_t at = 0, std::size_t to = 0) const;
};

}  // namespace twinpath::conformance
