#pragma once
// What a GIN context has on one port: its tables registered there, and a queue pair for each of its
// main queues.
//
// Threads: see port_pairs.h; the engine drives.
#include <cstdint>
#include <memory>
#include <vector>

#include "gda/context/context_memory.h"
#include "gda/served/port_pairs.h"
#include "gda/team/gin_core.h"

namespace twinpath::gda {

class PortQueues final : public PortPairs {
 public:
  struct Plan {
    std::vector<bool> used;      // by rank: spoken to
    std::uint32_t receives = 0;  // of a queue pair
    std::uint32_t spare = 0;     // further work requests of a queue pair that are no kernel's
    QueueSettings queue;         // of which depths and rights are filled in here
  };
  static Result<std::unique_ptr<PortQueues>> make(const GinCore& core, const Where& where,
                                                  const ContextShape& shape,
                                                  const ContextMemory& memory, const Plan& plan);

  // Work requests of a queue pair that are a kernel's; it has one more, for the liveness probe.
  std::uint32_t slots() const { return slots_; }
  const ibv_mr& tables() const { return memory(); }
  Status give_receives(std::size_t p, ibv_qp* qp) const override;

 private:
  explicit PortQueues(const Where& where) : PortPairs(where) {}
  Status make_cq(const GinCore& core, const ContextShape& shape, const Plan& plan);
  Status make_pairs(const GinCore& core, const ContextShape& shape, Plan plan);

  std::uint32_t slots_ = 0;
};

}  // namespace twinpath::gda
