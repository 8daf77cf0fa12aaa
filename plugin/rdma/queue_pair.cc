#include "plugin/rdma/queue_pair.h"

#include <algorithm>
#include <array>
#include <cerrno>

#include "plugin/base/log.h"
#include "plugin/base/reason_text.h"
#include "plugin/fabric/refusal.h"
#include "plugin/rdma/devices.h"

namespace twinpath {
namespace {

// A peer that has run out of receives is tried again for ever (path.cc says how soon).
constexpr std::uint8_t kRnrRetryForever = 7;

Status status_of(int error) { return error == ENOMEM ? Status::no_memory : Status::system; }

}  // namespace

int less_inline(int refused) {
  // 28 is one clear-to-send cell.
  constexpr std::array kSizes{128, 96, 64, 48, 28};
  for (const int size : kSizes)
    if (size < refused) return size;
  return 0;
}

// Nothing is said of pipelines, of which ionic's adapters have two (ionic_dv_pd_set_udma_mask): as
// long as all are allowed its kernel driver gives queue pairs to each in turn (ionic_get_qpid), and
// completion queues are polled on both.
Result<Owned<ibv_qp>> make_queue_pair(const Verbs& verbs, const RailPort& port, ibv_cq* cq,
                                      const QueueSettings& settings, std::uint32_t& inline_bytes) {
  inline_bytes = 0;
  int error = 0;
  for (int wanted = port.port->inline_data ? settings.inline_bytes : 0;;
       wanted = less_inline(wanted)) {
    ibv_qp_init_attr init{};
    init.send_cq = init.recv_cq = cq;
    init.qp_type = IBV_QPT_RC;
    init.cap.max_send_wr = static_cast<std::uint32_t>(settings.send_depth);
    // Some providers want one even if nothing is ever received.
    init.cap.max_recv_wr = static_cast<std::uint32_t>(std::max(settings.recv_depth, 1));
    init.cap.max_send_sge = init.cap.max_recv_sge = 1;
    init.cap.max_inline_data = static_cast<std::uint32_t>(wanted);
    errno = 0;
    if (ibv_qp* qp = verbs.create_qp(port.adapter->pd, &init); qp != nullptr) {
      // What is granted unasked is not for use.
      if (wanted > 0) inline_bytes = init.cap.max_inline_data;
      return own(qp, verbs.destroy_qp);
    }
    error = errno;
    // Whatever else it says, it may mean the inline data; some say nothing.
    if (error == ENOMEM || wanted == 0) break;
  }
  TP_WARN("%s cannot make a queue pair (%d sends, %d receives): %s%s", port.port->name.c_str(),
          settings.send_depth, settings.recv_depth, reason_text(error).c_str(),
          remedy_of(VerbsCall::create_qp, error).c_str());
  return status_of(error);
}

int move_to_init(const Verbs& verbs, ibv_qp* qp, const Rail& rail, const QueueSettings& settings) {
  ibv_qp_attr a{};
  a.qp_state = IBV_QPS_INIT;
  a.pkey_index = rail.pkey_index;
  a.port_num = rail.port.port->number;
  a.qp_access_flags = static_cast<unsigned>(settings.access);
  return move_pair(verbs, qp, a,
                   IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
}

int move_to_rtr(const Verbs& verbs, ibv_qp* qp, ibv_qp_attr path) {
  return move_pair(verbs, qp, path,
                   IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                       IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER);
}

int move_to_rts(const Verbs& verbs, ibv_qp* qp, const QueueSettings& settings, std::uint32_t psn,
                std::uint8_t reads) {
  ibv_qp_attr a{};
  a.qp_state = IBV_QPS_RTS;
  a.timeout = settings.timeout;
  a.retry_cnt = settings.retry_count;
  a.rnr_retry = kRnrRetryForever;
  a.sq_psn = psn;
  a.max_rd_atomic = reads;
  return move_pair(verbs, qp, a,
                   IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
                       IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC);
}

int move_to_error(const Verbs& verbs, ibv_qp* qp) {
  ibv_qp_attr a{};
  a.qp_state = IBV_QPS_ERR;
  return move_pair(verbs, qp, a, IBV_QP_STATE);
}

Result<Owned<ibv_cq>> make_completion_queue(const Verbs& verbs, ibv_context* context,
                                            std::size_t entries, const void* owner) {
  errno = 0;
  ibv_cq* cq =
      verbs.create_cq(context, static_cast<int>(entries), const_cast<void*>(owner), nullptr, 0);
  if (cq != nullptr) return own(cq, verbs.destroy_cq);
  const int error = errno;
  TP_WARN("%s cannot make a completion queue of %zu entries: %s%s",
          context->device != nullptr ? context->device->name : "an adapter", entries,
          reason_text(error).c_str(), remedy_of(VerbsCall::create_cq, error).c_str());
  return status_of(error);
}

}  // namespace twinpath
