// Asynchronous events: one queue per context, read from its async_fd.
//
// An object may not go while an event about it is in the user's hands: destroying it takes back
// what nobody has read and waits until the rest is acknowledged, as libibverbs does.
#include <cerrno>

#include "plugin/fabric/soft/control.h"
#include "plugin/fabric/soft/objects.h"

namespace twinpath::soft {
namespace {

enum class Subject { qp, cq, srq, port };

Subject subject_of(ibv_event_type type) {
  switch (type) {
    case IBV_EVENT_QP_FATAL:
    case IBV_EVENT_QP_REQ_ERR:
    case IBV_EVENT_QP_ACCESS_ERR:
    case IBV_EVENT_COMM_EST:
    case IBV_EVENT_SQ_DRAINED:
    case IBV_EVENT_QP_LAST_WQE_REACHED:
      return Subject::qp;
    case IBV_EVENT_CQ_ERR:
      return Subject::cq;
    case IBV_EVENT_SRQ_ERR:
    case IBV_EVENT_SRQ_LIMIT_REACHED:
      return Subject::srq;
    default:
      return Subject::port;
  }
}

void count_reported(const ibv_async_event& e) {
  switch (subject_of(e.event_type)) {
    case Subject::qp:
      ++soft(e.element.qp)->reported.events;
      return;
    case Subject::cq:
      ++soft(e.element.cq)->async_reported.events;
      return;
    case Subject::srq:
      ++soft(e.element.srq)->reported.events;
      return;
    case Subject::port:
      return;
  }
}

// Takes back the events about `object` and tells how many the user has been given.
std::uint32_t withdraw(ibv_context* c, Subject subject, const void* object, const Reported& r) {
  return soft(c)->events.withdraw(
      [&](const ibv_async_event& e) {
        // The element is a union of pointers.
        return subject_of(e.event_type) == subject && e.element.qp == object;
      },
      [&] { return r.events; });
}

}  // namespace

void init_waiting(pthread_mutex_t& mutex, pthread_cond_t& cond) {
  pthread_mutex_init(&mutex, nullptr);
  pthread_cond_init(&cond, nullptr);
}

void wait_acknowledged(pthread_mutex_t& mutex, pthread_cond_t& cond, const std::uint32_t& completed,
                       std::uint32_t reported) {
  pthread_mutex_lock(&mutex);
  while (completed != reported) pthread_cond_wait(&cond, &mutex);
  pthread_mutex_unlock(&mutex);
}

void acknowledged(pthread_mutex_t& mutex, pthread_cond_t& cond, std::uint32_t& completed,
                  std::uint32_t count) {
  pthread_mutex_lock(&mutex);
  completed += count;
  pthread_cond_broadcast(&cond);
  pthread_mutex_unlock(&mutex);
}

void async_event(SoftQp& qp, ibv_event_type type) {
  ibv_async_event e{};
  e.event_type = type;
  e.element.qp = &qp;
  qp.soft_context->events.push(e);
}

void async_event(SoftCq& cq, ibv_event_type type) {
  ibv_async_event e{};
  e.event_type = type;
  e.element.cq = &cq;
  soft(cq.context)->events.push(e);
}

void async_event(SoftSrq& srq, ibv_event_type type) {
  ibv_async_event e{};
  e.event_type = type;
  e.element.srq = &srq;
  soft(srq.context)->events.push(e);
}

void end_events(SoftQp& qp) {
  wait_acknowledged(qp.mutex, qp.cond, qp.events_completed,
                    withdraw(qp.context, Subject::qp, static_cast<ibv_qp*>(&qp), qp.reported));
}

void end_events(SoftCq& cq) {
  wait_acknowledged(
      cq.mutex, cq.cond, cq.async_events_completed,
      withdraw(cq.context, Subject::cq, static_cast<ibv_cq*>(&cq), cq.async_reported));
}

void end_events(SoftSrq& srq) {
  wait_acknowledged(srq.mutex, srq.cond, srq.events_completed,
                    withdraw(srq.context, Subject::srq, static_cast<ibv_srq*>(&srq), srq.reported));
}

int get_async_event(ibv_context* c, ibv_async_event* event) {
  return soft(c)->events.pop(*event, count_reported);
}

void ack_async_event(ibv_async_event* event) {
  switch (subject_of(event->event_type)) {
    case Subject::qp: {
      ibv_qp* qp = event->element.qp;
      acknowledged(qp->mutex, qp->cond, qp->events_completed, 1);
      return;
    }
    case Subject::cq: {
      ibv_cq* cq = event->element.cq;
      acknowledged(cq->mutex, cq->cond, cq->async_events_completed, 1);
      return;
    }
    case Subject::srq: {
      ibv_srq* srq = event->element.srq;
      acknowledged(srq->mutex, srq->cond, srq->events_completed, 1);
      return;
    }
    case Subject::port:
      return;
  }
}

const char* event_type_str(ibv_event_type type) {
  switch (type) {
    case IBV_EVENT_QP_FATAL:
      return "local work queue catastrophic error";
    case IBV_EVENT_QP_REQ_ERR:
      return "invalid request local work queue error";
    case IBV_EVENT_QP_ACCESS_ERR:
      return "local access violation work queue error";
    case IBV_EVENT_PORT_ACTIVE:
      return "port active";
    case IBV_EVENT_PORT_ERR:
      return "port error";
    case IBV_EVENT_DEVICE_FATAL:
      return "local catastrophic error";
    case IBV_EVENT_SQ_DRAINED:
      return "send queue drained";
    case IBV_EVENT_SRQ_ERR:
      return "SRQ catastrophic error";
    case IBV_EVENT_SRQ_LIMIT_REACHED:
      return "SRQ limit reached";
    case IBV_EVENT_QP_LAST_WQE_REACHED:
      return "last WQE reached";
    case IBV_EVENT_CQ_ERR:
      return "CQ error";
    default:
      return "event";
  }
}

}  // namespace twinpath::soft
