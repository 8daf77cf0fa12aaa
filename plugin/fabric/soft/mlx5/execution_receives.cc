// Execution's receives: those that programs have written into queue pairs' own queues.
#include "plugin/fabric/soft/mlx5/execution.h"
#include "plugin/fabric/soft/mlx5/memory_access.h"

namespace twinpath::soft::mlx5 {
namespace {

constexpr std::uint32_t kReceiveWord = 0;  // of a queue pair's record

// The entry of that index in the queue pair's own queue.
std::optional<std::vector<Piece>> read_entry(const Surroundings& around, const QueuePairFacts& qp,
                                             std::uint64_t index) {
  std::vector<std::uint8_t> entry(qp.receive_bytes);
  const std::uint64_t place = index % qp.receive_entries;
  if (!read_memory(around, qp.receives + place * entry.size(), entry.data(), entry.size()))
    return std::nullopt;
  return read_receive(entry);
}

}  // namespace

bool Execution::look_at_receives(QueuePair& qp) {
  return follow_record(around_, qp.facts.record + kReceiveWord, 16, qp.facts.receive_entries,
                       qp.receives_told);
}

// The queue pair's own, or one of those that it shares.
std::optional<Execution::Receive> Execution::take_receive(QueuePair& qp) {
  if (auto it = srqs_.find(qp.facts.srq); it != srqs_.end()) {
    std::uint64_t id = 0;
    std::vector<ibv_sge> list;
    if (around_.take_receive == nullptr || !around_.take_receive(it->second.srq, id, list))
      return std::nullopt;
    Receive taken{static_cast<std::uint16_t>(id), {}};
    for (const ibv_sge& piece : list)
      taken.pieces.push_back({piece.addr, piece.length, piece.lkey});
    return taken;
  }
  (void)look_at_receives(qp);
  if (qp.receives_posted == qp.receives_told) return std::nullopt;
  auto pieces = read_entry(around_, qp.facts, qp.receives_posted);
  if (!pieces) return std::nullopt;
  return Receive{static_cast<std::uint16_t>(qp.receives_posted++), std::move(*pieces)};
}

bool Execution::post_receives(QueuePair& qp) {
  if (qp.facts.receive_entries == 0 || !qp.reachable || qp.state == State::reset) return false;
  if (!look_at_receives(qp)) return false;
  if (qp.facts.service != Service::reliable) return flush_receives(qp);
  bool moved = false;
  for (; qp.receives_posted < qp.receives_told; ++qp.receives_posted) {
    const auto pieces = read_entry(around_, qp.facts, qp.receives_posted);
    if (!pieces || qp.carrier->post_receive(*pieces, qp.receives_posted) != 0) break;
    moved = true;
  }
  return moved;
}

// Of datagrams: what has not come when the queue pair is in error.
bool Execution::flush_receives(QueuePair& qp) {
  CompletionQueue* const cq = find_cq(qp.facts.receive_cq);
  bool moved = false;
  while (qp.failed && cq != nullptr && qp.receives_posted < qp.receives_told && cq->has_room()) {
    Completion c;
    c.kind = CompletionKind::responder_error;
    c.qpn = qp.carrier->number();
    c.index = static_cast<std::uint16_t>(qp.receives_posted++);
    c.user_index = qp.facts.user_index;
    c.syndrome = Syndrome::flushed;
    complete(*cq, c);
    moved = true;
  }
  return moved;
}

}  // namespace twinpath::soft::mlx5
