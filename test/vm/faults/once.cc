#include "test/vm/faults/once.h"

#include <arpa/inet.h>

#include <algorithm>
#include <array>
#include <mutex>

#include "proxy/wire/cts.h"

namespace twinpath::test {
namespace {

struct Posted {
  std::uint32_t qpn = 0, immediate = 0;
  friend bool operator==(const Posted&, const Posted&) = default;
};

// The operations of a context are plain functions, hence state of the process.
std::mutex mutex;
std::array<Posted, kRemembered> ring{};
std::size_t next = 0;
std::atomic<std::uint32_t>* found = nullptr;
decltype(ibv_context_ops::post_send) real_post_send = nullptr;

void look_at(std::uint32_t qpn, const ibv_send_wr& wr) {
  if (wr.opcode != IBV_WR_RDMA_WRITE_WITH_IMM) return;
  const Posted p{qpn, ntohl(wr.imm_data)};
  // Chunks of a message share their immediate; parcels have numbers of their own.
  if (p.immediate == 0 || (p.immediate & ~kReceiveBits) != 0) return;
  const std::lock_guard hold(mutex);
  if (std::find(ring.begin(), ring.end(), p) != ring.end() && found->load() == 0)
    found->store(p.immediate);
  ring[next++ % ring.size()] = p;
}

int post_send(ibv_qp* qp, ibv_send_wr* first, ibv_send_wr** bad) {
  for (const ibv_send_wr* wr = first; wr != nullptr; wr = wr->next) look_at(qp->qp_num, *wr);
  return real_post_send(qp, first, bad);
}

}  // namespace

void watch_posts(Fabric& fabric, std::atomic<std::uint32_t>& twice) {
  found = &twice;
  for (const Port& port : fabric.ports) {
    ibv_context_ops& ops = port.context->ops;
    if (ops.post_send == post_send) continue;  // another port of this context
    real_post_send = ops.post_send;
    ops.post_send = post_send;
  }
}

}  // namespace twinpath::test
