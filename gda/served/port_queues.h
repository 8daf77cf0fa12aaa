#pragma once
// What a context has on one port, the team's first or second: its tables registered there, a
// completion queue, and a queue pair for each of its main queues.
//
// Threads: made and connected at setup; the engine's thread posts and polls.
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "gda/context/context_memory.h"
#include "gda/team/gin_core.h"

namespace twinpath::gda {

class PortQueues {
 public:
  struct Plan {
    std::vector<bool> used;      // by rank: spoken to
    std::uint32_t receives = 0;  // of a queue pair
    std::uint32_t spare = 0;     // further work requests of a queue pair that are no kernel's
    QueueSettings queue;         // of which depths and rights are filled in here
  };
  struct Where {
    const Rail& rail;
    const AdapterLimits& limits;
  };
  static Result<std::unique_ptr<PortQueues>> make(const GinCore& core, const Where& where,
                                                  const ContextShape& shape,
                                                  const ContextMemory& memory, const Plan& plan);
  PortQueues(const PortQueues&) = delete;
  PortQueues& operator=(const PortQueues&) = delete;

  // Work requests of a queue pair that are a kernel's; it has one more, for the liveness probe.
  std::uint32_t slots() const { return slots_; }
  std::size_t size() const { return pairs_.size(); }  // pairs
  ibv_cq* cq() const { return cq_.get(); }
  const ibv_mr& tables() const { return *tables_; }
  // Nothing comes over that queue pair any more, nor goes.
  void stop(std::size_t p) const;
  // A queue pair made anew, and its far end where it is one to oneself.  It has a number of its
  // own, so what is late for the one before does not come to it.
  struct Renewed {  // and those of the beginning
    std::unique_ptr<QueuePair> pair, far;
    QueuePair& arrivals() const { return far != nullptr ? *far : *pair; }
    bool has(std::uint32_t qp_num) const {
      return pair != nullptr && (pair->qp()->qp_num == qp_num || arrivals().qp()->qp_num == qp_num);
    }
  };
  // With the address that the port has now.  By any thread while no other uses that pair.
  Result<Renewed> renew(std::size_t p, const GinCore& core) const;
  // Takes it in; `renewed` has the one before.
  void swap(std::size_t p, Renewed& renewed) { std::swap(pairs_[p], renewed); }
  // Likewise, beside the one in use.
  void swap_next(std::size_t p, Renewed& renewed) { std::swap(next_[p], renewed); }
  // It takes the place of the one in use, which stays here until others are made.
  void take_next(std::size_t p) { std::swap(pairs_[p], next_[p]); }
  bool owns(std::size_t p, std::uint32_t qp_num) const { return pairs_[p].has(qp_num); }
  bool owns_next(std::size_t p, std::uint32_t qp_num) const { return next_[p].has(qp_num); }
  const Rail& rail() const { return where_.rail; }
  // Null: its rank is not spoken to.
  QueuePair* pair(std::size_t p) const { return pairs_[p].pair.get(); }
  QueuePair* next(std::size_t p) const { return next_[p].pair.get(); }
  // The end of that queue pair at which its rank's words arrive here: itself, but for the queues to
  // oneself, which have far ends.
  QueuePair& arrivals(std::size_t p) const { return pairs_[p].arrivals(); }
  // `far`: of another rank's; of the own one it is here.
  Status raise(std::size_t p, const QueueEnd& far, const std::string& peer, bool here) {
    return raise(pairs_[p], far, peer, here);
  }
  Status raise_next(std::size_t p, const QueueEnd& far, const std::string& peer, bool here) {
    return raise(next_[p], far, peer, here);
  }

 private:
  explicit PortQueues(const Where& where) : where_(where) {}
  Status register_tables(const GinCore& core, const ContextMemory& memory);
  Status make_cq(const GinCore& core, const ContextShape& shape, const Plan& plan);
  Status make_pairs(const GinCore& core, const ContextShape& shape, Plan plan);
  static Status raise(Renewed& ends, const QueueEnd& far, const std::string& peer, bool here);

  const Where where_;
  QueueSettings queue_;  // of renewed ones
  std::uint32_t slots_ = 0;
  Owned<ibv_mr> tables_;
  Owned<ibv_cq> cq_;
  std::vector<Renewed> pairs_, next_;
};

// What a rank tells a peer over a queue pair, beside signals: a number as immediate data, perhaps
// behind memory written there.
struct WrittenMemory {
  ibv_sge from{};
  std::uint64_t to = 0;
  std::uint32_t rkey = 0;
};
bool post_immediate(ibv_qp* qp, std::uint64_t wr_id, std::uint32_t immediate,
                    const WrittenMemory* memory = nullptr);

}  // namespace twinpath::gda
