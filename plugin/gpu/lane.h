#pragma once
// One CUDA stream of a copy thread, with the jobs that wait for it and the batches under way.
//
// Why lanes: a stream finishes in order, so jobs of one QP keep to one lane while any is in
// flight, and a lane may have its next batch submitted while the last is being copied.  What
// arrives in the meantime waits here and becomes one batch: the busier, the larger.
//
// A batch is, in stream order: one cuMemcpyBatchAsync (plain copies), same-GPU copies, then the
// write-values of tiny jobs and the sequence number into the lane's pinned word in one
// cuStreamBatchMemOp.  Inside a call of copies bytes may land in any order; values land in theirs.
//
// Same-GPU copies go out of the GPU and back in, by way of host memory or of another GPU.  The two
// halves take turns, with as much at once as the stage holds: with both ways of the link at work
// at once, in smaller pieces that events keep apart, an all-to-all is slower (2 H200: 97 GB/s
// where this has 115).
//
// Beside kernels of another process, what goes through the compute engine waits for a slice of its
// time (2.1 to 2.4 ms on H200).  That is
// - one linear copy of less than 28 KiB from host memory to a GPU.  As rows the copy engine makes
//   it at once (7.5 us, 8 B to 32 KiB);
// - a value that the stream writes, the sequence number too, if the other process has further
//   kernels queued; not in a stream whose last copy, however long ago, went by the copy engine.
// So what is small goes as rows, or as values where those are faster, and where the stream is not
// on the copy engine, a copy of 8 B brings it there before it writes a value (late_values.h).
// Tiny jobs of one order land in that order: behind a value they are values.
//
// Threads: the copy thread only.
#include <cstddef>
#include <cstdint>
#include <vector>

#include "plugin/gpu/batch_calls.h"
#include "plugin/gpu/batch_ring.h"
#include "plugin/gpu/copy_counts.h"
#include "plugin/gpu/copy_plan.h"
#include "plugin/gpu/driver.h"
#include "plugin/gpu/job_list.h"
#include "plugin/gpu/late_values.h"

namespace twinpath::gpu {

inline constexpr std::uint64_t kBatchBytes = 64ull << 20;
// What same-GPU copies go through, longer ones in rounds.
inline constexpr std::uint64_t kHostStage = 8ull << 20;   // 150 us of PCIe
inline constexpr std::uint64_t kPeerStage = 32ull << 20;  // 90 us of NVLink
// Up to here a copy through the host takes no longer than one through another GPU, and shares a
// lane with its like only.
inline constexpr std::uint64_t kSmallStaged = 64ull << 10;
inline constexpr std::uint64_t kSmallStage = 1ull << 20;

// Between the two halves of same-GPU copies; belongs to one lane.
struct CopyStage {
  std::uint64_t base = 0;  // 0: there is none
  std::uint64_t bytes = 0;
};

class CopyLane {
 public:
  static constexpr std::size_t kMaxDepth = BatchRing::kMost;
  static constexpr std::size_t kStageWords = 256;
  struct Setup {
    const cuda::Driver* driver = nullptr;
    int gpu = -1;
    cuda::Stream stream = nullptr;
    std::uint64_t* word = nullptr;  // pinned, a cache line of its own, 0
    std::size_t depth = 2;          // batches under way at most
    // For same-GPU copies; without them the lane must be given none.
    CopyStage host;  // pinned memory
    CopyStage peer;  // another GPU's memory, see through_peer()
    // Where kernels of another process are in the way, else 0 and null.  Copies from host memory to
    // a GPU go as rows below this.
    std::uint64_t rows_below = 0;
    // So do more than kValueWords words of a tiny job, from here: pinned, kMaxDepth times
    // kStageWords.
    std::uint64_t* word_stage = nullptr;
    // What brings the stream to the copy engine: a word of this GPU and one of pinned memory.
    cuda::Address nudge_from = 0, nudge_to = 0;
    LateValues::Limits late;
  };
  explicit CopyLane(const Setup& setup);

  void add(CopyJob* job) {
    waiting_.push(job);
    load_ += job->bytes + 1;
  }
  // Bytes (and one a job) waiting and under way.
  std::uint64_t load() const { return load_; }
  bool idle() const { return waiting_.empty() && batches_.empty(); }

  // From now on same-GPU copies of this lane's GPU go through `base`, kPeerStage bytes of another
  // GPU, for as long as the lane lives.  0: no change.
  void through_peer(std::uint64_t base) {
    if (base != 0 && peer_.bytes != 0) peer_.base = base;
  }

  // Submits waiting jobs while there is room.  False: the stream is dead; the caller abandons
  // all lanes.
  bool issue(LaneCounts& counts);

  // Gives each job whose batch has finished to `finish(CopyJob*, Status)`, in order; true when
  // there was one.
  template <class Finish>
  bool poll(Finish&& finish) {
    bool any = false;
    while (!batches_.empty() && reached(batches_.oldest().sequence)) {
      Batch batch = batches_.take();
      if (batch.bare_since != 0) judge(batch);
      for (std::size_t i = 0; !batch.jobs.empty(); ++i)
        leave(batch.jobs.pop(), batch.failed[i] ? Status::system : Status::ok, finish);
      any = true;
    }
    return any;
  }

  // True when the oldest batch has not moved although the stream reports an error, or reports
  // being empty.  For the rare case that nothing finished for long.
  bool stuck();

  // Finishes everything with `status`; the stream is not looked at again.
  template <class Finish>
  void abandon(Status status, Finish&& finish) {
    while (!batches_.empty())
      for (JobList jobs = batches_.take().jobs; !jobs.empty();) leave(jobs.pop(), status, finish);
    while (!waiting_.empty()) leave(waiting_.pop(), status, finish);
    staged_done_ = 0;
  }

 private:
  // The parts of the batch being built.
  struct Copy {
    std::uint64_t to, from, bytes;
    std::size_t job;                   // index in the batch, for `failed`
    const CopyStage* stage = nullptr;  // same-GPU copies
    bool from_host = false;            // to a GPU
  };

  template <class Finish>
  void leave(CopyJob* job, Status status, Finish& finish) {
    load_ -= job->bytes + 1;
    finish(job, status);
  }
  bool reached(std::uint64_t sequence) const;
  std::size_t collect(Batch& batch);
  bool add_tiny(const CopyJob& job, const Batch& batch, std::size_t index);
  const CopyStage& stage_of(const CopyJob& job) const {
    // Where another GPU issues the copy, that other GPU may be the very one of the memory.
    return peer_.base != 0 && job.from.gpu == s_.gpu ? peer_ : s_.host;
  }
  void copy(std::vector<Copy>& copies, Batch& batch);
  // Would it go through the compute engine as one linear copy?
  bool linear_by_compute(const Copy& c) const { return c.from_host && c.bytes < s_.rows_below; }
  bool goes_as_rows(const Copy& c) const;
  cuda::Result copy_as_rows(const Copy& c);
  void copy_staged(Batch& batch);
  std::size_t next_round(std::size_t first, std::uint64_t& done);
  bool nudge(bool no_copy);
  void judge(const Batch& batch);
  bool write_and_signal(Batch& batch);
  void fail(Batch& batch, std::size_t index, const CopyEnd& to, cuda::Result r, const char* call);

  const Setup s_;
  CopyStage peer_;
  JobList waiting_;
  std::uint64_t load_ = 0;
  std::uint64_t staged_done_ = 0;  // bytes of waiting_.front() already in earlier batches
  bool staged_failed_ = false;     // and one of those parts was refused
  BatchRing batches_;
  std::vector<Copy> copies_, staged_, fills_, drains_, word_rows_;
  std::size_t stage_words_ = 0;  // of the batch being built
  ValueCall values_;             // of that batch, too
  CopyCall copy_call_{kBatchJobs};
  bool on_copy_engine_ = false;  // went the last copy that way?
  LateValues late_;              // if it did
  bool warned_ = false;
};

}  // namespace twinpath::gpu
