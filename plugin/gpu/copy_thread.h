#pragma once
// The copy thread of one GPU: takes jobs from any thread, spreads them over lanes (streams) and
// reports what has finished.
//
// Order: jobs of one `order` share a lane while any of them is in flight; when none is, the next
// may take the least loaded lane.  Tiny jobs have a lane of their own so that no big copy is in
// their way, but only for orders that send nothing else: an order that mixes keeps its tiny jobs
// behind its own copies.  Orders share slots of a table; two in one slot are just tied together.
//
// Threads: submit, start, counts: any.  stop: one caller, with no submit at the same time.
// Everything else is the copy thread's own.
#include <array>
#include <atomic>
#include <cstdint>
#include <mutex>
#include <optional>
#include <thread>

#include "plugin/base/sync.h"
#include "plugin/gpu/lane.h"

namespace twinpath::gpu {

class CopyThread {
 public:
  explicit CopyThread(int gpu) : gpu_(gpu) {}
  ~CopyThread() { stop(); }
  CopyThread(const CopyThread&) = delete;
  CopyThread& operator=(const CopyThread&) = delete;

  void start();
  void stop();  // finishes what was submitted
  // Ends the thread at process exit without a driver call and without waiting for copies: the
  // driver may be gone by then.
  void leave();
  bool running() const { return running_.load(std::memory_order_acquire); }
  void submit(CopyJob* job);
  CopyStatistics counts() const;

 private:
  static constexpr std::size_t kCopyLanes = 3, kTinyLane = 3, kStagedLane = 4, kLanes = 5;
  static constexpr std::size_t kOrderSlots = 1024;
  // Tiny jobs in a row after which an order is trusted to send nothing else.
  static constexpr std::uint8_t kTinyRun = 16;
  struct OrderSlot {
    std::uint32_t in_flight = 0;
    std::uint8_t lane = 0;
    std::uint8_t tiny_run = kTinyRun;
  };
  struct Resources;  // context, streams and pinned memory

  void run();
  Status open(Resources& r);
  void serve();
  bool take();
  void assign(CopyJob* job);
  std::size_t choose_lane(OrderSlot& slot, const CopyJob& job);
  bool step();
  void give_up(Status status);
  void finish(CopyJob* job, Status status);
  void sleep();
  OrderSlot& slot_of(const CopyJob& job);
  void publish(const LaneCounts& c);

  const int gpu_;
  std::mutex start_mutex_;
  std::thread thread_;
  std::atomic<bool> running_{false};
  std::atomic<bool> stopping_{false};
  std::atomic<bool> leaving_{false};

  // Written by submitters: newest first; the thread turns it round.
  alignas(kCacheLine) std::atomic<CopyJob*> inbox_{nullptr};
  alignas(kCacheLine) std::atomic<bool> asleep_{false};

  alignas(kCacheLine) std::array<std::optional<CopyLane>, kLanes> lanes_;
  std::array<OrderSlot, kOrderSlots> orders_;
  std::uint64_t in_flight_ = 0;
  Status dead_ = Status::ok;  // not ok: every job ends with it
  std::atomic<std::uint64_t> jobs_{0}, bytes_{0}, batches_{0}, write_values_{0}, staged_{0};
};

}  // namespace twinpath::gpu
