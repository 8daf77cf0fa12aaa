#pragma once
// A page-aligned, zeroed piece of host memory that the connection itself owns (CTS ring, its
// shadow, flush targets), registered on each of its rails; on standby rails as far as these take
// it.  Never with relaxed ordering: a CTS cell is valid because its last word arrives last.
#include <cstdlib>
#include <memory>
#include <vector>

#include "proxy/queues/queue_set.h"

namespace twinpath {

class RegisteredBuffer {
 public:
  static Result<std::unique_ptr<RegisteredBuffer>> make(const Verbs& verbs,
                                                        const std::vector<Rail>& rails,
                                                        std::size_t bytes, int access,
                                                        std::size_t standby = 0);
  std::uint8_t* data() const { return memory_.get(); }
  std::uint64_t address() const { return reinterpret_cast<std::uintptr_t>(memory_.get()); }
  std::uint32_t lkey(int rail) const {
    const auto& mr = mrs_[static_cast<std::size_t>(rail)];
    return mr != nullptr ? mr->lkey : 0;
  }
  std::uint32_t rkey(int rail) const {
    const auto& mr = mrs_[static_cast<std::size_t>(rail)];
    return mr != nullptr ? mr->rkey : 0;
  }

 private:
  struct Free {
    void operator()(std::uint8_t* p) const { std::free(p); }
  };
  std::unique_ptr<std::uint8_t, Free> memory_;
  std::vector<Owned<ibv_mr>> mrs_;
};

}  // namespace twinpath
