#pragma once
// Whether a peer's adapter still answers: a write of no bytes to memory that the peer has
// registered.  It needs nothing of the peer's process, which learns nothing of it, and an adapter
// that still has the queue pair acknowledges it.  Where none does, the retries of the queue pair
// end the write in error.
//
// Threads: one at a time.
#include <cstdint>
#include <string>

#include "plugin/fabric/verbs.h"

namespace twinpath {

// Memory of the peer, with the key that the queue pair's remote end knows it by.
struct ProbeTarget {
  std::uint64_t address = 0;
  std::uint32_t rkey = 0;
};

// False where it cannot be posted: without room for it there is work under way, which tells as
// much.
bool post_probe(ibv_qp* qp, std::uint64_t wr_id, const ProbeTarget& target);

// The questions over one queue pair, one at a time.
class LivenessProbe {
 public:
  // Nothing while one is under way.  `wr_id` comes back in the completion.
  void ask(ibv_qp* qp, std::uint64_t wr_id, const ProbeTarget& target) {
    if (!under_way_) under_way_ = post_probe(qp, wr_id, target);
  }
  // Of ask()'s completion: whether the adapter has answered.  Logs if not; `name` had asked.
  bool answered(const ibv_wc& wc, const std::string& name);
  // How often it has; another number is a sign of life.
  std::uint64_t answers() const { return answers_; }

 private:
  bool under_way_ = false;
  std::uint64_t answers_ = 0;
};

}  // namespace twinpath
