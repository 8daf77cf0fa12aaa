// Posting: a work request is checked, copied into its queue and begun in the caller's thread.
#include <algorithm>
#include <cerrno>
#include <cstring>

#include "plugin/base/clock.h"
#include "plugin/fabric/soft/control.h"
#include "plugin/fabric/soft/hca.h"
#include "plugin/fabric/soft/masked_atomic.h"

namespace twinpath::soft {
namespace {

// Whether the send queue has room, after taking back what polled completions have set free.
bool make_room(SoftQp& qp) {
  SoftCq& cq = *soft(qp.send_cq);
  std::lock_guard hold(cq.lock);
  qp.send.take_back(cq.head);
  return qp.send.has_room();
}

// errno value, 0 = queued.  `word`: bytes that an atomic brings back.
int enqueue(SoftQp& qp, const ibv_send_wr& wr, std::uint64_t word = 8) {
  if (!qp.send.has_room() && !make_room(qp)) return ENOMEM;
  if (wr.num_sge < 0 || static_cast<std::uint32_t>(wr.num_sge) > qp.cap.max_send_sge) return EINVAL;
  const Personality& device = like(qp.context);
  const bool atomic =
      wr.opcode == IBV_WR_ATOMIC_CMP_AND_SWP || wr.opcode == IBV_WR_ATOMIC_FETCH_AND_ADD;
  if (atomic && device.work.atomics == IBV_ATOMIC_NONE) return EINVAL;
  if (wr.opcode == IBV_WR_RDMA_READ &&
      static_cast<std::uint32_t>(wr.num_sge) > device.queues.max_read_sge)
    return EINVAL;
  switch (wr.opcode) {
    case IBV_WR_RDMA_WRITE:
    case IBV_WR_RDMA_WRITE_WITH_IMM:
    case IBV_WR_SEND:
    case IBV_WR_SEND_WITH_IMM:
    case IBV_WR_RDMA_READ:
    case IBV_WR_ATOMIC_CMP_AND_SWP:
    case IBV_WR_ATOMIC_FETCH_AND_ADD:
      break;
    default:
      return EOPNOTSUPP;
  }
  const bool inlined =
      (wr.send_flags & IBV_SEND_INLINE) != 0 && device.queues.inline_limit != InlineLimit::ignore;
  if (inlined && (atomic || wr.opcode == IBV_WR_RDMA_READ)) return EINVAL;

  SendEntry& e = qp.send.entry(qp.send.tail);
  std::memset(&e, 0, sizeof e);
  e.wr_id = wr.wr_id;
  e.opcode = wr.opcode;
  e.flags = inlined ? wr.send_flags : wr.send_flags & ~unsigned{IBV_SEND_INLINE};
  e.num_sge = static_cast<std::uint16_t>(wr.num_sge);
  e.imm = wr.imm_data;
  for (int i = 0; i < wr.num_sge; ++i) e.length += wr.sg_list[i].length;
  if (e.length > device.ports.largest_message()) [[unlikely]]
    return EINVAL;
  if (atomic) {
    if (e.length != word || (wr.wr.atomic.remote_addr & 7) != 0) return EINVAL;
    e.remote_address = wr.wr.atomic.remote_addr;
    e.rkey = wr.wr.atomic.rkey;
    e.operand[0] = wr.wr.atomic.compare_add;
    // Of an add it means nothing, and programs leave what was there.
    if (wr.opcode == IBV_WR_ATOMIC_CMP_AND_SWP) e.operand[1] = wr.wr.atomic.swap;
  } else {
    e.remote_address = wr.wr.rdma.remote_addr;
    e.rkey = wr.wr.rdma.rkey;
  }
  ibv_sge* sges = qp.send.sges_of(e);
  if (inlined) {
    if (e.length > qp.cap.max_inline_data) return EINVAL;
    std::uint8_t* to = qp.send.inline_of(e);
    sges[0] = {reinterpret_cast<std::uint64_t>(to), static_cast<std::uint32_t>(e.length), 0};
    for (int i = 0; i < wr.num_sge; ++i) {
      std::memcpy(to, reinterpret_cast<const void*>(wr.sg_list[i].addr), wr.sg_list[i].length);
      to += wr.sg_list[i].length;
    }
    e.num_sge = e.length != 0 ? 1 : 0;
  } else if (wr.num_sge != 0) {
    std::memcpy(sges, wr.sg_list, sizeof(ibv_sge) * static_cast<std::size_t>(wr.num_sge));
  }
  if (qp.hca->faults().any()) {
    if (qp.hca->faults().next_send_fails()) e.status = IBV_WC_RETRY_EXC_ERR;
    if (qp.hca->faults().delay_us() != 0)
      e.not_before = now_ns() + qp.hca->faults().delay_us() * 1000;
  }
  if (SoftDevice& d = *qp.soft_context->soft_device; d.limited.load(std::memory_order_relaxed))
      [[unlikely]]
    e.not_before = std::max(e.not_before, d.rates[qp.attr.port_num].left_at(e.length, now_ns()));
  ++qp.send.tail;
  return 0;
}

// Whether the program knows that the queue pair is in error: it has put it there, or polled the
// completion that says so.
bool knows_of_error(SoftQp& qp) {
  if (qp.attr.qp_state == IBV_QPS_ERR) return true;
  if (qp.send.head == 0) return false;
  const SendEntry& last = qp.send.entry(qp.send.head - 1);
  SoftCq& cq = *soft(qp.send_cq);
  std::lock_guard hold(cq.lock);
  return last.status != IBV_WC_SUCCESS && last.completion < cq.head;
}

// errno value: whether it takes requests at all.  Providers that refuse them in error do so by the
// state that the library keeps, which changes when the program learns of it.
int check_state(SoftQp& qp) {
  if (qp.state == IBV_QPS_ERR) {
    const int refusal = like(qp.context).work.post_in_error;
    return refusal != 0 && knows_of_error(qp) ? refusal : 0;
  }
  return qp.state == IBV_QPS_RTS || qp.state == IBV_QPS_SQD || qp.state == IBV_QPS_SQE ? 0 : EINVAL;
}

// What post_send and post_recv of the device return for an errno value.
int answer(const SoftQp& qp, int error) { return like(qp.context).work.negative ? -error : error; }

void begin(SoftQp& qp) {
  if (qp.state == IBV_QPS_ERR) {
    retire(qp);  // flushed at once
  } else {
    (void)run_send_queue(qp);
  }
  rouse_if_asleep(qp);
}

}  // namespace

int post_send(ibv_qp* q, ibv_send_wr* wr, ibv_send_wr** bad) {
  SoftQp& qp = *soft(q);
  std::lock_guard hold(qp.lock);
  int rc = check_state(qp);
  if (rc != 0) {
    *bad = wr;
    return answer(qp, rc);
  }
  for (; wr != nullptr; wr = wr->next) {
    if ((rc = enqueue(qp, *wr)) != 0) {
      *bad = wr;
      break;
    }
  }
  begin(qp);
  return answer(qp, rc);
}

int post_masked_atomic(ibv_qp* q, const MaskedAtomic& atomic) {
  const std::uint64_t bytes = atomic.to.length;
  if ((bytes != 4 && bytes != 8) || atomic.remote_address % bytes != 0) return EINVAL;
  // A word of 4 bytes is the lower or the upper half of one of 8 (little-endian, as the host).
  const std::uint64_t part = atomic.remote_address % sizeof(std::uint64_t);
  const std::uint64_t shift = 8 * part;
  const std::uint64_t whole = bytes == 8 ? ~std::uint64_t{0} : std::uint64_t{0xffffffff} << shift;
  const auto placed = [&](std::uint64_t value) { return value << shift & whole; };
  ibv_sge to = atomic.to;
  ibv_send_wr wr{};
  wr.wr_id = atomic.wr_id;
  wr.sg_list = &to;
  wr.num_sge = 1;
  wr.send_flags = atomic.flags;
  wr.opcode = atomic.compare ? IBV_WR_ATOMIC_CMP_AND_SWP : IBV_WR_ATOMIC_FETCH_AND_ADD;
  wr.wr.atomic.remote_addr = atomic.remote_address - part;
  wr.wr.atomic.rkey = atomic.rkey;
  SoftQp& qp = *soft(q);
  std::lock_guard hold(qp.lock);
  if (const int rc = check_state(qp); rc != 0) return rc;
  if (const int rc = enqueue(qp, wr, bytes); rc != 0) return rc;
  SendEntry& e = qp.send.entry(qp.send.tail - 1);
  e.part = static_cast<std::uint8_t>(part);
  if (atomic.compare) {
    e.operand[0] = placed(atomic.compare_with);
    e.operand[1] = placed(atomic.add_or_swap);
    e.operand[2] = ~placed(atomic.compare_mask);
    e.operand[3] = ~placed(atomic.mask);
  } else {
    e.operand[0] = placed(atomic.add_or_swap);
    // Nothing is carried into the other half either.
    e.operand[1] = placed(atomic.mask) | (bytes == 4 ? placed(0x80000000) : 0);
  }
  begin(qp);
  return 0;
}

namespace {

int check_receive(SoftQp& qp, const ibv_recv_wr& wr) {
  if (qp.state == IBV_QPS_ERR) {
    if (const int error = check_state(qp); error != 0) return error;
  }
  if (qp.state == IBV_QPS_RESET || wr.num_sge < 0 ||
      static_cast<std::uint32_t>(wr.num_sge) > qp.cap.max_recv_sge)
    return EINVAL;
  if (qp.receive.count() < qp.cap.max_recv_wr) return 0;
  return qp.srq != nullptr ? EINVAL : ENOMEM;
}

}  // namespace

int post_recv(ibv_qp* q, ibv_recv_wr* wr, ibv_recv_wr** bad) {
  SoftQp& qp = *soft(q);
  std::lock_guard hold(qp.lock);
  for (; wr != nullptr; wr = wr->next) {
    if (const int rc = check_receive(qp, *wr); rc != 0) {
      *bad = wr;
      return answer(qp, rc);
    }
    qp.receive.push({wr->wr_id, wr->num_sge}, wr->sg_list);
  }
  if (qp.state == IBV_QPS_ERR) retire(qp);
  return 0;
}

}  // namespace twinpath::soft
