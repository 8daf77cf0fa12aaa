// Shared receive queues: receives that the QPs of one SRQ take as messages come in.  A QP takes
// one when a message needs it and keeps it until the message is complete, so a QP that fails
// flushes at most that one; the others stay for the rest.
#include <cerrno>
#include <cstring>

#include "plugin/fabric/soft/control.h"
#include "plugin/fabric/soft/extended.h"
#include "plugin/fabric/soft/objects.h"

namespace twinpath::soft {
namespace {

// Below the limit: one event, then disarmed.  Lock held.
bool limit_reached(SoftSrq& srq) {
  if (srq.limit == 0 || srq.queue.count() >= srq.limit) return false;
  srq.limit = 0;
  return true;
}

}  // namespace

ibv_srq* create_srq(ibv_pd* pd, ibv_srq_init_attr* init) {
  ibv_srq_attr& a = init->attr;
  const Personality& most = like(pd->context);
  if (!most.queues.srq) {
    errno = EOPNOTSUPP;
    return nullptr;
  }
  if (a.max_wr < 1 || a.max_wr > most.queues.max_wr || a.max_sge > most.queues.max_recv_sge) {
    errno = EINVAL;
    return nullptr;
  }
  auto srq = std::make_unique<SoftSrq>();
  static_cast<ibv_srq&>(*srq) = ibv_srq{};
  srq->context = pd->context;
  srq->srq_context = init->srq_context;
  srq->pd = pd;
  if (!srq->queue.allocate(a.max_wr, std::max(a.max_sge, 1u))) {
    errno = ENOMEM;
    return nullptr;
  }
  init_waiting(srq->mutex, srq->cond);
  a.max_sge = srq->queue.max_sge;
  ++static_cast<SoftPd*>(pd)->users;
  return srq.release();
}

int modify_srq(ibv_srq* s, ibv_srq_attr* a, int mask) {
  SoftSrq& srq = *soft(s);
  bool event = false;
  {
    std::lock_guard hold(srq.lock);
    if ((mask & ~(IBV_SRQ_MAX_WR | IBV_SRQ_LIMIT)) != 0) return EINVAL;
    const bool resize = (mask & IBV_SRQ_MAX_WR) != 0;
    const std::uint32_t size = resize ? a->max_wr : srq.queue.entries.size;
    if (size < 1 || size > like(s->context).queues.max_wr || size < srq.queue.count())
      return EINVAL;
    if (((mask & IBV_SRQ_LIMIT) != 0 ? a->srq_limit : srq.limit) > size) return EINVAL;
    if (resize && !srq.queue.resize(size)) return ENOMEM;
    if ((mask & IBV_SRQ_LIMIT) != 0) {
      srq.limit = a->srq_limit;
      event = limit_reached(srq);  // it is low already
    }
  }
  if (event) async_event(srq, IBV_EVENT_SRQ_LIMIT_REACHED);
  return 0;
}

int query_srq(ibv_srq* s, ibv_srq_attr* a) {
  SoftSrq& srq = *soft(s);
  std::lock_guard hold(srq.lock);
  *a = {srq.queue.entries.size, srq.queue.max_sge, srq.limit};
  return 0;
}

int destroy_srq(ibv_srq* s) {
  SoftSrq* srq = soft(s);
  if (srq->users.load() != 0) return EBUSY;
  end_events(*srq);
  --static_cast<SoftPd*>(srq->pd)->users;
  delete srq;
  return 0;
}

int post_srq_recv(ibv_srq* s, ibv_recv_wr* wr, ibv_recv_wr** bad) {
  SoftSrq& srq = *soft(s);
  std::lock_guard hold(srq.lock);
  for (; wr != nullptr; wr = wr->next) {
    int rc = 0;
    if (wr->num_sge < 0 || static_cast<std::uint32_t>(wr->num_sge) > srq.queue.max_sge) {
      rc = EINVAL;
    } else if (srq.queue.count() >= srq.queue.entries.size) {
      rc = ENOMEM;
    }
    if (rc != 0) {
      *bad = wr;
      return rc;
    }
    srq.queue.push({wr->wr_id, wr->num_sge}, wr->sg_list);
  }
  return 0;
}

bool take_receive(ibv_srq* s, std::uint64_t& id, std::vector<ibv_sge>& pieces) {
  SoftSrq& srq = *soft(s);
  bool event = false;
  {
    std::lock_guard hold(srq.lock);
    if (srq.queue.is_empty()) return false;
    const ibv_sge* const list = srq.queue.first_sges();
    id = srq.queue.first().wr_id;
    pieces.assign(list, list + srq.queue.first().num_sge);
    ++srq.queue.head;
    event = limit_reached(srq);
  }
  if (event) async_event(srq, IBV_EVENT_SRQ_LIMIT_REACHED);
  return true;
}

bool take_shared(SoftQp& qp) {
  SoftSrq& srq = *soft(qp.srq);
  bool event = false;
  {
    std::lock_guard hold(srq.lock);
    if (srq.queue.is_empty()) return false;
    qp.receive.push(srq.queue.first(), srq.queue.first_sges());
    ++srq.queue.head;
    event = limit_reached(srq);
  }
  if (event) async_event(srq, IBV_EVENT_SRQ_LIMIT_REACHED);
  return true;
}

}  // namespace twinpath::soft
