#pragma once
// The CQs of one context: all in host memory, or all in GPU memory, written one way.
//
// Threads: make and wait are the owner's, the rest the engine's.
#include <cstdint>
#include <deque>
#include <memory>

#include "gda/context/context_memory.h"
#include "gda/served/front/gpu_cq.h"
#include "gda/served/front/host_cq.h"

namespace twinpath::gda {

class ContextCqs {
 public:
  // Fills them.
  static Result<std::unique_ptr<ContextCqs>> make(int gpu, const ContextShape& shape,
                                                  ContextMemory& memory);
  CqeWriter& at(std::size_t queue);
  // Once a turn: CQEs written since go to where kernels see them.  True when there are any.
  bool send();
  // The GPU takes no more of them.
  bool dead() const { return stream_ != nullptr && stream_->dead(); }
  // Until the GPU has what was sent, or refused it; false after the time limit.
  bool wait(std::int64_t limit_ns) const;

 private:
  ContextCqs() = default;
  std::deque<HostCq> host_;
  std::deque<MappedCq<>> mapped_;
  std::deque<GpuCq> gpu_;
  std::unique_ptr<WordStream> stream_;
  std::uint64_t unsent_ = 0;
  std::size_t next_ = 0;  // queue to begin with, so that none starves
};

}  // namespace twinpath::gda
