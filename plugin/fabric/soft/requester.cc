// The requester half of a QP: runs the send queue in order.
//
// Three ways to move a message's bytes (and both of the first for what relay.cc takes):
//   packets  through the ring, executed and checked by the responder: small messages, SENDs,
//            atomics, and everything where a direct copy is not possible;
//   direct   one copy by us (direct.cc): large host transfers, and all inside one process;
//   CUDA     copy engines (cuda_transfer.cc).
// RC order is kept: a direct copy waits until earlier packet data has been executed, and a
// packet waits until earlier copy-engine transfers have finished.
#include "plugin/fabric/soft/requester.h"

#include <cstring>

#include "plugin/base/clock.h"

namespace twinpath::soft {
namespace {

bool is_write(const SendEntry& e) {
  return e.opcode == IBV_WR_RDMA_WRITE || e.opcode == IBV_WR_RDMA_WRITE_WITH_IMM;
}
bool has_imm(const SendEntry& e) {
  return e.opcode == IBV_WR_RDMA_WRITE_WITH_IMM || e.opcode == IBV_WR_SEND_WITH_IMM;
}

// Whether it asks for an event at a far end that is armed for solicited completions.
std::uint8_t solicits(const SendEntry& e) {
  static_assert(IBV_SEND_SOLICITED == 1u << 2);
  return static_cast<std::uint8_t>((e.flags & IBV_SEND_SOLICITED) << 1);
}
static_assert(kSolicited == IBV_SEND_SOLICITED << 1);

void gather(SoftQp& qp, const SendEntry& e, std::uint64_t offset, std::uint8_t* to,
            std::uint64_t bytes) {
  while (bytes != 0) {
    const LocalPiece piece = local_piece(qp, e, offset);
    const std::uint64_t n = std::min(bytes, piece.bytes);
    if (n == 0) return;
    std::memcpy(to, reinterpret_cast<const void*>(piece.address), n);
    to += n;
    offset += n;
    bytes -= n;
  }
}

void sent(SoftQp& qp, SendEntry& e) {
  e.ack_at = ++qp.requester.messages;
  e.stage = Stage::sent;
}

Step send_packets(SoftQp& qp, SendEntry& e) {
  do {
    auto n =
        static_cast<std::uint32_t>(std::min<std::uint64_t>(kPacketPayload, e.length - e.offset));
    PacketHeader* p = reserve_packet(qp, n);
    if (p == nullptr) return Step::wait;
    const bool last = e.offset + n == e.length;
    p->op = is_write(e) ? PacketOp::write : PacketOp::send;
    p->flags = static_cast<std::uint8_t>((e.offset == 0 ? kFirst : 0) | (last ? kLast : 0) |
                                         (last && has_imm(e) ? kImm : 0) | solicits(e));
    p->rkey = e.rkey;
    p->length = n;
    p->address = e.remote_address + e.offset;
    p->imm = e.imm;
    p->total = static_cast<std::uint32_t>(e.length);
    gather(qp, e, e.offset, reinterpret_cast<std::uint8_t*>(p + 1), n);
    publish_packet(qp, p);
    e.offset += n;
  } while (e.offset < e.length);
  sent(qp, e);
  qp.requester.last_data_message = qp.requester.messages;
  return Step::done;
}

Step request(SoftQp& qp, SendEntry& e) {
  if (const auto most = std::max<std::uint32_t>(qp.attr.max_rd_atomic, 1);
      qp.requester.reads_outstanding >= most) {
    retire(qp);  // some may be complete
    if (qp.state == IBV_QPS_ERR || qp.requester.reads_outstanding >= most) return Step::wait;
  }
  PacketHeader* p = reserve_packet(qp, is_atomic(e) ? sizeof e.operand : 0);
  if (p == nullptr) return Step::wait;
  p->op = is_atomic(e) ? PacketOp::atomic_request : PacketOp::read_request;
  p->flags = e.opcode == IBV_WR_ATOMIC_CMP_AND_SWP ? kCompareSwap : std::uint8_t{0};
  p->rkey = e.rkey;
  p->address = e.remote_address;
  p->length = static_cast<std::uint32_t>(is_atomic(e) ? sizeof e.operand : e.length);
  if (is_atomic(e)) std::memcpy(p + 1, e.operand, sizeof e.operand);
  publish_packet(qp, p);
  sent(qp, e);
  ++qp.requester.reads_outstanding;
  return Step::done;
}

Step start_direct(SoftQp& qp, SendEntry& e) {
  // Earlier data that travels in packets must be in place first.
  if (!shares(e) && !packets_in_place(qp)) return Step::wait;
  const HeldKey k = hold_remote(qp, e);
  if (!k) return refused(qp, e);
  if (shares(e) || may_share(qp, e)) {
    Step s = shares(e) ? go_on_sharing(qp, e) : start_shared(qp, e, k);
    KeyView::drop(k);
    return s;
  }
  const bool helped = e.helped || may_help(qp, e);
  Step step = Step::done;
  if (helped) {
    step = copy_with_team(qp, e, k, !is_read(e));
  } else if (!copy_direct(qp, e, k, !is_read(e))) {
    step = Step::failed;
  } else if (e.offset != e.length) {
    step = Step::more;
  }
  KeyView::drop(k);
  if (step == Step::failed) {
    // The kernel would not copy (another container's process, driver-mapped pages): packets from
    // the beginning of what is left.
    e.no_direct = true;
    if (is_read(e)) e.offset = 0;
    return Step::wait;
  }
  if (step != Step::done) return step;
  if (has_imm(e)) return send_imm(qp, e) ? Step::done : Step::wait;
  if (is_read(e) && qp.send.relay_of(e) != nullptr) {
    if (!empty_relay(qp, e, copied) && e.jobs_left == 0) return Step::failed;
    e.stage = Stage::moving;
    return Step::done;
  }
  e.received = e.length;
  e.stage = Stage::placed;
  return Step::done;
}

// Of what comes without notice the far end may see in its memory alone (NCCL's LL: its kernels
// watch it, and its CPU thread asks for no completion).  It may then not poll for long, and packets
// would wait until its engine is awake (100 us instead of 15 for 8 bytes of all_reduce).  Whoever
// wants a completion of such a write waits for that.  Not among others that go without: those are
// clear-to-sends, whose reader polls, so that packets are cheaper.  Behind packets it is one, too.
bool nobody_looks(SoftQp& qp, const SendEntry& e) {
  if (e.opcode != IBV_WR_RDMA_WRITE || (e.flags & IBV_SEND_SIGNALED) == 0 || e.offset != 0)
    return false;
  if (qp.send.exec != 0 && (qp.send.entry(qp.send.exec - 1).flags & IBV_SEND_SIGNALED) == 0)
    return false;
  return packets_in_place(qp);
}

Step start(SoftQp& qp, SendEntry& e) {
  if (e.status != IBV_WC_SUCCESS) return Step::failed;  // injected
  if (e.not_before != 0 && now_ns() < e.not_before) return Step::wait;
  if (qp.link.theirs == nullptr) return Step::wait;
  // A message refused while only a part of its packets was sent has no acknowledgement number yet.
  if (const std::uint32_t nak = qp.link.theirs->nak.load(std::memory_order_acquire);
      nak != 0 && e.offset != 0 &&
      qp.link.theirs->acked.load(std::memory_order_acquire) == qp.requester.messages)
    return fail(e, refusal(nak));
  const auto far = static_cast<EndState>(qp.link.theirs->state.load(std::memory_order_acquire));
  // Not yet, or no longer: the timers decide.
  if (far != EndState::ready || qp.link.astray_to_there()) return Step::wait;
  if ((e.flags & IBV_SEND_FENCE) != 0 && qp.requester.reads_outstanding != 0) return Step::wait;

  bool cuda = false;
  LocalKeys own;
  if (!own.hold(qp, e, is_read(e) || is_atomic(e) ? std::uint32_t{IBV_ACCESS_LOCAL_WRITE} : 0u,
                cuda))
    return fail(e, IBV_WC_LOC_PROT_ERR);

  KeyView keys = remote_keys(qp);
  const KeyEntry* far_key = nullptr;
  if ((is_write(e) || is_read(e)) && e.length != 0) {
    if (!keys.valid()) return Step::wait;  // the greeting is on its way
    far_key = keys.peek(e.rkey);
    if (far_key != nullptr && far_key->region.kind == static_cast<std::uint32_t>(MemoryKind::cuda))
      cuda = true;
  }
  bool relayed = false;
  if (cuda && !is_atomic(e)) {
    if (!(is_write(e) || is_read(e))) return fail(e, IBV_WC_LOC_PROT_ERR);  // not modelled
    if (far_key == nullptr) return refused(qp, e);
    relayed = needs_relay(qp, far_key->region);
    if (!relayed) return start_cuda(qp, e);
  }
  if (qp.send.sent != qp.send.exec) return Step::wait;  // behind copy-engine transfers
  if (relayed) {
    if (const Step s = fill_relay(qp, e); s != Step::done) return s;
  }
  if (is_write(e) && e.length == 0)
    return has_imm(e) ? (send_imm(qp, e) ? Step::done : Step::wait) : send_packets(qp, e);
  const bool local = qp.link.peer == nullptr;
  // A message that was placed directly and only lacks ring space for its immediate data.
  if (is_write(e) && e.offset == e.length && e.length != 0 && !e.no_direct)
    return send_imm(qp, e) ? Step::done : Step::wait;
  const bool direct =
      (is_write(e) || is_read(e)) && far_key != nullptr && !e.no_direct &&
      (local || (qp.link.peer->direct && (e.length >= qp.direct_from || nobody_looks(qp, e))));
  if (direct) return start_direct(qp, e);
  if (is_read(e) || is_atomic(e)) return request(qp, e);
  return send_packets(qp, e);
}

}  // namespace

LocalPiece local_piece(SoftQp& qp, const SendEntry& e, std::uint64_t offset) {
  if (const std::uint8_t* relay = qp.send.relay_of(e); relay != nullptr)
    return {reinterpret_cast<std::uintptr_t>(relay) + offset, e.length - offset};
  const ibv_sge* sges = qp.send.sges_of(e);
  for (int i = 0; i < e.num_sge; ++i) {
    if (offset < sges[i].length)
      return {local_address(qp, e, sges[i]) + offset, sges[i].length - offset};
    offset -= sges[i].length;
  }
  return {};
}

KeyView remote_keys(SoftQp& qp) {
  if (qp.link.peer == nullptr) return qp.hca->keys().view();
  return qp.link.peer->greeted.load(std::memory_order_acquire) ? qp.link.peer->keys : KeyView();
}

HeldKey hold_remote(SoftQp& qp, const SendEntry& e) {
  const std::uint32_t needed = needed_right(e);
  if ((qp.link.theirs->access.load(std::memory_order_relaxed) & needed) == 0) return {};
  return remote_keys(qp).hold(e.rkey, e.remote_address, e.length, needed,
                              qp.link.theirs->pd.load(std::memory_order_relaxed));
}

Step refused(SoftQp& qp, SendEntry& e) {
  PacketHeader* p = reserve_packet(qp, 0);
  if (p == nullptr) return Step::wait;
  p->op = PacketOp::violation;
  p->rkey = needed_right(e);
  publish_packet(qp, p);
  const bool of_qp =
      (qp.link.theirs->access.load(std::memory_order_relaxed) & needed_right(e)) == 0;
  return fail(e, of_qp ? IBV_WC_REM_INV_REQ_ERR : IBV_WC_REM_ACCESS_ERR);
}

bool send_imm(SoftQp& qp, SendEntry& e) {
  PacketHeader* p = reserve_packet(qp, 0);
  if (p == nullptr) return false;
  p->op = PacketOp::imm;
  p->flags = static_cast<std::uint8_t>(kFirst | kLast | kImm | solicits(e));
  p->imm = e.imm;
  p->total = static_cast<std::uint32_t>(e.length);
  publish_packet(qp, p);
  sent(qp, e);
  return true;
}

bool run_send_queue(SoftQp& qp) {
  bool moved = finish_moved(qp);
  fix_shared(qp);
  while (qp.send.exec != qp.send.tail) {
    SendEntry& e = qp.send.entry(qp.send.exec);
    // A draining queue finishes what it has begun.
    if (qp.state != IBV_QPS_RTS && !(qp.state == IBV_QPS_SQD && e.offset != 0)) break;
    const bool behind_copies = qp.send.sent != qp.send.exec;
    Step s = start(qp, e);
    if (s == Step::more) {
      ++qp.requester.copied;
      moved = true;
    }
    if (s == Step::wait || s == Step::more) break;
    if (s == Step::failed) {
      // Work before it still ends in its own way; the failure is reported in its turn.
      retire(qp);
      if (qp.send.head == qp.send.exec) enter_error(qp);
      ring_if_wanted(qp);  // the peer is told of a violation
      return true;
    }
    moved = true;
    ++qp.send.exec;
    if (!behind_copies && e.stage != Stage::moving) qp.send.sent = qp.send.exec;
  }
  retire(qp);
  ring_if_wanted(qp);
  return moved;
}

}  // namespace twinpath::soft
