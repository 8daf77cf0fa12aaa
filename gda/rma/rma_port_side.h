#pragma once
// What a context has on one port, the team's first or second: its memory registered there, a
// completion queue, and a queue pair for each of its queues.
//
// Threads: made and raised at setup; then under the context's lock.
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "gda/connect/queue_pair.h"
#include "gda/team/team_core.h"
#include "plugin/base/owned.h"

namespace twinpath::gda::rma {

class PortSide {
 public:
  struct Plan {
    std::vector<bool> used;  // by queue: its rank is spoken to
    std::uint8_t* memory = nullptr;
    std::size_t bytes = 0;
    std::uint32_t slots = 1;     // work requests of a queue, at most
    std::uint32_t receives = 0;  // of a queue pair
    std::uint32_t spare = 0;     // work requests, and receives, beside these
    QueueSettings queue;         // of which depths and rights are filled in here
  };
  static Result<std::unique_ptr<PortSide>> make(const TeamCore& team, const Rail& rail,
                                                const AdapterLimits& limits, const Plan& plan);
  ~PortSide() { stop(); }
  PortSide(const PortSide&) = delete;
  PortSide& operator=(const PortSide&) = delete;

  // What a queue pair holds; it holds as many spare ones more.
  std::uint32_t slots() const { return slots_; }
  ibv_cq* cq() const { return cq_.get(); }
  const ibv_mr& memory() const { return *mr_; }
  QueuePair* pair(std::size_t queue) const { return pairs_[queue].get(); }  // null: not used
  // Nothing more is read from or written to memory here.
  void stop();

 private:
  explicit PortSide(const Rail& rail) : rail_(rail) {}
  Status register_memory(const TeamCore& team, const Plan& plan);
  Status make_pairs(const TeamCore& team, const AdapterLimits& limits, const Plan& plan);

  const Rail& rail_;
  std::uint32_t slots_ = 0;
  // What the adapter uses goes after what uses the adapter.
  Owned<ibv_mr> mr_;
  Owned<ibv_cq> cq_;
  std::vector<std::unique_ptr<QueuePair>> pairs_;
};

}  // namespace twinpath::gda::rma
