#pragma once
// Executes companion queues: after their WAIT (which the front end does) they only add to counters
// of this rank, which lie in host memory that this thread reaches.
//
// Threads: the engine's.
#include <atomic>
#include <cstdint>

#include "gda/served/front/back_end.h"
#include "gda/served/front/work_queue.h"

namespace twinpath::gda {

class CounterBackEnd final : public BackEnd {
 public:
  // Before the first scan.
  void attach(WorkQueue& queue) { queue_ = &queue; }

  Issued issue(std::uint64_t index, const Operation& operation) override {
    switch (operation.kind) {
      case OperationKind::fetch_add:
        // Checked by the key table to be an aligned word of the counters.  Partner: the kernel's
        // acquire load of the counter.
        std::atomic_ref<std::uint64_t>(*reinterpret_cast<std::uint64_t*>(operation.remote))
            .fetch_add(operation.add, std::memory_order_release);
        break;
      case OperationKind::nop:
      case OperationKind::dump:
        break;
      default:
        return Issued::failed;  // no kernel of NCCL moves data on a companion queue
    }
    queue_->complete(index);
    return Issued::accepted;
  }

 private:
  WorkQueue* queue_ = nullptr;
};

}  // namespace twinpath::gda
