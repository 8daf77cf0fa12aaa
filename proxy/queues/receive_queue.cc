#include "proxy/queues/receive_queue.h"

#include <array>
#include <cstring>

#include "plugin/base/log.h"

namespace twinpath {

int post_receives(Queue& queue, CompletionHub::CommId id, int index) {
  const std::uint64_t wr_id =
      encode(WrId{id.index, id.epoch, WrKind::receive, static_cast<std::uint16_t>(index), 0});
  std::array<ibv_recv_wr, kRecvChain> chain{};
  for (std::size_t i = 0; i < chain.size(); ++i) {
    chain[i].wr_id = wr_id;
    chain[i].next = i + 1 < chain.size() ? &chain[i + 1] : nullptr;
  }
  ibv_recv_wr* bad = nullptr;
  return ibv_post_recv(queue.qp.get(), chain.data(), &bad);
}

bool prepost_receives(QueueSet& set, CompletionHub::CommId id) {
  static_assert(kRecvDepth % kRecvChain == 0);
  int q = 0;
  for (Queue& queue : set.queues()) {
    for (int i = 0; queue.qp != nullptr && i < set.receive_depth(); i += kRecvChain) {
      const int error = post_receives(queue, id, q);
      if (error == 0) continue;
      TP_WARN("QP %u: cannot post receives: %s (errno %d)", queue.qp->qp_num, std::strerror(error),
              error);
      return false;
    }
    ++q;
  }
  return true;
}

}  // namespace twinpath
