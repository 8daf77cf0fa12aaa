#pragma once
// The batches that one stream has under way, oldest first.
//
// Each has a sequence number, one more than the last; the stream writes it into the lane's word
// behind the batch, so that a batch has ended once the word says its number or a later one.
//
// Threads: the copy thread only.
#include <array>
#include <bitset>
#include <cstddef>
#include <cstdint>

#include "plugin/gpu/job_list.h"

namespace twinpath::gpu {

inline constexpr std::size_t kBatchJobs = 128;

struct Batch {
  JobList jobs;
  std::uint64_t sequence = 0;
  std::bitset<kBatchJobs> failed;  // by a job's place in `jobs`
  std::int64_t bare_since = 0;     // ns; not 0: values only, and nothing was under way before them
};

class BatchRing {
 public:
  static constexpr std::size_t kMost = 4;

  bool empty() const { return first_ == last_; }
  std::size_t size() const { return last_ - first_; }
  // One more, without jobs; there are less than kMost.  It stays where it is until it is taken.
  Batch& add() {
    Batch& batch = batches_[last_++ % kMost];
    batch = {};
    batch.sequence = ++sequence_;
    return batch;
  }
  const Batch& oldest() const { return batches_[first_ % kMost]; }
  // The oldest, which is under way no more.
  Batch take() { return batches_[first_++ % kMost]; }

 private:
  std::array<Batch, kMost> batches_;
  std::size_t first_ = 0, last_ = 0;  // free-running
  std::uint64_t sequence_ = 0;        // of the newest
};

}  // namespace twinpath::gpu
