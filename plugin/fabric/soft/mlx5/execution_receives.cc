// Execution's receives: those that programs have written into queue pairs' own queues.
#include "plugin/fabric/soft/mlx5/execution.h"
#include "plugin/fabric/soft/mlx5/memory_access.h"

namespace twinpath::soft::mlx5 {
namespace {

constexpr std::uint32_t kReceiveWord = 0;  // of a queue pair's record

}  // namespace

bool Execution::look_at_receives(QueuePair& qp) {
  std::uint32_t told = 0;
  if (!read_record(around_, qp.facts.record + kReceiveWord, told)) return false;
  const auto index = extend_index(qp.receives_told, told & 0xffff, 16, qp.facts.receive_entries);
  if (index) qp.receives_told = *index;
  return true;
}

bool Execution::post_receives(QueuePair& qp) {
  if (qp.facts.receive_entries == 0 || !qp.reachable || qp.state == State::reset) return false;
  if (!look_at_receives(qp)) return false;
  if (qp.facts.service != Service::reliable) return flush_receives(qp);
  bool moved = false;
  for (; qp.receives_posted < qp.receives_told; ++qp.receives_posted) {
    const std::uint64_t place = qp.receives_posted % qp.facts.receive_entries;
    std::vector<std::uint8_t> bytes(qp.facts.receive_bytes);
    if (!read_memory(around_, qp.facts.receives + place * qp.facts.receive_bytes, bytes.data(),
                     bytes.size()))
      break;
    const std::vector<Piece> pieces = read_receive(bytes);
    if (qp.carrier->post_receive(pieces, qp.receives_posted) != 0) break;
    moved = true;
  }
  return moved;
}

// Of datagrams: what has not come when the queue pair is in error.
bool Execution::flush_receives(QueuePair& qp) {
  CompletionQueue* const cq = find_cq(qp.facts.receive_cq);
  bool moved = false;
  while (qp.failed && cq != nullptr && qp.receives_posted < qp.receives_told && has_room(*cq)) {
    Completion c;
    c.kind = CompletionKind::responder_error;
    c.qpn = qp.carrier->number();
    c.index = static_cast<std::uint16_t>(qp.receives_posted++);
    c.user_index = qp.facts.user_index;
    c.syndrome = Syndrome::flushed;
    write(*cq, c);
    moved = true;
  }
  return moved;
}

}  // namespace twinpath::soft::mlx5
