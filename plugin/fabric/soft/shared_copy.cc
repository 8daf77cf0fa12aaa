// A large write between processes, copied by both ends at once: the requester writes chunks into
// the peer (process_vm_writev), the responder reads chunks from the requester
// (process_vm_readv), and a counter in the link says which chunk is next.  Two cores copy, and a
// responder that is not looking costs nothing: the requester then takes all chunks.
//
// The requester announces the message with a `pull` packet, copies until no chunk is left, and
// goes on (immediate data, next WQE).  The responder acknowledges the packet when its own last
// chunk is in place; what follows in the ring is executed after that, so order is kept.
//
// At either end the threads of the team help (copy_team.h).
#include <cstring>

#include "plugin/fabric/soft/requester.h"

namespace twinpath::soft {

bool may_share(SoftQp& qp, const SendEntry& e) {
  return qp.link.peer != nullptr && !qp.requester.no_pull && e.num_sge == 1 && e.offset == 0 &&
         e.length >= kSharedFrom && qp.send.relay_of(e) == nullptr &&
         (e.opcode == IBV_WR_RDMA_WRITE || e.opcode == IBV_WR_RDMA_WRITE_WITH_IMM) &&
         qp.link.theirs->can_pull.load(std::memory_order_acquire) != 0;
}

Step start_shared(SoftQp& qp, SendEntry& e, const Region& remote) {
  PacketHeader* p = reserve_packet(qp, sizeof(PullSource));
  if (p == nullptr) return Step::wait;
  const ibv_sge& sge = qp.send.sges_of(e)[0];
  const PullSource source{local_address(qp, e, sge), sge.addr, sge.lkey, 0};
  if (++qp.requester.pull_id == 0) ++qp.requester.pull_id;
  e.pull_id = qp.requester.pull_id;
  qp.link.out_claim->next.store(std::uint64_t{e.pull_id} << 32, std::memory_order_release);
  begin_sending(qp, e, remote, e.pull_id, e.length, *qp.link.out_claim);
  p->op = PacketOp::pull;
  p->rkey = e.rkey;
  p->address = e.remote_address;
  p->length = sizeof source;
  p->imm = e.pull_id;
  p->total = static_cast<std::uint32_t>(e.length);
  std::memcpy(p + 1, &source, sizeof source);
  publish_packet(qp, p);
  e.ack_at = ++qp.requester.messages;
  qp.requester.last_data_message = qp.requester.messages;
  e.offset = 1;  // begun: a draining queue finishes it
  return go_on_sharing(qp, e);
}

Step go_on_sharing(SoftQp& qp, SendEntry& e) {
  switch (qp.hca->team().look(qp.copies.out)) {
    case CopyTeam::Look::more:
      return Step::more;
    case CopyTeam::Look::wait:
      return Step::wait;
    case CopyTeam::Look::failed:
      // The kernel will not write there: the rest goes in packets, over what was copied of it.
      e.no_direct = true;
      e.offset = std::uint64_t{qp.copies.out.take_failed() - 1} * kChunk;
      return Step::wait;
    case CopyTeam::Look::done:
      break;
  }
  e.offset = e.length;
  if (e.opcode == IBV_WR_RDMA_WRITE_WITH_IMM) return send_imm(qp, e) ? Step::done : Step::wait;
  e.received = e.length;
  e.stage = Stage::sent;
  return Step::done;
}

void fix_shared(SoftQp& qp) {
  if (qp.link.theirs == nullptr || qp.link.peer == nullptr) return;
  const std::uint64_t failed = qp.link.theirs->pull_failed.load(std::memory_order_acquire);
  if (failed == 0 || failed == qp.link.mine->pull_fixed.load(std::memory_order_relaxed)) return;
  qp.requester.no_pull = true;
  const auto id = static_cast<std::uint32_t>(failed >> 32);
  const std::uint64_t offset = (failed & 0xffffffffu) * kChunk;
  for (std::uint64_t i = qp.send.head; i != qp.send.tail; ++i) {
    SendEntry& e = qp.send.entry(i);
    if (e.pull_id != id || offset >= e.length) continue;
    const HeldKey k =
        qp.link.peer->keys.hold(e.rkey, e.remote_address, e.length, IBV_ACCESS_REMOTE_WRITE,
                                qp.link.theirs->pd.load(std::memory_order_relaxed));
    LocalKeys own;
    bool cuda = false;
    bool ok = static_cast<bool>(k) && own.hold(qp, e, 0, cuda);
    if (ok) {
      ok = move_host(qp.link.peer->pid, local_address(qp, e, qp.send.sges_of(e)[0]) + offset,
                     k.base + (e.remote_address - k.iova) + offset, chunk_bytes(e.length, offset),
                     true);
    }
    if (k) KeyView::drop(k);
    if (!ok) {
      e.status = IBV_WC_REM_OP_ERR;
      enter_error(qp);
      return;
    }
    break;
  }
  qp.link.mine->pull_fixed.store(failed, std::memory_order_release);
}

namespace {

Executed pull_under(SoftQp& qp, const PacketHeader& p, const PullSource& source) {
  const HeldKey e = hold_target(qp, p.rkey, p.address, p.total, IBV_ACCESS_REMOTE_WRITE);
  if (!e) return Executed::refused;
  TeamCopy& c = qp.copies.in;
  if (c.id == 0) {  // the first look at this message
    c.begin(p.imm, qp.link.peer->pid, false, e.base + (p.address - e.iova), source.address, p.total,
            *qp.link.in_claim);
    c.near_guard = {qp.hca->keys().view(), p.rkey, IBV_ACCESS_REMOTE_WRITE, e.pd, p.address};
    c.far_guard = {qp.link.peer->keys, source.lkey, 0,
                   qp.link.theirs->pd.load(std::memory_order_relaxed), source.iova};
  } else if (c.id != p.imm || c.total != p.total || c.far != source.address ||
             c.near_guard.key != p.rkey || c.near_guard.address != p.address) {
    // The peer has changed the packet under our hands: what is held is not what is written.
    KeyView::drop(e);
    return Executed::refused;
  }
  CopyTeam::Look look = CopyTeam::Look::failed;
  std::uint32_t chunk = c.take_failed();
  if (chunk == 0) {
    look = qp.hca->team().look(c);
    if (look == CopyTeam::Look::failed) chunk = c.take_failed();
  }
  KeyView::drop(e);
  switch (look) {
    case CopyTeam::Look::more:
      return Executed::more;
    case CopyTeam::Look::wait:
      return Executed::wait;
    case CopyTeam::Look::failed:
      break;
    case CopyTeam::Look::done:
      c.id = 0;
      return Executed::done;
  }
  // Its memory cannot be read from here (driver-mapped pages): it must write this chunk itself.
  qp.responder.pull_stalled = (std::uint64_t{p.imm} << 32) | (chunk - 1);
  qp.link.mine->pull_failed.store(qp.responder.pull_stalled, std::memory_order_release);
  return Executed::wait;
}

}  // namespace

Executed pull(SoftQp& qp, const PacketHeader& p, const std::uint8_t* payload) {
  if (qp.responder.pull_stalled != 0) {
    if (qp.link.theirs->pull_fixed.load(std::memory_order_acquire) != qp.responder.pull_stalled)
      return Executed::wait;
    qp.responder.pull_stalled = 0;
  }
  PullSource source;
  std::memcpy(&source, payload, sizeof source);
  if (qp.link.peer == nullptr || p.imm == 0 ||
      !qp.link.peer->greeted.load(std::memory_order_acquire))
    return Executed::refused;
  // The peer's own memory: what it has deregistered is not read, whatever comes of its message.
  const HeldKey theirs = qp.link.peer->keys.hold(
      source.lkey, source.iova, p.total, 0, qp.link.theirs->pd.load(std::memory_order_relaxed));
  if (!theirs) return Executed::refused;
  const Executed executed = pull_under(qp, p, source);
  KeyView::drop(theirs);
  return executed;
}

}  // namespace twinpath::soft
