// Queue pairs with ibv_wr_* calls: making them, and finding the builder of one.
#include <memory>
#include <mutex>
#include <unordered_map>

#include "tools/softhca/facade.h"
#include "tools/softhca/work_requests.h"

namespace twinpath::softhca {
namespace {

// Builders by their queue pair.  Global because ibv_qp_to_qp_ex gets nothing but the queue pair;
// control path only.
struct Builders {
  std::mutex lock;
  std::unordered_map<const ibv_qp*, std::unique_ptr<WorkRequests>> by_qp;
  std::unordered_map<const ibv_qp*, ibv_qp*> by_base;  // the base of its ibv_qp_ex
};
Builders& builders() {
  static auto* const all = new Builders;  // programs destroy queue pairs from exit handlers
  return *all;
}

constexpr std::uint64_t kSendOps = IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM |
                                   IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_SEND_WITH_IMM |
                                   IBV_QP_EX_WITH_RDMA_READ | IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP |
                                   IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD;

}  // namespace

ibv_qp* create_qp_ex(ibv_context*, ibv_qp_init_attr_ex* attr) {
  constexpr std::uint32_t kKnown = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
  const bool extended = (attr->comp_mask & IBV_QP_INIT_ATTR_SEND_OPS_FLAGS) != 0;
  if ((attr->comp_mask & ~kKnown) != 0 || (extended && (attr->send_ops_flags & ~kSendOps) != 0))
    return unsupported<ibv_qp>();
  if ((attr->comp_mask & IBV_QP_INIT_ATTR_PD) == 0) {
    errno = EINVAL;
    return nullptr;
  }
  ibv_qp_init_attr basic{};
  basic.qp_context = attr->qp_context;
  basic.send_cq = attr->send_cq;
  basic.recv_cq = attr->recv_cq;
  basic.srq = attr->srq;
  basic.cap = attr->cap;
  basic.qp_type = attr->qp_type;
  basic.sq_sig_all = attr->sq_sig_all;
  ibv_qp* const qp = verbs().create_qp(real_pd(attr->pd), &basic);
  if (qp == nullptr) return nullptr;
  attr->cap = basic.cap;
  if (extended) {
    auto builder = std::make_unique<WorkRequests>(qp, attr->send_ops_flags);
    std::lock_guard hold(builders().lock);
    builders().by_base[&builder->qp_base] = qp;
    builders().by_qp[qp] = std::move(builder);
  }
  return qp;
}

void drop_extended(ibv_qp* qp) {
  std::lock_guard hold(builders().lock);
  auto it = builders().by_qp.find(qp);
  if (it == builders().by_qp.end()) return;
  builders().by_base.erase(&it->second->qp_base);
  builders().by_qp.erase(it);
}

ibv_qp* real_qp(ibv_qp* qp) {
  std::lock_guard hold(builders().lock);
  auto it = builders().by_base.find(qp);
  return it == builders().by_base.end() ? qp : it->second;
}

}  // namespace twinpath::softhca

extern "C" ibv_qp_ex* ibv_qp_to_qp_ex(ibv_qp* qp) {
  using namespace twinpath::softhca;
  qp = real_qp(qp);
  std::lock_guard hold(builders().lock);
  auto it = builders().by_qp.find(qp);
  return it == builders().by_qp.end() ? nullptr : it->second.get();
}
