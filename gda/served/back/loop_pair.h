#pragma once
// A queue pair joined to itself over one of a team's ports, by which this rank's adapter READs and
// WRITEs memory of this rank's GPU: gpu_flush.h, looped_words.h.
//
// One that has ended with its port is of no use until another was made: once the port has been up
// for a while, or with queue pairs that are made anew over it (port_renewals.h).
//
// Threads: of who drives the context; renew() of any one; broken() of any.
#include <infiniband/verbs.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "gda/connect/queue_pair.h"
#include "gda/team/team_core.h"
#include "plugin/base/owned.h"

namespace twinpath::gda {

class LoopPair {
 public:
  struct Use {
    int access = 0;
    std::uint32_t depth = 1;  // work requests under way at most
  };
  // Over the team's first port (0) or its second.
  static Result<std::unique_ptr<LoopPair>> make(const TeamCore& team, int port, const Use& use);

  ibv_qp* qp() const { return pair_->qp(); }
  const std::string& port() const { return rail_.port.port->name; }
  // Completions of the queue pair in use: how many; below 0 they cannot be read.
  int poll(std::span<ibv_wc> wcs);

  // It is of no use from now on.  Nothing more is read or written for what was posted; false: the
  // adapter has not confirmed that.
  bool stop();
  bool broken() const { return broken_.load(std::memory_order_acquire); }
  // Another one, where this one is broken.
  Status renew();
  bool has_renewed() const { return has_renewed_.load(std::memory_order_acquire); }
  // It is in use from now on.
  void take_renewed();

 private:
  LoopPair(const TeamCore& team, int port, const Use& use)
      : team_(team),
        rail_(port == 0 ? team.rail : team.second->rail),
        limits_(port == 0 ? team.limits : team.second->limits),
        use_(use) {}
  Result<std::unique_ptr<QueuePair>> make_pair(const Rail& rail) const;

  const TeamCore& team_;
  const Rail& rail_;
  const AdapterLimits& limits_;
  const Use use_;
  Owned<ibv_cq> cq_;
  std::unique_ptr<QueuePair> pair_, renewed_;
  std::atomic<bool> broken_{false}, has_renewed_{false};
};

}  // namespace twinpath::gda
