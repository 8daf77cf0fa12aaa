#pragma once
// Two queue pairs of one process joined to each other, for softhca-selftest: made through
// ibv_create_qp_ex with every send operation, and a buffer whose halves they use.  One thread.
#include <infiniband/verbs.h>

#include <chrono>
#include <cstdint>

namespace twinpath::softhca {

inline constexpr std::uint64_t kPairOps =
    IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM | IBV_QP_EX_WITH_SEND |
    IBV_QP_EX_WITH_SEND_WITH_IMM | IBV_QP_EX_WITH_RDMA_READ | IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP |
    IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD;
inline constexpr int kPairAccess = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE |
                                   IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC;

struct Pair {
  ibv_context* context = nullptr;
  ibv_pd* pd = nullptr;
  ibv_pd* domain = nullptr;  // what `pd` stands on when it is a parent domain
  ibv_cq* cq = nullptr;
  ibv_mr* mr = nullptr;
  ibv_qp* qp[2] = {};
  ibv_qp_ex* sender = nullptr;
  alignas(8) char data[8192] = {};
  char* const here = data;
  char* const there = data + 4096;

  explicit Pair(ibv_context* opened) : context(opened) {}

  bool make(bool through_parent = false) {
    pd = ibv_alloc_pd(context);
    if (through_parent && pd != nullptr) {
      ibv_parent_domain_init_attr attr{};
      attr.pd = domain = pd;
      pd = ibv_alloc_parent_domain(context, &attr);
    }
    cq = ibv_create_cq(context, 64, nullptr, nullptr, 0);
    if (pd == nullptr || cq == nullptr) return false;
    mr = ibv_reg_mr(pd, data, sizeof data, kPairAccess);
    for (ibv_qp*& q : qp) {
      ibv_qp_init_attr_ex attr{};
      attr.send_cq = attr.recv_cq = cq;
      attr.cap = {16, 16, 4, 4, 64};
      attr.qp_type = IBV_QPT_RC;
      attr.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
      attr.pd = pd;
      attr.send_ops_flags = kPairOps;
      q = ibv_create_qp_ex(context, &attr);
      if (q == nullptr) return false;
    }
    sender = ibv_qp_to_qp_ex(qp[0]);
    return mr != nullptr && sender != nullptr && join(0) && join(1);
  }

  bool join(int i) {
    ibv_qp_attr a{};
    a.qp_state = IBV_QPS_INIT;
    a.port_num = 1;
    a.qp_access_flags = kPairAccess;
    if (ibv_modify_qp(qp[i], &a,
                      IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS) != 0)
      return false;
    a.qp_state = IBV_QPS_RTR;
    a.path_mtu = IBV_MTU_4096;
    a.dest_qp_num = qp[1 - i]->qp_num;
    a.max_dest_rd_atomic = 4;
    a.min_rnr_timer = 12;
    a.ah_attr.is_global = 1;
    a.ah_attr.port_num = 1;
    a.ah_attr.grh.hop_limit = 64;
    if (ibv_query_gid(context, 1, 0, &a.ah_attr.grh.dgid) != 0) return false;
    // Also through the base of the extended object, which programs may use for the queue pair.
    ibv_qp* const base = &ibv_qp_to_qp_ex(qp[i])->qp_base;
    if (ibv_modify_qp(base, &a,
                      IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                          IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER) != 0)
      return false;
    a.qp_state = IBV_QPS_RTS;
    a.timeout = 14;
    a.retry_cnt = a.rnr_retry = 6;
    a.max_rd_atomic = 4;
    return ibv_modify_qp(qp[i], &a,
                         IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT |
                             IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC) == 0;
  }

  void receive(std::uint64_t id) {
    ibv_sge sge{reinterpret_cast<std::uintptr_t>(there), 4096, mr->lkey};
    ibv_recv_wr wr{id, nullptr, &sge, 1}, *bad = nullptr;
    (void)ibv_post_recv(qp[1], &wr, &bad);
  }

  // The next completion, with a status nobody gives after five seconds without one.
  ibv_wc completion() const {
    ibv_wc wc{};
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(5);
    while (std::chrono::steady_clock::now() < end) {
      if (ibv_poll_cq(cq, 1, &wc) == 1) return wc;
    }
    wc.status = IBV_WC_GENERAL_ERR;
    return wc;
  }

  std::uint64_t remote() const { return reinterpret_cast<std::uintptr_t>(there); }
  std::uint64_t local() const { return reinterpret_cast<std::uintptr_t>(here); }

  ~Pair() {
    for (ibv_qp* q : qp) {
      if (q != nullptr) ibv_destroy_qp(q);
    }
    if (cq != nullptr) ibv_destroy_cq(cq);
    if (mr != nullptr) ibv_dereg_mr(mr);
    if (pd != nullptr) ibv_dealloc_pd(pd);
    if (domain != nullptr) ibv_dealloc_pd(domain);
  }
};

}  // namespace twinpath::softhca
