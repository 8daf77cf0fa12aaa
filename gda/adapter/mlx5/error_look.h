#pragma once
// Why a queue has failed: the first error completion that its adapter wrote.  Kernels do not look
// at what errors say, so it is still there.
//
// Completions in GPU memory are copied out, by the copy engines and without waiting.
//
// Threads: one at a time.
#include <atomic>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "gda/abi/operation.h"
#include "gda/adapter/mlx5/context_queues.h"
#include "plugin/gpu/engine.h"

namespace twinpath::gda::mlx5 {

class ErrorLook {
 public:
  // `gpu`: CUDA ordinal, -1 for completions in host memory.  `queues` outlives it.
  ErrorLook(const ContextQueues& queues, int gpu) : queues_(queues), gpu_(gpu) {}

  // Of a queue that has failed, by its number.
  void begin(std::size_t queue);

  struct Cause {
    std::size_t queue = 0;
    Syndrome syndrome = Syndrome::none;  // none: it has written no error, or that cannot be read
  };
  // One that is known since; each that was begun comes once.
  std::optional<Cause> look();
  // Until no copy is under way; false after the time limit: this must not be destroyed.
  bool wait(std::int64_t limit_ns) const;

 private:
  struct Copy : gpu::CopyJob {
    std::size_t queue = 0;
    std::vector<std::uint8_t> entries;
    std::atomic<bool> ended{false};
  };
  const ContextQueues& queues_;
  const int gpu_;
  std::vector<std::unique_ptr<Copy>> copies_;
};

// Of completion entries as they lie in memory: the first that is an error of this queue's own, not
// one of those that are flushed behind it.  Pure.
Syndrome first_error(std::span<const std::uint8_t> entries);

// What such an error says, and what to do.
const char* text_of(Syndrome syndrome);

}  // namespace twinpath::gda::mlx5
