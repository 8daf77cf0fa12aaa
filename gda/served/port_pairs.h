#pragma once
// What a context has on one port, the team's first or second: memory registered there, a completion
// queue, and a queue pair for each of its queues, which may be made anew.  What there is beside,
// and how large, GIN's PortQueues and RMA's PortSide say.
//
// Threads: made and connected at setup; who drives the context posts and polls.
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "gda/connect/queue_pair.h"
#include "gda/served/back/loop_pair.h"
#include "gda/team/team_core.h"
#include "plugin/base/owned.h"

namespace twinpath::gda {

class PortPairs {
 public:
  struct Where {
    const Rail& rail;
    const AdapterLimits& limits;
  };
  PortPairs(const PortPairs&) = delete;
  PortPairs& operator=(const PortPairs&) = delete;

  std::size_t size() const { return pairs_.size(); }
  ibv_cq* cq() const { return cq_.get(); }
  const ibv_mr& memory() const { return *memory_; }
  const Rail& rail() const { return where_.rail; }
  // Nothing comes over that queue pair any more, nor goes, and what came is in host memory
  // (second_port.h).  False: the adapter has not confirmed that.
  bool stop(std::size_t p) const;
  // A queue pair made anew, and its far end where it is one to oneself and has one.  It has a
  // number of its own, so what is late for the one before does not come to it.
  struct Renewed {  // and those of the beginning
    std::unique_ptr<QueuePair> pair, far;
    QueuePair& arrivals() const { return far != nullptr ? *far : *pair; }
    bool has(std::uint32_t qp_num) const {
      return pair != nullptr && (pair->qp()->qp_num == qp_num || arrivals().qp()->qp_num == qp_num);
    }
  };
  // Receives for signals, and one for the number that comes first (port_moves.h).
  virtual Status give_receives(std::size_t p, ibv_qp* qp) const = 0;
  // With the address that the port has now, and its receives.  By any thread while no other uses
  // that pair.
  Result<Renewed> renew(std::size_t p, const TeamCore& core) const;
  // Takes it in; `renewed` has the one before.
  void swap(std::size_t p, Renewed& renewed) { std::swap(pairs_[p], renewed); }
  // Likewise, beside the one in use.
  void swap_next(std::size_t p, Renewed& renewed) { std::swap(next_[p], renewed); }
  // It takes the place of the one in use, which stays here until others are made.
  void take_next(std::size_t p) { std::swap(pairs_[p], next_[p]); }
  bool owns(std::size_t p, std::uint32_t qp_num) const { return pairs_[p].has(qp_num); }
  bool owns_next(std::size_t p, std::uint32_t qp_num) const { return next_[p].has(qp_num); }
  // Null: its rank is not spoken to.
  QueuePair* pair(std::size_t p) const { return pairs_[p].pair.get(); }
  QueuePair* next(std::size_t p) const { return next_[p].pair.get(); }
  // The end of that queue pair at which its rank's words arrive here: itself, but for those to
  // oneself that have far ends.
  QueuePair& arrivals(std::size_t p) const { return pairs_[p].arrivals(); }
  // `far`: of another rank's.  The own one's is the far end here, or the same queue pair.
  Status raise(std::size_t p, const QueueEnd& far, const std::string& peer, bool here) {
    return raise(pairs_[p], far, peer, here);
  }
  Status raise_next(std::size_t p, const QueueEnd& far, const std::string& peer, bool here) {
    return raise(next_[p], far, peer, here);
  }

  // They are made anew before queue pairs are, if they are broken; null: there is none.  They
  // outlive whoever renews.
  using Loops = std::array<LoopPair*, 2>;
  void renew_with(const Loops& loops) { loops_ = loops; }
  bool loops_broken() const;
  // As renew().
  Status renew_loops() const;

 protected:
  explicit PortPairs(const Where& where) : where_(where) {}
  ~PortPairs() = default;
  // Memory that stays where it is; `what` it is for, for messages.
  Status register_memory(const TeamCore& core, void* at, std::size_t bytes, int access,
                         const char* what);
  // Room for so many, as `made` at the beginning and anew.
  void make_room(std::size_t pairs, const QueueSettings& made);

  const Where where_;
  QueueSettings queue_;  // of renewed ones
  // What the adapter uses goes after what uses the adapter.
  Owned<ibv_mr> memory_;
  Owned<ibv_cq> cq_;
  std::vector<Renewed> pairs_, next_;

 private:
  static Status raise(Renewed& ends, const QueueEnd& far, const std::string& peer, bool here);

  Loops loops_{};
};

// Memory of a peer, and that of this rank which goes there, or gets it.
struct FarMemory {
  ibv_sge here{};
  std::uint64_t there = 0;
  std::uint32_t rkey = 0;
};
// What a rank tells a peer over a queue pair, beside signals: a number as immediate data, perhaps
// behind memory written there.
bool post_immediate(ibv_qp* qp, std::uint64_t wr_id, std::uint32_t immediate,
                    const FarMemory* written = nullptr);
// Asks for what a peer tells in memory of its own.
bool post_read(ibv_qp* qp, std::uint64_t wr_id, const FarMemory& read);

}  // namespace twinpath::gda
