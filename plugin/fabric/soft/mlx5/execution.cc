#include "plugin/fabric/soft/mlx5/execution.h"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdarg>
#include <cstdio>

#include "plugin/fabric/soft/mlx5/device.h"
#include "plugin/fabric/soft/mlx5/memory_access.h"
#include "plugin/fabric/soft/solicited.h"

namespace twinpath::soft::mlx5 {
namespace {

Syndrome syndrome_of(ibv_wc_status status) {
  switch (status) {
    case IBV_WC_SUCCESS:
      return Syndrome::none;
    case IBV_WC_LOC_LEN_ERR:
      return Syndrome::local_length;
    case IBV_WC_LOC_PROT_ERR:
      return Syndrome::local_protection;
    case IBV_WC_WR_FLUSH_ERR:
      return Syndrome::flushed;
    case IBV_WC_BAD_RESP_ERR:
      return Syndrome::bad_response;
    case IBV_WC_LOC_ACCESS_ERR:
      return Syndrome::local_access;
    case IBV_WC_REM_INV_REQ_ERR:
      return Syndrome::remote_invalid_request;
    case IBV_WC_REM_ACCESS_ERR:
      return Syndrome::remote_access;
    case IBV_WC_REM_OP_ERR:
      return Syndrome::remote_operation;
    case IBV_WC_RETRY_EXC_ERR:
      return Syndrome::transport_retry;
    case IBV_WC_RNR_RETRY_EXC_ERR:
      return Syndrome::receiver_not_ready;
    case IBV_WC_REM_ABORT_ERR:
      return Syndrome::remote_aborted;
    default:
      return Syndrome::local_operation;
  }
}

// Of work that the software HCA does not take (carrier.h).
Syndrome refused_post(int why) {
  if (why == EBADMSG) return Syndrome::remote_invalid_request;
  return why == EMSGSIZE ? Syndrome::local_length : Syndrome::local_operation;
}

CompletionKind receive_kind(const ibv_wc& wc) {
  if (wc.status != IBV_WC_SUCCESS) return CompletionKind::responder_error;
  if (wc.opcode == IBV_WC_RECV_RDMA_WITH_IMM) return CompletionKind::write_immediate;
  return (wc.wc_flags & IBV_WC_WITH_IMM) != 0 ? CompletionKind::send_immediate
                                              : CompletionKind::send;
}

}  // namespace

void Execution::say(const char* format, ...) const {
  if (around_.say == nullptr) return;
  char line[256];
  va_list arguments;
  va_start(arguments, format);
  (void)std::vsnprintf(line, sizeof line, format, arguments);
  va_end(arguments);
  around_.say(line);
}

CompletionQueue* Execution::find_cq(std::uint32_t number) {
  auto it = cqs_.find(number);
  return it == cqs_.end() ? nullptr : &it->second;
}

bool Execution::fetch(QueuePair& qp) {
  const bool runs = qp.state == State::ready_to_send || qp.failed;
  bool moved = false;
  while (runs && qp.fetched < qp.rung) {
    if (!qp.pending.empty() && !qp.pending.back().done &&
        qp.pending.back().work.operation == Operation::wait)
      break;  // nothing overtakes it
    if (!qp.failed && !qp.pending.empty() && qp.pending.back().done &&
        qp.pending.back().syndrome != Syndrome::none)
      break;  // the queue ends there, when those before it have completed
    const std::uint64_t place = qp.fetched % qp.facts.send_blocks;
    std::vector<std::uint8_t> bytes(kBlockBytes);
    Pending entry;
    entry.index = qp.fetched;
    bool read =
        read_memory(around_, qp.facts.sends + place * kBlockBytes, bytes.data(), bytes.size());
    const std::uint64_t blocks =
        read ? std::min<std::uint64_t>(blocks_of(bytes), qp.rung - qp.fetched) : 1;
    for (std::uint64_t i = 1; read && i < blocks; ++i) {  // it may wrap
      bytes.resize((i + 1) * kBlockBytes);
      const std::uint64_t next = (place + i) % qp.facts.send_blocks;
      read = read_memory(around_, qp.facts.sends + next * kBlockBytes,
                         bytes.data() + i * kBlockBytes, kBlockBytes);
    }
    const Defect defect =
        read ? read_work(bytes, qp.carrier->number(), qp.fetched, qp.facts.service, entry.work)
             : Defect::size;
    if (qp.failed) {
      entry.done = true;
      entry.syndrome = Syndrome::flushed;
    } else if (!read || defect != Defect::none) {
      say("queue pair 0x%x, entry %llu: %s", qp.carrier->number(),
          static_cast<unsigned long long>(qp.fetched),
          read ? text_of(defect) : "its memory cannot be read");
      entry.done = true;
      entry.syndrome = Syndrome::local_operation;
    } else if (entry.work.operation == Operation::nop || qp.facts.service != Service::reliable) {
      entry.done = true;
      entry.syndrome = carry_out(qp, entry.work);
    } else if (entry.work.operation != Operation::wait && entry.work.operation != Operation::dump) {
      const int why = qp.carrier->post(entry.work, qp.fetched);
      if (why == ENOMEM) break;  // full: again when something has completed
      if (why != 0) {
        entry.done = true;
        entry.syndrome = refused_post(why);
      }
    }
    qp.fetched += blocks;
    qp.pending.push_back(std::move(entry));
    moved = true;
  }
  return moved;
}

// What needs no queue pair of the software HCA, and is done at once.
Syndrome Execution::carry_out(const QueuePair& qp, const Work& work) {
  if (work.operation == Operation::nop) return Syndrome::none;
  if (qp.facts.service == Service::key_changes)
    return around_.change_key ? around_.change_key(work.immediate, work.inline_data)
                              : Syndrome::local_operation;
  return send_datagram(qp, work);
}

bool Execution::collect(QueuePair& qp) {
  if (qp.facts.service != Service::reliable) return false;
  bool moved = false;
  CompletionQueue* const receive_cq = find_cq(qp.facts.receive_cq);
  while (receive_cq == nullptr || receive_cq->has_room()) {
    ibv_wc wc{};
    if (!qp.carrier->poll(wc)) break;
    moved = true;
    if ((wc.wr_id & Carrier::kReceive) == 0) {
      for (Pending& entry : qp.pending) {
        if (entry.index != wc.wr_id) continue;
        entry.done = true;
        entry.syndrome = syndrome_of(wc.status);
        entry.bytes = wc.byte_len;
        break;
      }
      continue;
    }
    if (receive_cq == nullptr || (stop_ && wc.status != IBV_WC_SUCCESS)) continue;
    // A receive that is flushed stands behind the send that ended the queue.
    if (wc.status != IBV_WC_SUCCESS) (void)retire(qp);
    Completion c;
    c.kind = receive_kind(wc);
    c.qpn = qp.carrier->number();
    c.index = static_cast<std::uint16_t>(wc.wr_id);
    c.bytes = wc.byte_len;
    c.immediate = __builtin_bswap32(wc.imm_data);
    c.user_index = qp.facts.user_index;
    c.syndrome = syndrome_of(wc.status);
    c.solicited = wc.vendor_err == kWasSolicited;
    complete(*receive_cq, c);
  }
  return moved;
}

void Execution::look_at_wait(const QueuePair& qp, Pending& entry) {
  const CompletionQueue* const awaited = find_cq(entry.work.wait_cqn);
  // Its queue has a completion for each entry of its sender, counted as these are.
  const bool came = awaited != nullptr && awaited->written() != 0 &&
                    static_cast<std::int32_t>(static_cast<std::uint32_t>(
                        awaited->written() - 1 - entry.work.wait_index)) >= 0;
  entry.done = came || qp.failed;
  entry.syndrome = came ? Syndrome::none : Syndrome::flushed;
}

// It reads its own memory when what comes before it is done: a read does not pass what the adapter
// has written there.
void Execution::look_at_dump(const QueuePair& qp, Pending& entry) {
  int why = qp.failed ? ECANCELED : 0;
  for (const Piece& piece : entry.work.pieces) {
    if (why != 0 || around_.push_by_reading == nullptr) break;
    why = around_.push_by_reading(pds_.at(qp.facts.pd), piece.address, piece.bytes, piece.key);
  }
  entry.done = why != EAGAIN;
  if (entry.done && why != 0)
    entry.syndrome = qp.failed ? Syndrome::flushed : Syndrome::local_protection;
}

// Completions in the order of the queue.
bool Execution::retire(QueuePair& qp) {
  bool moved = false;
  while (!qp.pending.empty()) {
    Pending& entry = qp.pending.front();
    if (!entry.done && entry.work.operation == Operation::wait) look_at_wait(qp, entry);
    if (!entry.done && entry.work.operation == Operation::dump) look_at_dump(qp, entry);
    if (!entry.done) break;
    CompletionQueue* const cq = find_cq(qp.facts.send_cq);
    const bool error = entry.syndrome != Syndrome::none;
    if (cq != nullptr && (error || entry.work.completion)) {
      if (!cq->has_room()) break;
      Completion c;
      c.kind = error ? CompletionKind::requester_error : CompletionKind::requester;
      c.qpn = qp.carrier->number();
      c.opcode = static_cast<std::uint8_t>(entry.work.operation);
      c.index = static_cast<std::uint16_t>(entry.index);
      c.bytes = entry.bytes;
      c.user_index = qp.facts.user_index;
      c.syndrome = entry.syndrome;
      complete(*cq, c);
    }
    if (error && !qp.failed) fail(qp);
    qp.pending.pop_front();
    moved = true;
  }
  return moved;
}

// The queue pairs whose completions are lost end, too.
void Execution::complete(CompletionQueue& cq, const Completion& completion) {
  if (cq.write(completion)) return;
  const CompletionQueueFacts& facts = cq.facts();
  for (auto& [number, qp] : qps_) {
    const bool runs = qp.state == State::ready_to_receive || qp.state == State::ready_to_send;
    const bool uses = qp.facts.send_cq == facts.number || qp.facts.receive_cq == facts.number;
    if (runs && uses && !qp.failed) fail(qp);
  }
  facts.overflowed(facts.number);
}

// What is behind the first error is not carried out.
void Execution::fail(QueuePair& qp) {
  qp.failed = true;
  if (qp.facts.service != Service::reliable) return;
  (void)qp.carrier->change(State::error, {});
}

void Execution::end() {
  std::lock_guard hold(lock_);
  stop_ = true;
  for (auto& [number, qp] : qps_) {
    if (qp.facts.service == Service::reliable) (void)qp.carrier->change(State::error, {});
    while (collect(qp)) {
    }
  }
}

bool Execution::turn() {
  std::lock_guard hold(lock_);
  if (stop_) return false;
  bool moved = look_at_doorbells();
  for (auto& [number, shared] : srqs_) {
    if (shared.written) moved |= shared.written->look(around_);
  }
  moved |= take_datagrams();
  for (auto& [number, qp] : qps_) {
    moved |= post_receives(qp);
    moved |= fetch(qp);
    moved |= collect(qp);
    moved |= retire(qp);
  }
  constexpr int kMostBusyTurns = 8;
  if (!moved || ++busy_turns_ >= kMostBusyTurns) {
    busy_turns_ = 0;
    moved |= look_at_unnamed();
  }
  return moved;
}

void Execution::run() {
  constexpr int kPatience = 200;  // turns without work before it sleeps between them
  int idle = 0;
  for (;;) {
    {
      std::unique_lock hold(lock_);
      work_.wait(hold, [this] { return stop_ || !qps_.empty(); });
      if (stop_) return;
    }
    idle = turn() ? 0 : idle + 1;
    if (idle < kPatience) {
      std::this_thread::yield();
    } else {
      std::this_thread::sleep_for(std::chrono::microseconds(50));
    }
  }
}

}  // namespace twinpath::soft::mlx5
