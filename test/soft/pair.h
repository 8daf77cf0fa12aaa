#pragma once
// Two connected RC QPs on the soft HCA, in one process, driven by plain verbs: the smallest
// thing on which the behaviour of the model can be seen.
#include <infiniband/verbs.h>
#include <poll.h>

#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "plugin/base/clock.h"
#include "plugin/fabric/soft/extended.h"
#include "plugin/fabric/verbs.h"
#include "test/support/catch.h"

namespace twinpath::test {

struct Options {
  unsigned access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ |
                    IBV_ACCESS_REMOTE_ATOMIC;
  unsigned qp_access = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC;
  std::uint8_t timeout = 14, retry_cnt = 1, rnr_retry = 7;
  int cqe = 256;
  std::size_t bytes = 1 << 20;
  bool channel = false;      // the CQ has a completion channel
  std::uint32_t srq_wr = 0;  // the QP receives from an SRQ of that size
  std::uint16_t dlid = 0;    // where the QP says that it sends to
};

// One side: device, PD, CQ, QP, one registered buffer.
struct Side {
  Verbs verbs;
  ibv_context* context = nullptr;
  ibv_pd* pd = nullptr;
  ibv_comp_channel* channel = nullptr;
  ibv_cq* cq = nullptr;
  ibv_srq* srq = nullptr;
  ibv_qp* qp = nullptr;
  ibv_mr* mr = nullptr;
  ibv_gid gid{};
  std::vector<std::uint8_t> buffer;
  Options options;

  explicit Side(const Options& o, const Config& config = {}) : options(o) {
    std::string why;
    REQUIRE(load_soft_hca(verbs, config, why));
    int n = 0;
    ibv_device** list = verbs.get_device_list(&n);
    REQUIRE(n >= 1);
    context = verbs.open_device(list[0]);
    verbs.free_device_list(list);
    REQUIRE(context != nullptr);
    pd = verbs.alloc_pd(context);
    if (o.channel) {
      channel = soft::create_comp_channel(context);
      REQUIRE(channel != nullptr);
    }
    cq = verbs.create_cq(context, o.cqe, this, channel, 0);
    REQUIRE(cq != nullptr);
    if (o.srq_wr != 0) {
      ibv_srq_init_attr a{};
      a.attr = {o.srq_wr, 4, 0};
      srq = soft::create_srq(pd, &a);
      REQUIRE(srq != nullptr);
    }
    make_qp();
    buffer.resize(o.bytes);
    mr = verbs.reg_mr_iova2(pd, buffer.data(), buffer.size(), address(), o.access);
    REQUIRE(mr != nullptr);
    REQUIRE(verbs.query_gid(context, 1, 1, &gid) == 0);
  }
  ~Side() {
    if (qp != nullptr) verbs.destroy_qp(qp);
    if (srq != nullptr) soft::destroy_srq(srq);
    verbs.destroy_cq(cq);
    if (channel != nullptr) soft::destroy_comp_channel(channel);
    if (mr != nullptr) verbs.dereg_mr(mr);
    verbs.dealloc_pd(pd);
    verbs.close_device(context);
  }
  Side(const Side&) = delete;
  Side& operator=(const Side&) = delete;

  void make_qp() {
    ibv_qp_init_attr a{};
    a.send_cq = a.recv_cq = cq;
    a.qp_type = IBV_QPT_RC;
    a.srq = srq;
    a.cap = {64, 64, 4, 4, 64};
    qp = verbs.create_qp(pd, &a);
    REQUIRE(qp != nullptr);
  }
  std::uint64_t address(std::size_t at = 0) const {
    return reinterpret_cast<std::uint64_t>(buffer.data() + at);
  }
  int to_init() {
    ibv_qp_attr a{};
    a.qp_state = IBV_QPS_INIT;
    a.port_num = 1;
    a.qp_access_flags = options.qp_access;
    return verbs.modify_qp(qp, &a,
                           IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
  }
  int to_rtr(std::uint32_t qpn, const ibv_gid& to) {
    ibv_qp_attr a{};
    a.qp_state = IBV_QPS_RTR;
    a.path_mtu = IBV_MTU_1024;
    a.dest_qp_num = qpn;
    a.max_dest_rd_atomic = 1;
    a.min_rnr_timer = 12;
    a.ah_attr.is_global = 1;
    a.ah_attr.dlid = options.dlid;
    a.ah_attr.grh.dgid = to;
    a.ah_attr.grh.sgid_index = 1;
    a.ah_attr.port_num = 1;
    return verbs.modify_qp(qp, &a,
                           IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |
                               IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER);
  }
  int to_rts() {
    ibv_qp_attr a{};
    a.qp_state = IBV_QPS_RTS;
    a.timeout = options.timeout;
    a.retry_cnt = options.retry_cnt;
    a.rnr_retry = options.rnr_retry;
    a.max_rd_atomic = 1;
    return verbs.modify_qp(qp, &a,
                           IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
                               IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC);
  }
  int to_error() {
    ibv_qp_attr a{};
    a.qp_state = IBV_QPS_ERR;
    return verbs.modify_qp(qp, &a, IBV_QP_STATE);
  }
  void connect(std::uint32_t qpn, const ibv_gid& to) {
    REQUIRE(to_init() == 0);
    REQUIRE(to_rtr(qpn, to) == 0);
    REQUIRE(to_rts() == 0);
  }

  // A signalled work request on this buffer; tests change it before post().
  struct Wr {
    ibv_sge sge{};
    ibv_send_wr wr{};
  };
  Wr request(ibv_wr_opcode opcode, std::size_t at, std::uint32_t bytes, std::uint64_t remote,
             std::uint32_t rkey) {
    Wr w;
    w.sge = {address(at), bytes, mr->lkey};
    w.wr.wr_id = 77;
    w.wr.num_sge = 1;
    w.wr.opcode = opcode;
    w.wr.send_flags = IBV_SEND_SIGNALED;
    w.wr.imm_data = 0x01020304;
    if (opcode == IBV_WR_ATOMIC_CMP_AND_SWP || opcode == IBV_WR_ATOMIC_FETCH_AND_ADD) {
      w.wr.wr.atomic.remote_addr = remote;
      w.wr.wr.atomic.rkey = rkey;
    } else {
      w.wr.wr.rdma.remote_addr = remote;
      w.wr.wr.rdma.rkey = rkey;
    }
    return w;
  }
  int post(Wr& w) {
    if (w.wr.sg_list == nullptr) w.wr.sg_list = &w.sge;
    ibv_send_wr* bad = nullptr;
    int rc = ibv_post_send(qp, &w.wr, &bad);
    w.wr.sg_list = nullptr;
    return rc;
  }
  int post_receive(std::size_t at, std::uint32_t bytes, std::uint64_t id = 55) {
    ibv_sge s{address(at), bytes, mr->lkey};
    ibv_recv_wr w{}, *bad = nullptr;
    w.wr_id = id;
    w.sg_list = &s;
    w.num_sge = bytes != 0 ? 1 : 0;
    return srq != nullptr ? ibv_post_srq_recv(srq, &w, &bad) : ibv_post_recv(qp, &w, &bad);
  }
  // The next asynchronous event within a second, acknowledged; -1: none.
  int next_event(ibv_async_event* out = nullptr, int ms = 1000) {
    pollfd fd{context->async_fd, POLLIN, 0};
    ibv_async_event e{};
    if (::poll(&fd, 1, ms) != 1 || verbs.get_async_event(context, &e) != 0) return -1;
    if (out != nullptr) *out = e;
    verbs.ack_async_event(&e);
    return e.event_type;
  }
  // Whether the channel has an event within the time; it is taken and acknowledged.
  bool channel_event(int ms = 1000) {
    pollfd fd{channel->fd, POLLIN, 0};
    if (::poll(&fd, 1, ms) != 1) return false;
    ibv_cq* got = nullptr;
    void* user = nullptr;
    REQUIRE(soft::get_cq_event(channel, &got, &user) == 0);
    CHECK(got == cq);
    CHECK(user == this);
    soft::ack_cq_events(got, 1);
    return true;
  }
};

struct Pair {
  Side a, b;
  explicit Pair(const Options& o = {}, const Config& config = {}) : a(o, config), b(o, config) {
    a.connect(b.qp->qp_num, b.gid);
    b.connect(a.qp->qp_num, a.gid);
  }
  // Polls both sides; the next completion of `side` within two seconds.
  ibv_wc wait(Side& side) {
    ibv_wc wc{};
    for (std::int64_t end = now_ns() + 2 * kSecond; now_ns() < end;) {
      if (ibv_poll_cq(side.cq, 1, &wc) == 1) return wc;
      Side& other = &side == &a ? b : a;
      if (other.cq->cqe != 0) (void)ibv_poll_cq(other.cq, 0, nullptr);
    }
    FAIL("no completion within 2 s");
    return wc;
  }
  bool quiet(Side& side, int ms = 20) {
    ibv_wc wc{};
    for (std::int64_t end = now_ns() + ms * kMillisecond; now_ns() < end;) {
      if (ibv_poll_cq(side.cq, 1, &wc) != 0) return false;
      (void)ibv_poll_cq((&side == &a ? b : a).cq, 0, nullptr);
    }
    return true;
  }
};

}  // namespace twinpath::test
