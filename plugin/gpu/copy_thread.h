#pragma once
// The copy thread of one GPU: takes jobs from any thread, spreads them over lanes (streams) and
// reports what has finished.
//
// Order: jobs of one `order` share a lane while any of them is in flight; when none is, the next
// may take the least loaded lane.  Tiny jobs have a lane of their own so that no big copy is in
// their way, but only for orders that send nothing else: an order that mixes keeps its tiny jobs
// behind its own copies.  Same-GPU copies have lanes of their own too, small ones and large ones,
// as they take many times as long as what goes to other GPUs: an order that has something else in
// flight waits here until that has finished.  Orders share slots of a table; two in one slot are
// just tied together.
//
// Threads: submit, start, prepare, counts: any.  stop: one caller, with no submit at the same
// time.  Everything else is the copy thread's own.
#include <array>
#include <atomic>
#include <cstdint>
#include <mutex>
#include <optional>
#include <thread>

#include "plugin/base/sync.h"
#include "plugin/gpu/copy_counts.h"
#include "plugin/gpu/inbox.h"
#include "plugin/gpu/lane.h"
#include "plugin/gpu/neighbour.h"
#include "plugin/gpu/word_updates.h"

namespace twinpath::gpu {

// Where a copy thread finds jobs in place of its inbox: what another process submits.
class JobSource {
 public:
  virtual ~JobSource() = default;
  virtual CopyJob* take() = 0;  // the next; null: there is none now.  Called by the copy thread
  // Until there may be one, or wake() was called since; the copy thread sleeps here.
  virtual void sleep() = 0;
  virtual void wake() = 0;
};

class CopyThread {
 public:
  // With a `source`, which outlives the thread, jobs come from there alone: submit() is not used.
  // `near`: it moves to the processors near to its GPU.
  explicit CopyThread(int gpu, JobSource* source = nullptr, bool near = false)
      : gpu_(gpu), near_(near), source_(source) {}
  ~CopyThread() { stop(); }
  CopyThread(const CopyThread&) = delete;
  CopyThread& operator=(const CopyThread&) = delete;

  void start();
  // Until the thread has all it needs, or has failed to get it; at most so long.
  void wait_ready(std::int64_t limit_ns) const;
  // Looks for memory on another GPU for same-GPU copies, if there is none yet; allocates.  The
  // thread was started.
  void prepare();
  void stop();  // finishes what was submitted
  // Ends the thread at process exit without a driver call and without waiting for copies: the
  // driver may be gone by then.  One that the driver holds up as it is being made is left to the
  // process's end, so this object must outlive that.
  void leave();
  bool running() const { return running_.load(std::memory_order_acquire); }
  void submit(CopyJob* job) { inbox_.push(job); }
  CopyStatistics counts() const { return counts_.statistics(); }

 private:
  // In the order in which an order of jobs may go from one to the next, see queue().
  static constexpr std::size_t kCopyLanes = 3, kTinyLane = 3, kSmallLane = 4, kStagedLane = 5,
                               kLanes = 6;
  static constexpr int kOrderBits = 10;
  static constexpr std::size_t kOrderSlots = 1 << kOrderBits;
  // Tiny jobs in a row after which an order is trusted to send nothing else.
  static constexpr std::uint8_t kTinyRun = 16;
  // Jobs for which an order that has sent same-GPU copies stays with their lane.
  static constexpr std::uint8_t kStagedRun = 16;
  struct OrderSlot {
    std::uint32_t in_flight = 0;  // in `lane`
    std::uint8_t lane = 0;
    std::uint8_t tiny_run = kTinyRun;
    std::uint8_t staged_lane = 0;
    std::uint8_t staged_run = 0;  // 0: staged_lane does not count
    JobList held;                 // waits until `lane` has finished what is in flight
  };
  struct Resources;  // context, streams and pinned memory

  void run();
  Status open(Resources& r);
  void serve(int cpus);
  bool take();
  void accept(CopyJob* job);
  void queue(OrderSlot& slot, CopyJob* job);
  std::size_t choose_lane(OrderSlot& slot, CopyKind kind, std::size_t least);
  bool step();
  bool advance_updates();
  void give_up(Status status);
  void finish(CopyJob* job, Status status);
  void sleep();
  void wake() { source_ != nullptr ? source_->wake() : inbox_.wake(); }
  OrderSlot& slot_of(const CopyJob& job);

  const int gpu_;
  const bool near_;
  JobSource* const source_;
  std::mutex start_mutex_;
  std::thread thread_;
  std::atomic<bool> running_{false};
  std::atomic<bool> ready_{false};  // has all it needs, or has failed to get it; until started anew
  std::atomic<bool> stopping_{false};
  std::atomic<bool> leaving_{false};
  NeighbourStage neighbour_;

  JobInbox inbox_;

  alignas(kCacheLine) std::array<std::optional<CopyLane>, kLanes> lanes_;
  std::array<OrderSlot, kOrderSlots> orders_;
  WordUpdates updates_;
  std::uint64_t in_flight_ = 0;
  Status dead_ = Status::ok;  // not ok: every job ends with it
  CopyCounts counts_;
};

}  // namespace twinpath::gpu
