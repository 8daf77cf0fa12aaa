#pragma once
// Copy jobs in a row.  Threads: one.
#include "plugin/gpu/engine.h"

namespace twinpath::gpu {

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
