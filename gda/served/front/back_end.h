#pragma once
// The seam below the front end: who executes the operations of one queue.  The front end reads,
// checks and retires work requests in the same way whoever executes them.
//
// Order: operations of one queue are issued in order, and their effects keep RC order: a fetch_add
// is visible only after all data issued before it on the queue.  Completions are reported in
// order, by WorkQueue::complete(); see work_queue.h.
//
// Threads: the engine's only.
#include <cstdint>

#include "gda/abi/operation.h"

namespace twinpath::gda {

enum class Issued : std::uint8_t {
  accepted,
  full,    // no room now: the same operation is offered again at the next scan
  failed,  // the queue is dead; the front end retires it and everything after it with an error
};

class BackEnd {
 public:
  // `index`: the WQE's number on its queue (64 bits, never wraps).
  virtual Issued issue(std::uint64_t index, const Operation& operation) = 0;
  // After the last issue of one scan of the queue: post what was gathered, ring.
  virtual void flush() {}

 protected:
  ~BackEnd() = default;
};

}  // namespace twinpath::gda
