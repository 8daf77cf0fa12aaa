// A large write between processes, copied by both ends at once: the requester writes chunks into
// the peer (process_vm_writev), the responder reads chunks from the requester
// (process_vm_readv), and a counter in the link says which chunk is next.  Two cores copy, and a
// responder that is not looking costs nothing: the requester then takes all chunks.
//
// The requester announces the message with a `pull` packet, copies until no chunk is left, and
// goes on (immediate data, next WQE).  The responder acknowledges the packet when its own last
// chunk is in place; what follows in the ring is executed after that, so order is kept.
#include <sys/uio.h>

#include <cstring>

#include "plugin/fabric/soft/requester.h"

namespace twinpath::soft {
namespace {

constexpr std::uint64_t kChunk = 64 * 1024;
constexpr std::uint64_t kSharedFrom = 4 * kChunk;

// The next chunk of message `id`, or false when none is left (or another message runs).
bool claim_chunk(Claim& claim, std::uint32_t id, std::uint64_t total, std::uint64_t& offset) {
  std::uint64_t v = claim.next.load(std::memory_order_acquire);
  for (;;) {
    offset = (v & 0xffffffffu) * kChunk;
    if (v >> 32 != id || offset >= total) return false;
    if (claim.next.compare_exchange_weak(v, v + 1, std::memory_order_acq_rel)) return true;
  }
}

bool move(int pid, std::uint64_t near, std::uint64_t far, std::uint64_t bytes, bool to_far) {
  while (bytes != 0) {
    iovec l{reinterpret_cast<void*>(near), bytes}, r{reinterpret_cast<void*>(far), bytes};
    ssize_t n =
        to_far ? process_vm_writev(pid, &l, 1, &r, 1, 0) : process_vm_readv(pid, &l, 1, &r, 1, 0);
    if (n <= 0) return false;
    near += static_cast<std::uint64_t>(n);
    far += static_cast<std::uint64_t>(n);
    bytes -= static_cast<std::uint64_t>(n);
  }
  return true;
}

std::uint64_t chunk_bytes(std::uint64_t total, std::uint64_t offset) {
  return std::min(kChunk, total - offset);
}

}  // namespace

bool may_share(SoftQp& qp, const SendEntry& e) {
  return qp.peer != nullptr && !qp.no_pull && e.num_sge == 1 && e.offset == 0 &&
         e.length >= kSharedFrom &&
         (e.opcode == IBV_WR_RDMA_WRITE || e.opcode == IBV_WR_RDMA_WRITE_WITH_IMM) &&
         qp.theirs->can_pull.load(std::memory_order_acquire) != 0;
}

Step start_shared(SoftQp& qp, SendEntry& e, const Region& remote) {
  PacketHeader* p = reserve_packet(qp, sizeof(std::uint64_t));
  if (p == nullptr) return Step::wait;
  const std::uint64_t source = local_address(qp, e, qp.sges_of(e)[0]);
  if (++qp.pull_id == 0) ++qp.pull_id;
  e.pull_id = qp.pull_id;
  qp.out_claim->next.store(std::uint64_t{e.pull_id} << 32, std::memory_order_release);
  p->op = PacketOp::pull;
  p->rkey = e.rkey;
  p->address = e.remote_address;
  p->length = sizeof source;
  p->imm = e.pull_id;
  p->total = static_cast<std::uint32_t>(e.length);
  std::memcpy(p + 1, &source, sizeof source);
  publish_packet(qp, p);
  e.ack_at = ++qp.messages;
  qp.last_data_message = qp.messages;
  e.offset = 1;  // begun: a draining queue finishes it
  return go_on_sharing(qp, e, remote);
}

Step go_on_sharing(SoftQp& qp, SendEntry& e, const Region& remote) {
  const std::uint64_t source = local_address(qp, e, qp.sges_of(e)[0]);
  const std::uint64_t target = remote.base + (e.remote_address - remote.iova);
  std::uint64_t offset = 0, slice = 0;
  while (claim_chunk(*qp.out_claim, e.pull_id, e.length, offset)) {
    if (move(qp.peer->pid, source + offset, target + offset, chunk_bytes(e.length, offset), true)) {
      if ((slice += kChunk) >= kSlice) return Step::more;
      continue;
    }
    // The kernel will not write there: the rest goes in packets, over what the peer read too.
    e.no_direct = true;
    e.offset = offset;
    return Step::wait;
  }
  e.offset = e.length;
  if (e.opcode == IBV_WR_RDMA_WRITE_WITH_IMM) return send_imm(qp, e) ? Step::done : Step::wait;
  e.received = e.length;
  e.stage = Stage::sent;
  return Step::done;
}

void fix_shared(SoftQp& qp) {
  if (qp.theirs == nullptr || qp.peer == nullptr) return;
  const std::uint64_t failed = qp.theirs->pull_failed.load(std::memory_order_acquire);
  if (failed == 0 || failed == qp.mine->pull_fixed.load(std::memory_order_relaxed)) return;
  qp.no_pull = true;
  const auto id = static_cast<std::uint32_t>(failed >> 32);
  const std::uint64_t offset = (failed & 0xffffffffu) * kChunk;
  for (std::uint64_t i = qp.sq_head; i != qp.sq_tail; ++i) {
    SendEntry& e = qp.entry(i);
    if (e.pull_id != id || offset >= e.length) continue;
    const HeldKey k =
        qp.peer->keys.hold(e.rkey, e.remote_address, e.length, IBV_ACCESS_REMOTE_WRITE,
                           qp.theirs->pd.load(std::memory_order_relaxed));
    bool ok = static_cast<bool>(k);
    if (ok) {
      ok = move(qp.peer->pid, local_address(qp, e, qp.sges_of(e)[0]) + offset,
                k.base + (e.remote_address - k.iova) + offset, chunk_bytes(e.length, offset), true);
      KeyView::drop(k);
    }
    if (!ok) {
      e.status = IBV_WC_REM_OP_ERR;
      enter_error(qp);
      return;
    }
    break;
  }
  qp.mine->pull_fixed.store(failed, std::memory_order_release);
}

Executed pull(SoftQp& qp, const PacketHeader& p, const std::uint8_t* payload) {
  if (qp.pull_stalled != 0) {
    if (qp.theirs->pull_fixed.load(std::memory_order_acquire) != qp.pull_stalled)
      return Executed::wait;
    qp.pull_stalled = 0;
  }
  std::uint64_t source = 0;
  std::memcpy(&source, payload, sizeof source);
  if (qp.peer == nullptr) return Executed::refused;
  const HeldKey e = hold_target(qp, p.rkey, p.address, p.total, IBV_ACCESS_REMOTE_WRITE);
  if (!e) return Executed::refused;
  const std::uint64_t target = e.base + (p.address - e.iova);
  Executed outcome = Executed::done;
  std::uint64_t offset = 0, slice = 0;
  while (claim_chunk(*qp.in_claim, p.imm, p.total, offset)) {
    if (move(qp.peer->pid, target + offset, source + offset, chunk_bytes(p.total, offset), false)) {
      if ((slice += kChunk) < kSlice) continue;
      outcome = Executed::more;
      break;
    }
    // Its memory cannot be read from here (driver-mapped pages): it must write this chunk itself.
    qp.pull_stalled = (std::uint64_t{p.imm} << 32) | (offset / kChunk);
    qp.mine->pull_failed.store(qp.pull_stalled, std::memory_order_release);
    outcome = Executed::wait;
    break;
  }
  KeyView::drop(e);
  return outcome;
}

}  // namespace twinpath::soft
