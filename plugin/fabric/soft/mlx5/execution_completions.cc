// Execution's completion queues: where a completion goes, and what becomes of one without a place.
#include "plugin/fabric/soft/mlx5/execution.h"
#include "plugin/fabric/soft/mlx5/memory_access.h"

namespace twinpath::soft::mlx5 {

// Whether a completion is not to be held back.
bool Execution::has_room(CompletionQueue& cq) {
  if (cq.facts.ignores_overrun || cq.facts.collapsed || cq.facts.overflowed) return true;
  return waiting(cq) < std::uint64_t{1} << cq.facts.log_entries;
}

// Completions that the program has not taken.
std::uint64_t Execution::waiting(CompletionQueue& cq) const {
  (void)follow_record(around_, cq.facts.record, 24, cq.written - cq.consumed, cq.consumed);
  return cq.written - cq.consumed;
}

// The queue pairs whose completions are lost end, too.
void Execution::overflow(CompletionQueue& cq) {
  cq.overflowed = true;
  for (auto& [number, qp] : qps_) {
    const bool runs = qp.state == State::ready_to_receive || qp.state == State::ready_to_send;
    const bool uses = qp.facts.send_cq == cq.facts.number || qp.facts.receive_cq == cq.facts.number;
    if (runs && uses && !qp.failed) fail(qp);
  }
  cq.facts.overflowed(cq.facts.number);
}

void Execution::write(CompletionQueue& cq, const Completion& completion) {
  const bool may_overflow =
      cq.facts.overflowed && !cq.facts.ignores_overrun && !cq.facts.collapsed && !cq.overflowed;
  if (may_overflow && waiting(cq) >> cq.facts.log_entries != 0) overflow(cq);
  if (cq.overflowed) return;
  const auto bytes = completion_bytes(completion, cq.written, cq.facts.log_entries);
  const std::uint64_t mask = (std::uint64_t{1} << cq.facts.log_entries) - 1;
  const std::uint64_t place = cq.facts.collapsed ? 0 : cq.written & mask;
  const std::uint64_t at =
      cq.facts.address + place * cq.facts.entry_bytes + cq.facts.entry_bytes - bytes.size();
  (void)write_entry(around_, at, bytes);  // to memory that is gone: nobody waits there
  ++cq.written;
  if (cq.facts.notify) notify(cq);
}

}  // namespace twinpath::soft::mlx5
