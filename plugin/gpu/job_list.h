#pragma once
// Copy jobs in a row, and where their orders stand in tables.  Threads: one.
#include <cstddef>

#include "plugin/gpu/engine.h"

namespace twinpath::gpu {

// The place of a job's order among 2^bits; orders may share one.
inline std::size_t order_slot(const CopyJob& job, int bits) {
  return (job.order * 0x9E3779B97F4A7C15ull) >> (64 - bits);
}

// First in, first out, through CopyJob::next.
class JobList {
 public:
  bool empty() const { return head_ == nullptr; }
  CopyJob* front() const { return head_; }
  void push(CopyJob* job) {
    job->next = nullptr;
    (head_ == nullptr ? head_ : tail_->next) = job;
    tail_ = job;
  }
  CopyJob* pop() {
    CopyJob* job = head_;
    head_ = job->next;
    return job;
  }

 private:
  CopyJob* head_ = nullptr;
  CopyJob* tail_ = nullptr;
};

}  // namespace twinpath::gpu
