// Completion queues: a ring of ibv_wc.  Polling is also what moves the member QPs along, so a
// process that polls needs no other thread and two cores carry two processes.
#include "plugin/base/log.h"
#include "plugin/fabric/soft/control.h"
#include "plugin/fabric/soft/extended.h"
#include "plugin/fabric/soft/hca.h"

namespace twinpath::soft {
namespace {

int take(SoftCq& cq, int n, ibv_wc* out) {
  std::lock_guard hold(cq.lock);
  int got = 0;
  while (got < n && cq.head != cq.tail) out[got++] = cq.ring[cq.head++];
  return got;
}

}  // namespace

std::uint64_t push_completion(SoftCq& cq, const ibv_wc& wc, bool solicited) {
  std::lock_guard hold(cq.lock);
  if (cq.tail - cq.head >= static_cast<std::uint64_t>(cq.cqe)) {
    if (!cq.overflowed) {
      async_event(cq, IBV_EVENT_CQ_ERR);
      TP_WARN(
          "soft HCA: completion queue of %d entries overflowed, completions are lost; make it "
          "as large as the work requests that may be outstanding",
          cq.cqe);
    }
    cq.overflowed = true;
    return kNoCompletion;
  }
  cq.ring[cq.tail] = wc;
  if (cq.armed.load(std::memory_order_relaxed) != Armed::no) [[unlikely]]
    notify(cq, wc, solicited);
  return cq.tail++;
}

int poll_cq(ibv_cq* c, int n, ibv_wc* out) {
  SoftCq& cq = *soft(c);
  if (n < 0) return -EINVAL;
  if (cq.overflowed.load(std::memory_order_relaxed)) return -EOVERFLOW;
  cq.polled.store(true, std::memory_order_relaxed);
  soft(cq.context)->hca->look_at_board();
  // Progress comes first: what it completes is returned by this very call.
  {
    std::unique_lock hold(cq.members_lock, std::try_to_lock);
    if (hold.owns_lock()) {
      for (SoftQp* qp : cq.awake) (void)advance(*qp);
    }
  }
  return take(cq, n, out);
}

ibv_cq* create_cq(ibv_context* context, int cqe, void* user, ibv_comp_channel* channel,
                  int vector) {
  if (cqe < 1 || cqe > like(context).queues.max_cqe || vector < 0 ||
      vector >= context->num_comp_vectors || (channel != nullptr && channel->context != context)) {
    errno = EINVAL;
    return nullptr;
  }
  auto cq = std::make_unique<SoftCq>();
  static_cast<ibv_cq&>(*cq) = ibv_cq{};
  cq->context = context;
  cq->cq_context = user;
  cq->cqe = cqe;
  if (!cq->ring.allocate(static_cast<std::uint32_t>(cqe))) {
    errno = ENOMEM;
    return nullptr;
  }
  init_waiting(cq->mutex, cq->cond);
  if (channel != nullptr) {
    std::lock_guard hold(soft(channel)->users_lock);
    cq->channel = channel;
    ++channel->refcnt;
  }
  return cq.release();
}

int resize_cq(ibv_cq* c, int cqe) {
  SoftCq& cq = *soft(c);
  if (cqe < 1 || cqe > like(c->context).queues.max_cqe) return EINVAL;
  Raw<ibv_wc> ring;
  if (!ring.allocate(static_cast<std::uint32_t>(cqe))) return ENOMEM;
  std::lock_guard hold(cq.lock);
  if (cq.tail - cq.head > static_cast<std::uint64_t>(cqe)) return EINVAL;
  for (std::uint64_t i = cq.head; i != cq.tail; ++i) ring[i] = cq.ring[i];
  cq.ring = std::move(ring);
  cq.cqe = cqe;
  return 0;
}

int destroy_cq(ibv_cq* c) {
  SoftCq* cq = soft(c);
  {
    std::lock_guard hold(cq->members_lock);
    if (!cq->members.empty()) return EBUSY;
  }
  end_channel_use(*cq);
  end_events(*cq);
  delete cq;
  return 0;
}

}  // namespace twinpath::soft
