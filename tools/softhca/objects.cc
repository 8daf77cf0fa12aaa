// Protection domains, memory, completion queues, receive queues, queue pairs.
#include <fcntl.h>

#include <cstdint>

#include "plugin/fabric/soft/like.h"
#include "tools/softhca/facade.h"

using namespace twinpath::softhca;
namespace soft = twinpath::soft;

namespace {

// A port that says it is InfiniBand is addressed by LID.  The soft HCA finds its peers by queue
// pair number and asks of a GID only that it is of the same job, so our own serves.
void address_by_gid(ibv_qp* qp, ibv_ah_attr& address) {
  if (address.is_global != 0 || facade()->link_layer != LinkLayer::infiniband ||
      soft::personality_of(qp->context).ports.infiniband)
    return;
  address.is_global = 1;
  address.grh = {};
  address.grh.hop_limit = 64;
  (void)verbs().query_gid(qp->context, address.port_num, 0, &address.grh.dgid);
}

}  // namespace

extern "C" {

ibv_pd* ibv_alloc_pd(ibv_context* context) { return verbs().alloc_pd(context); }

// --- memory
ibv_mr* ibv_reg_mr_iova2(ibv_pd* pd, void* address, std::size_t bytes, std::uint64_t iova,
                         unsigned access) {
  if ((access & (IBV_ACCESS_ON_DEMAND | IBV_ACCESS_ZERO_BASED)) != 0) return unsupported<ibv_mr>();
  return verbs().reg_mr_iova2(real_pd(pd), address, bytes, iova, access);
}
ibv_mr* ibv_reg_mr(ibv_pd* pd, void* address, std::size_t bytes, int access) {
  return ibv_reg_mr_iova2(pd, address, bytes, reinterpret_cast<std::uintptr_t>(address),
                          static_cast<unsigned>(access));
}
ibv_mr* ibv_reg_mr_iova(ibv_pd* pd, void* address, std::size_t bytes, std::uint64_t iova,
                        int access) {
  return ibv_reg_mr_iova2(pd, address, bytes, iova, static_cast<unsigned>(access));
}
ibv_mr* ibv_reg_dmabuf_mr(ibv_pd* pd, std::uint64_t offset, std::size_t bytes, std::uint64_t iova,
                          int fd, int access) {
  // Programs ask with descriptor -1 whether dma-bufs are known at all; EBADF says yes.
  if (fcntl(fd, F_GETFD) < 0) {
    errno = EBADF;
    return nullptr;
  }
  return verbs().reg_dmabuf_mr(real_pd(pd), offset, bytes, iova, fd, access);
}
int ibv_rereg_mr(ibv_mr*, int, ibv_pd*, void*, std::size_t, int) {
  errno = EOPNOTSUPP;
  return IBV_REREG_MR_ERR_INPUT;  // the region is as it was
}
int ibv_dereg_mr(ibv_mr* mr) { return verbs().dereg_mr(mr); }

// --- completions
ibv_comp_channel* ibv_create_comp_channel(ibv_context* context) {
  return soft::create_comp_channel(context);
}
int ibv_destroy_comp_channel(ibv_comp_channel* channel) {
  return soft::destroy_comp_channel(channel);
}
int ibv_get_cq_event(ibv_comp_channel* channel, ibv_cq** cq, void** cq_context) {
  return soft::get_cq_event(channel, cq, cq_context);
}
void ibv_ack_cq_events(ibv_cq* cq, unsigned count) { soft::ack_cq_events(cq, count); }
ibv_cq* ibv_create_cq(ibv_context* context, int cqe, void* cq_context, ibv_comp_channel* channel,
                      int vector) {
  return verbs().create_cq(context, cqe, cq_context, channel, vector);
}
int ibv_resize_cq(ibv_cq* cq, int cqe) { return soft::resize_cq(cq, cqe); }
int ibv_destroy_cq(ibv_cq* cq) { return verbs().destroy_cq(cq); }

// --- shared receive queues
ibv_srq* ibv_create_srq(ibv_pd* pd, ibv_srq_init_attr* attr) {
  return soft::create_srq(real_pd(pd), attr);
}
int ibv_modify_srq(ibv_srq* srq, ibv_srq_attr* attr, int mask) {
  return soft::modify_srq(srq, attr, mask);
}
int ibv_query_srq(ibv_srq* srq, ibv_srq_attr* attr) { return soft::query_srq(srq, attr); }
int ibv_destroy_srq(ibv_srq* srq) { return soft::destroy_srq(srq); }

// --- queue pairs
ibv_qp* ibv_create_qp(ibv_pd* pd, ibv_qp_init_attr* attr) {
  return verbs().create_qp(real_pd(pd), attr);
}
int ibv_modify_qp(ibv_qp* qp, ibv_qp_attr* attr, int mask) {
  qp = real_qp(qp);
  if (qp->qp_type == IBV_QPT_DRIVER) return modify_dynamic_target(qp, attr, mask);
  if ((mask & IBV_QP_AV) == 0) return verbs().modify_qp(qp, attr, mask);
  ibv_qp_attr changed = *attr;
  address_by_gid(qp, changed.ah_attr);
  return verbs().modify_qp(qp, &changed, mask);
}
int ibv_query_qp(ibv_qp* qp, ibv_qp_attr* attr, int mask, ibv_qp_init_attr* init) {
  qp = real_qp(qp);
  if (qp->qp_type == IBV_QPT_DRIVER) return query_dynamic_target(qp, attr, init);
  return verbs().query_qp(qp, attr, mask, init);
}
int ibv_destroy_qp(ibv_qp* qp) {
  qp = real_qp(qp);
  const int rc = verbs().destroy_qp(qp);
  if (rc == 0) drop_extended(qp);
  return rc;
}
// The last byte of a message may be there before others: both ends copy.
int ibv_query_qp_data_in_order(ibv_qp*, ibv_wr_opcode, std::uint32_t) { return 0; }
int ibv_query_ece(ibv_qp* qp, ibv_ece* ece) { return verbs().query_ece(real_qp(qp), ece); }
int ibv_set_ece(ibv_qp* qp, ibv_ece* ece) { return verbs().set_ece(real_qp(qp), ece); }

// --- datagrams are not modelled: nothing joins a group (address handles: address.cc)
int ibv_attach_mcast(ibv_qp*, const ibv_gid*, std::uint16_t) { return EOPNOTSUPP; }
int ibv_detach_mcast(ibv_qp*, const ibv_gid*, std::uint16_t) { return EOPNOTSUPP; }
int ibv_resolve_eth_l2_from_gid(ibv_context*, ibv_ah_attr*, std::uint8_t[6], std::uint16_t*) {
  return EOPNOTSUPP;
}

}  // extern "C"
