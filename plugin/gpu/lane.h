#pragma once
// One CUDA stream of a copy thread, with the jobs that wait for it and the batches under way.
//
// Why lanes: a stream finishes in order, so jobs of one QP keep to one lane while any is in
// flight, and a lane may have its next batch submitted while the last is being copied.  What
// arrives in the meantime waits here and becomes one batch: the busier, the larger.
//
// A batch is, in stream order: one cuMemcpyBatchAsync (plain copies), the second half of same-GPU
// copies, then the write-values of tiny jobs and the sequence number into the lane's pinned word
// in one cuStreamBatchMemOp.  Inside one of these calls bytes may land in any order.
//
// Same-GPU copies go out of the GPU and back in, through slots of host memory or of another GPU.
// The way out is a stream of its own, so that both directions of the link work at once: it fills
// a slot while the lane's stream empties the one before, and events keep the two apart.  All
// that lands does so in the lane's stream; only reading runs ahead.
//
// Threads: the copy thread only.
#include <array>
#include <bitset>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "plugin/gpu/driver.h"
#include "plugin/gpu/job_list.h"

namespace twinpath::gpu {

// What a job needs.
enum class CopyKind { copy, tiny, staged, nothing };

inline constexpr std::uint64_t kTinyBytes = 32;
inline constexpr std::size_t kBatchJobs = 128;
inline constexpr std::uint64_t kBatchBytes = 64ull << 20;
// Same-GPU copies go through slots, longer ones in rounds.  Two would do; with four, a stream
// that waits for the other (some microseconds) still has work.
inline constexpr std::size_t kSlots = 4;
inline constexpr std::uint64_t kHostSlot = 2ull << 20;  // 40 us of PCIe
inline constexpr std::uint64_t kPeerSlot = 8ull << 20;  // 25 us of NVLink
// Up to here a copy through the host takes no longer than one through another GPU, and shares a
// lane with its like only.
inline constexpr std::uint64_t kSmallStaged = 64ull << 10;
inline constexpr std::uint64_t kSmallSlot = 256ull << 10;

CopyKind classify(const CopyJob& job);

// How to copy so many bytes, at least two, as rows of equal length that cut no aligned word: `head`
// bytes in two rows, then `tail` bytes in three.
//
// Why rows: beside kernels of another process, one linear copy of less than 28 KiB from host memory
// to a GPU waits for a slice of the compute engine's time (2.4 ms on H200), as rows the copy engine
// makes it at once (7.5 us, 8 B to 32 KiB).
struct RowPlan {
  std::uint64_t head = 0, tail = 0;
};
RowPlan plan_rows(std::uint64_t bytes);
inline constexpr std::uint64_t kRowsBelow = 32ull << 10;

// Slots between the two halves of same-GPU copies; belongs to one lane.
struct CopyStage {
  std::uint64_t base = 0;  // kSlots of slot_bytes each; 0: there is none
  std::uint64_t slot_bytes = 0;
  // A batch of less than all slots is cut up so that its halves overlap, but not below this.
  std::uint64_t least_part = 0;
  // Null where both halves use one stream.
  struct Events {
    cuda::Event filled = nullptr, emptied = nullptr;
  };
  std::array<Events, kSlots> events{};
  std::size_t next = 0;  // free-running
};

struct LaneCounts {
  std::uint64_t batches = 0, write_values = 0, staged = 0;
};

class CopyLane {
 public:
  static constexpr std::size_t kMaxDepth = 4;
  static constexpr std::size_t kStageWords = 256;
  struct Setup {
    const cuda::Driver* driver = nullptr;
    int gpu = -1;
    cuda::Stream stream = nullptr;
    std::uint64_t* word = nullptr;  // pinned, a cache line of its own, 0
    std::size_t depth = 2;          // batches under way at most
    // For same-GPU copies; without them the lane must be given none.
    cuda::Stream out = nullptr;  // the first half; may be `stream`
    CopyStage host;              // pinned memory
    CopyStage peer;              // another GPU's memory, see through_peer()
    // Where kernels of another process are in the way: below this, copies from host memory to a GPU
    // go as rows, see plan_rows().
    std::uint64_t rows_below = 0;
    // And words, as write-values to memory that came from another process would wait for a slice of
    // time.  Two or more are rows; one alone cannot be, so it is copied on from one of these, each
    // of kStageWords, which all such of a batch reach in one copy as rows.  Null: write-values.
    std::uint64_t* word_stage = nullptr;  // pinned, kMaxDepth times two
    cuda::Address words = 0;              // of this GPU: for others
    std::uint64_t neighbour_words = 0;    // where in through_peer()'s memory: for this one
  };
  explicit CopyLane(const Setup& setup);

  void add(CopyJob* job) {
    waiting_.push(job);
    load_ += job->bytes + 1;
  }
  // Bytes (and one a job) waiting and under way.
  std::uint64_t load() const { return load_; }
  bool idle() const { return waiting_.empty() && first_ == last_; }

  // From now on same-GPU copies of this lane's GPU go through `base`, kSlots * kPeerSlot bytes of
  // another GPU, for as long as the lane lives.  0: no change.
  void through_peer(std::uint64_t base) {
    if (base == 0) return;
    if (peer_.slot_bytes != 0) peer_.base = base;
    if (s_.neighbour_words != 0) near_.area = base + s_.neighbour_words;
  }

  // Submits waiting jobs while there is room.  False: the stream is dead; the caller abandons
  // all lanes.
  bool issue(LaneCounts& counts);

  // Gives each job whose batch has finished to `finish(CopyJob*, Status)`, in order; true when
  // there was one.
  template <class Finish>
  bool poll(Finish&& finish) {
    bool any = false;
    while (first_ != last_ && reached(batches_[first_ % kMaxDepth].sequence)) {
      Batch batch = batches_[first_ % kMaxDepth];
      ++first_;
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
    for (; first_ != last_; ++first_)
      for (JobList& jobs = batches_[first_ % kMaxDepth].jobs; !jobs.empty();)
        leave(jobs.pop(), status, finish);
    while (!waiting_.empty()) leave(waiting_.pop(), status, finish);
    staged_done_ = 0;
  }

 private:
  struct Batch {
    JobList jobs;
    std::uint64_t sequence = 0;
    std::bitset<kBatchJobs> failed;
  };
  // The parts of the batch being built.
  struct Copy {
    std::uint64_t to, from, bytes;
    std::size_t job;             // index in the batch, for `failed`
    CopyStage* stage = nullptr;  // same-GPU copies
    bool from_host = false;      // to a GPU
  };

  // Words of the batch being built that are copied on from `area`.
  struct Words {
    cuda::Address area = 0;
    std::uint64_t* stage = nullptr;
    std::size_t count = 0;
    std::vector<Copy> onward;
  };
  template <class Finish>
  void leave(CopyJob* job, Status status, Finish& finish) {
    load_ -= job->bytes + 1;
    finish(job, status);
  }
  bool reached(std::uint64_t sequence) const;
  std::size_t collect(Batch& batch);
  bool add_tiny(const CopyJob& job, std::size_t index);
  CopyStage& stage_of(const CopyJob& job) {
    // Where another GPU issues the copy, that other GPU may be the very one of the memory.
    return peer_.base != 0 && job.from.gpu == s_.gpu ? peer_ : host_;
  }
  void copy(std::vector<Copy>& copies, Batch& batch, cuda::Stream stream);
  bool goes_as_rows(const Copy& c) const;
  cuda::Result copy_as_rows(cuda::Address to, std::uint64_t from, std::uint64_t bytes,
                            cuda::Stream stream);
  bool copy_staged(Batch& batch);
  std::size_t next_round(std::size_t first, std::uint64_t& done, std::uint64_t part);
  bool move_round(Batch& batch, const CopyStage::Events& slot);
  bool check_event(cuda::Result r, const char* call);
  void move_words(Words& words, Batch& batch);
  bool write_and_signal(Batch& batch);
  void fail(Batch& batch, std::size_t index, const CopyEnd& to, cuda::Result r, const char* call);

  const Setup s_;
  CopyStage host_, peer_;
  JobList waiting_;
  std::uint64_t load_ = 0;
  std::uint64_t staged_done_ = 0;  // bytes of waiting_.front() already in earlier batches
  bool staged_failed_ = false;     // and one of those parts was refused
  std::uint64_t sequence_ = 0;
  std::array<Batch, kMaxDepth> batches_;
  std::size_t first_ = 0, last_ = 0;  // free-running
  std::vector<Copy> copies_, staged_, fills_, drains_;
  Words near_, away_;  // for this GPU, for others
  std::vector<Copy> word_rows_;
  std::vector<cuda::MemOp> ops_;
  std::vector<std::size_t> op_job_;
  std::vector<cuda::Address> to_, from_;
  std::vector<std::size_t> sizes_;
  bool batch_copies_ = true;
  bool warned_ = false;
};

}  // namespace twinpath::gpu
