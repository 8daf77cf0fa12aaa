// The responder half of a QP: executes the peer's packets in order.  What it may not do it
// refuses with a NAK and the QP's error state, as the IB specification wants (vol. 1, 9.9.3).
#include <algorithm>
#include <atomic>
#include <cstring>

#include "plugin/fabric/soft/hca.h"
#include "plugin/fabric/soft/ordered_write.h"
#include "plugin/fabric/soft/requester.h"
#include "plugin/fabric/soft/solicited.h"

namespace twinpath::soft {
namespace {

enum class Outcome { done, wait, more, refused };

Outcome refuse(SoftQp& qp, ibv_wc_status peer_sees, ibv_event_type event) {
  qp.link.mine->nak.store(peer_sees, std::memory_order_release);
  enter_error(qp);
  async_event(qp, event);
  return Outcome::refused;
}

// A request that the QP's rights do not have is invalid; one that the key does not allow is an
// access error (IB specification vol. 1, 9.9.3).
Outcome refuse_access(SoftQp& qp, std::uint32_t access) {
  const bool of_qp = (qp.attr.qp_access_flags & access) == 0;
  return refuse(qp, of_qp ? IBV_WC_REM_INV_REQ_ERR : IBV_WC_REM_ACCESS_ERR,
                of_qp ? IBV_EVENT_QP_REQ_ERR : IBV_EVENT_QP_ACCESS_ERR);
}

void acknowledge(SoftQp& qp) {
  qp.link.mine->acked.store(qp.link.mine->acked.load(std::memory_order_relaxed) + 1,
                            std::memory_order_release);
}

// The receive WQE that the running message consumes, or null: receiver not ready.
RecvEntry* receive_entry(SoftQp& qp) {
  if (!qp.receive.is_empty() || (qp.srq != nullptr && take_shared(qp))) {
    if (qp.responder.rnr_reported) {
      qp.link.mine->rnr.store(0, std::memory_order_release);
      qp.responder.rnr_reported = false;
    }
    return &qp.receive.first();
  }
  if (!qp.responder.rnr_reported) {
    qp.link.mine->rnr.store(1, std::memory_order_release);
    qp.responder.rnr_reported = true;
  }
  return nullptr;
}

void complete_receive(SoftQp& qp, ibv_wc_opcode opcode, const PacketHeader& p,
                      ibv_wc_status status) {
  ibv_wc wc{};
  wc.wr_id = qp.receive.first().wr_id;
  wc.status = status;
  wc.opcode = opcode;
  wc.byte_len = p.total;
  wc.qp_num = qp.qp_num;
  wc.src_qp = qp.attr.dest_qp_num;
  if ((p.flags & kSolicited) != 0 && status == IBV_WC_SUCCESS) wc.vendor_err = kWasSolicited;
  if ((p.flags & kImm) != 0) {
    wc.wc_flags = IBV_WC_WITH_IMM;
    wc.imm_data = p.imm;
  }
  ++qp.receive.head;
  push_completion(*soft(qp.recv_cq), wc, (p.flags & kSolicited) != 0);
}

Outcome on_write(SoftQp& qp, const PacketHeader& p, const std::uint8_t* payload) {
  const bool with_imm = (p.flags & kImm) != 0;
  if (with_imm && receive_entry(qp) == nullptr) return Outcome::wait;
  if (p.length != 0) {
    const HeldKey e = hold_target(qp, p.rkey, p.address, p.length, IBV_ACCESS_REMOTE_WRITE);
    if (!e) return refuse_access(qp, IBV_ACCESS_REMOTE_WRITE);
    write_ordered(reinterpret_cast<void*>(e.base + (p.address - e.iova)), payload, p.length);
    KeyView::drop(e);
  }
  if ((p.flags & kLast) != 0) {
    if (with_imm) complete_receive(qp, IBV_WC_RECV_RDMA_WITH_IMM, p, IBV_WC_SUCCESS);
    acknowledge(qp);
  }
  return Outcome::done;
}

Outcome on_send(SoftQp& qp, const PacketHeader& p, const std::uint8_t* payload) {
  RecvEntry* r = receive_entry(qp);
  if (r == nullptr) return Outcome::wait;
  const ibv_sge* sges = qp.receive.first_sges();
  if (!scatter(qp, qp.srq != nullptr ? qp.srq->pd : qp.pd, sges, r->num_sge,
               qp.responder.send_offset, payload, p.length)) {
    std::uint64_t room = 0;
    for (int i = 0; i < r->num_sge; ++i) room += sges[i].length;
    const bool too_long = qp.responder.send_offset + p.length > room;
    complete_receive(qp, IBV_WC_RECV, p, too_long ? IBV_WC_LOC_LEN_ERR : IBV_WC_LOC_PROT_ERR);
    return refuse(qp, too_long ? IBV_WC_REM_INV_REQ_ERR : IBV_WC_REM_OP_ERR, IBV_EVENT_QP_FATAL);
  }
  qp.responder.send_offset += p.length;
  if ((p.flags & kLast) != 0) {
    qp.responder.send_offset = 0;
    complete_receive(qp, IBV_WC_RECV, p, IBV_WC_SUCCESS);
    acknowledge(qp);
  }
  return Outcome::done;
}

Outcome on_read(SoftQp& qp, const PacketHeader& p) {
  if (p.length == 0 && (qp.attr.qp_access_flags & IBV_ACCESS_REMOTE_READ) != 0) {
    acknowledge(qp);  // no bytes, no key to check
    return Outcome::done;
  }
  const HeldKey e = hold_target(qp, p.rkey, p.address, p.length, IBV_ACCESS_REMOTE_READ);
  if (!e) return refuse_access(qp, IBV_ACCESS_REMOTE_READ);
  Outcome outcome = Outcome::done;
  while (qp.responder.read_offset < p.length) {
    auto n = static_cast<std::uint32_t>(
        std::min<std::uint64_t>(kPacketPayload, p.length - qp.responder.read_offset));
    PacketHeader* out = reserve_packet(qp, n);
    if (out == nullptr) {
      outcome = Outcome::wait;
      break;
    }
    out->op = PacketOp::read_response;
    out->length = n;
    read_ordered(
        out + 1,
        reinterpret_cast<const void*>(e.base + (p.address - e.iova) + qp.responder.read_offset), n);
    publish_packet(qp, out);
    qp.responder.read_offset += n;
  }
  KeyView::drop(e);
  if (outcome == Outcome::done) {
    qp.responder.read_offset = 0;
    acknowledge(qp);
  }
  return outcome;
}

// Puts where the entry wants it what the peer has sent for it.  False: it cannot be put there, or
// it is not what was asked for.
bool take_answer(SoftQp& qp, SendEntry& e, const PacketHeader& p, const std::uint8_t* payload) {
  if (std::uint8_t* relay = qp.send.relay_of(e); relay != nullptr) {
    if (p.length > e.length - e.received) return false;
    std::memcpy(relay + e.received, payload, p.length);
    e.received += p.length;
    return e.received != e.length || empty_relay(qp, e, fetched);
  }
  if (!is_atomic(e)) {
    if (!scatter(qp, qp.pd, qp.send.sges_of(e), e.num_sge, e.received, payload, p.length))
      return false;
    e.received += p.length;
    return true;
  }
  // A word, of which some asked for a part.  The peer may send another kind of answer, and less.
  if (p.length != sizeof(std::uint64_t)) return false;
  const std::uint8_t* const fetched = payload + e.part;
  if (lands_on_gpu(qp, e)) return place_fetched(qp, e, fetched, e.length);
  if (!scatter(qp, qp.pd, qp.send.sges_of(e), e.num_sge, 0, fetched, e.length)) return false;
  e.received = e.length;
  return true;
}

// A response to the oldest READ or atomic that still waits for bytes.
Outcome on_response(SoftQp& qp, const PacketHeader& p, const std::uint8_t* payload) {
  for (std::uint64_t i = qp.send.head; i != qp.send.exec; ++i) {
    SendEntry& e = qp.send.entry(i);
    const bool waits = is_read(e) || is_atomic(e);
    if (!waits || e.stage != Stage::sent || e.received == e.length) continue;
    if (take_answer(qp, e, p, payload)) return Outcome::done;
    e.status = IBV_WC_LOC_PROT_ERR;
    enter_error(qp);
    return Outcome::refused;
  }
  return Outcome::done;  // the WQE was flushed meanwhile
}

Outcome after(SoftQp& qp, Executed executed, std::uint32_t access) {
  switch (executed) {
    case Executed::done:
      acknowledge(qp);
      return Outcome::done;
    case Executed::wait:
      return Outcome::wait;
    case Executed::more:
      return Outcome::more;
    case Executed::refused:
      return refuse_access(qp, access);
    case Executed::failed:
      break;
  }
  return refuse(qp, IBV_WC_REM_OP_ERR, IBV_EVENT_QP_FATAL);
}

Outcome execute(SoftQp& qp, const PacketHeader& p, const std::uint8_t* payload) {
  switch (p.op) {
    case PacketOp::pad:
      return Outcome::done;
    case PacketOp::write:
      return on_write(qp, p, payload);
    case PacketOp::send:
      return on_send(qp, p, payload);
    case PacketOp::imm:
      if (receive_entry(qp) == nullptr) return Outcome::wait;
      complete_receive(qp, IBV_WC_RECV_RDMA_WITH_IMM, p, IBV_WC_SUCCESS);
      acknowledge(qp);
      return Outcome::done;
    case PacketOp::read_request:
      return on_read(qp, p);
    case PacketOp::atomic_request:
      return after(qp, execute_atomic(qp, p, payload), IBV_ACCESS_REMOTE_ATOMIC);
    case PacketOp::read_response:
    case PacketOp::atomic_response:
      return on_response(qp, p, payload);
    case PacketOp::pull:
      return after(qp, pull(qp, p, payload), IBV_ACCESS_REMOTE_WRITE);
    case PacketOp::violation:
      return refuse_access(qp, p.rkey);
  }
  return refuse(qp, IBV_WC_REM_INV_REQ_ERR, IBV_EVENT_QP_REQ_ERR);
}

// The bytes that an operation takes from its payload, whatever the header's length says.
std::uint32_t least_payload(PacketOp op) {
  if (op == PacketOp::atomic_request) return sizeof(gpu::WordOperation::operand);
  if (op == PacketOp::pull) return sizeof(PullSource);
  return op == PacketOp::atomic_response ? sizeof(std::uint64_t) : 0;
}

// The peer may write into its ring at any time: one copy of the header, and only that is checked
// and used.  False when it makes no sense.
bool read_header(const std::uint8_t* ring, std::size_t at, PacketHeader& p) {
  // A pad may be all that fits behind `at`: 16 bytes, for all sizes are multiples of that.
  p = {};
  std::memcpy(&p, ring + at, std::min(sizeof p, kRingBytes - at));
  std::atomic_signal_fence(std::memory_order_seq_cst);  // the compiler must not read it again
  if (p.bytes < 16 || p.bytes > kRingBytes - at || (p.bytes & 15) != 0) return false;
  if (p.op == PacketOp::pad) return true;
  if (p.bytes < sizeof p) return false;
  const std::size_t room = p.bytes - sizeof p;
  return least_payload(p.op) <= room && (p.op == PacketOp::read_request || p.length <= room);
}

}  // namespace

HeldKey hold_any_target(SoftQp& qp, std::uint32_t rkey, std::uint64_t address, std::uint64_t bytes,
                        std::uint32_t access) {
  if ((qp.attr.qp_access_flags & access) == 0) return {};
  return qp.hca->keys().view().hold(rkey, address, bytes, access,
                                    static_cast<SoftPd*>(qp.pd)->number);
}

HeldKey hold_target(SoftQp& qp, std::uint32_t rkey, std::uint64_t address, std::uint64_t bytes,
                    std::uint32_t access) {
  const HeldKey e = hold_any_target(qp, rkey, address, bytes, access);
  if (!e || e.kind == static_cast<std::uint32_t>(MemoryKind::host)) return e;
  KeyView::drop(e);
  return {};
}

bool scatter(SoftQp& qp, ibv_pd* of, const ibv_sge* sges, int n, std::uint64_t offset,
             const void* from, std::uint64_t bytes) {
  auto* pd = static_cast<SoftPd*>(of);
  const auto* source = static_cast<const std::uint8_t*>(from);
  for (int i = 0; i < n && bytes != 0; ++i) {
    if (offset >= sges[i].length) {
      offset -= sges[i].length;
      continue;
    }
    std::uint64_t part = std::min<std::uint64_t>(bytes, sges[i].length - offset);
    const HeldKey e = qp.hca->keys().view().hold(sges[i].lkey, sges[i].addr + offset, part,
                                                 IBV_ACCESS_LOCAL_WRITE, pd->number);
    if (!e) return false;
    const bool host = e.kind == static_cast<std::uint32_t>(MemoryKind::host);
    auto* const to = reinterpret_cast<std::uint8_t*>(e.base + (sges[i].addr + offset - e.iova));
    // Old values of atomics: queues of kernels share one word for those that nobody reads.
    if (host && part == sizeof(std::uint64_t) && reinterpret_cast<std::uintptr_t>(to) % part == 0) {
      store_word<std::uint64_t>(to, source);
    } else if (host) {
      std::memcpy(to, source, part);
    }
    KeyView::drop(e);
    if (!host) return false;
    source += part;
    bytes -= part;
    offset = 0;
  }
  return bytes == 0;
}

bool respond(SoftQp& qp) {
  if (qp.link.theirs == nullptr || qp.link.deaf || qp.link.astray_from_there()) return false;
  bool moved = false, stalled = false;
  std::uint64_t at = qp.link.mine->consumed.load(std::memory_order_relaxed);
  // Bounded per call, so that one busy QP does not starve the others of a poll.
  for (int budget = 64; budget > 0; --budget) {
    if (qp.state != IBV_QPS_RTR && qp.state != IBV_QPS_RTS && qp.state != IBV_QPS_SQD) break;
    if (qp.link.theirs->produced.load(std::memory_order_acquire) == at) break;
    PacketHeader p;
    if (!read_header(qp.link.in_ring, at % kRingBytes, p)) {
      (void)refuse(qp, IBV_WC_REM_INV_REQ_ERR, IBV_EVENT_QP_REQ_ERR);  // a broken peer
      break;
    }
    Outcome o = execute(qp, p, qp.link.in_ring + at % kRingBytes + sizeof p);
    stalled = o == Outcome::wait;
    moved = moved || o == Outcome::more;
    if (stalled || o == Outcome::more) break;
    at += p.bytes;
    qp.link.mine->consumed.store(at, std::memory_order_release);
    moved = true;
    if (o == Outcome::refused) break;
  }
  // Acknowledgements, room in the ring, and the first part of an answer that did not fit.
  if (moved || stalled) ring_if_wanted(qp);
  if (moved && qp.state == IBV_QPS_RTR && !qp.responder.established) [[unlikely]] {
    qp.responder.established = true;
    async_event(qp, IBV_EVENT_COMM_EST);
  }
  return moved;
}

}  // namespace twinpath::soft
