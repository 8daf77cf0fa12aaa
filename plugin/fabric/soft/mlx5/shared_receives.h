#pragma once
// Receives that queue pairs share and that a program writes as entries in memory: given to a shared
// receive queue of the software HCA in the order in which they name each other.
//
// Threads: one at a time.
#include <infiniband/verbs.h>

#include <cstdint>

#include "plugin/fabric/soft/mlx5/queues.h"
#include "plugin/fabric/soft/mlx5/surroundings.h"

namespace twinpath::soft::mlx5 {

class SharedReceives {
 public:
  // `to` outlives it, and has room for all entries.
  SharedReceives(const SharedReceivesFacts& facts, ibv_srq* to) : facts_(facts), to_(to) {}

  std::uint32_t entries() const { return facts_.entries; }
  // Gives what the program has added; true when that was something.
  bool look(const Surroundings& around);

 private:
  bool give_next(const Surroundings& around);

  SharedReceivesFacts facts_;
  ibv_srq* to_;
  std::uint64_t told_ = 0, given_ = 0;
  std::uint32_t next_ = 0;  // the entry that is given next
  bool broken_ = false;     // an entry cannot be given: nothing behind it is known
};

}  // namespace twinpath::soft::mlx5
