// What a receive comm does with completions: data, above all.
#include <arpa/inet.h>

#include <cstring>

#include "proxy/queues/receive_queue.h"
#include "proxy/receive/recv_comm.h"

namespace twinpath {

void ProxyRecvComm::on_completion(const ibv_wc& wc) {
  if (kind_of(wc.wr_id) != WrKind::receive || wc.status != IBV_WC_SUCCESS) [[unlikely]] {
    on_other(wc);
    return;
  }
  const std::size_t queue = slot_of(wc.wr_id);
  const bool repost_now = ++unposted_[queue] >= kRecvChain;
  const std::uint32_t bits = ntohl(wc.imm_data);
  // A message in one piece for a plain receive, nearly always.
  if ((bits & ~kReceiveBits) == 0 && wc.opcode == IBV_WC_RECV_RDMA_WITH_IMM && !repost_now)
      [[likely]]
    if (arrivals_.take_whole(CellMeta(bits), wc.byte_len, queue, cts_)) [[likely]]
      return;
  if (repost_now) repost(static_cast<int>(queue));
  on_data(wc, static_cast<int>(queue));
}

// Cells, flushes and failures.
void ProxyRecvComm::on_other(const ibv_wc& wc) {
  const WrKind kind = kind_of(wc.wr_id);
  if (wc.status != IBV_WC_SUCCESS) {
    if (kind == WrKind::receive) ++unposted_[slot_of(wc.wr_id)];
    if (kind == WrKind::flush && !flushes_.knows(wc)) return;  // of queues that were replaced
    if (kind == WrKind::flush && link_->excuses(wc))
      flushes_.failed(wc);
    else if (kind == WrKind::flush && flushes_.queues() != nullptr)
      link_->fail_local_completion(decode_wr_id(wc.wr_id), wc, *flushes_.queues());
    else
      link_->fail_completion(decode_wr_id(wc.wr_id), wc);
    return;
  }
  if (kind == WrKind::cts) {
    cts_.on_completion(wc.wr_id);
  } else if (kind == WrKind::probe) {
    link_->answered(wc);
  } else if (kind == WrKind::flush) {
    flushes_.done(wc);
  }
}

void ProxyRecvComm::on_data(const ibv_wc& wc, int queue) {
  const std::uint32_t bits = ntohl(wc.imm_data);
  const bool valid = wc.opcode == IBV_WC_RECV_RDMA_WITH_IMM && (wc.wc_flags & IBV_WC_WITH_IMM) != 0;
  if (!(valid ? arrivals_.take(bits, wc.byte_len, queue, cts_) : arrivals_.unexpected(bits)))
      [[unlikely]]
    link_->fail("%s", arrivals_.why().c_str());
  else if (arrivals_.landed()) [[unlikely]]
    copy_on();
}

void ProxyRecvComm::copy_on() {
  if (link_->broken()) return;
  if (!arrivals_.copy_on(cts_)) link_->fail("%s", arrivals_.why().c_str());
  // Any poll of the session goes on with it.
  if (arrivals_.copying() && !link_->broken()) hub_->hold(*this);
}

void ProxyRecvComm::repost(int queue) {
  if (link_->halted()) return;
  Queue& q = link_->queue(queue);
  const int error = post_receives(q, link_->comm_id(), queue);
  if (error != 0)
    link_->fail("cannot post receives on QP %u: %s (errno %d)", q.qp->qp_num, std::strerror(error),
                error);
  std::uint16_t& unposted = unposted_[static_cast<std::size_t>(queue)];
  unposted = static_cast<std::uint16_t>(unposted - kRecvChain);
}

}  // namespace twinpath
