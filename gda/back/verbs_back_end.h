#pragma once
// Executes one queue's operations as ordinary work requests on an RC queue pair, so on any adapter
// that verbs know: real, soft-RoCE or the soft HCA.
//
// Work requests of one scan are chained and posted with one call (send_chain.h).  A NOP is nothing
// on the wire: it is done with what was posted before it.  Transfers larger than a message of the
// adapter go in pieces.  What a READ brings to GPU memory may come after its completion: that, a
// DUMP behind it and all later ones are reported after a flush.
//
// Threads: the engine's, except issued(), finished() and dead(), from any.
#include <infiniband/verbs.h>

#include <atomic>
#include <cstdint>
#include <optional>
#include <string>

#include "gda/back/counted_signals.h"
#include "gda/back/gpu_flush.h"
#include "gda/back/send_chain.h"
#include "gda/connect/queue_pair.h"
#include "gda/front/back_end.h"
#include "gda/front/work_queue.h"
#include "plugin/rdma/liveness_probe.h"

namespace twinpath::gda {

struct VerbsBackEndSetup {
  QueuePair* pair = nullptr;
  std::uint32_t slots = 1;  // work requests that the queue pair holds
  std::uint16_t tag = 0;    // comes back with each completion: see tag_of()
  std::uint64_t max_bytes = std::uint64_t{1} << 30;
  // Registered memory for inline data and for old values of atomics, slots * kScratchSlot bytes;
  // pinned, because copy engines of the soft HCA read it.
  std::uint8_t* scratch = nullptr;
  std::uint32_t scratch_lkey = 0;
  bool post_inline =
      false;  // let the work request itself hold the data, where the queue pair takes it
  std::optional<CountedSender::Target> counted;  // signals without atomics
  bool atomics = true;        // of words that are no signals, which no CPU adds to
  ProbeTarget probed;         // the queue pair holds one work request more, for probes
  GpuFlush* flush = nullptr;  // null: none is needed
  std::string name;           // "queue to rank 3", for messages
};

class VerbsBackEnd final : public BackEnd {
 public:
  static constexpr std::size_t kScratchSlot = 32;
  static_assert(kScratchSlot >= kMaxInline);

  explicit VerbsBackEnd(const VerbsBackEndSetup& setup);
  // Before the first scan.
  void attach(WorkQueue& queue) { queue_ = &queue; }

  Issued issue(std::uint64_t index, const Operation& operation) override;
  void flush() override;

  // A completion whose wr_id has this back end's tag.
  void on_completion(const ibv_wc& wc);
  // The flush has come further: reports what waited for it.
  void settle();
  // The peer is gone, or somebody will not wait any longer: nothing more is moved.
  void fail_all(Syndrome syndrome);

  static std::uint16_t tag_of(const ibv_wc& wc) {
    return static_cast<std::uint16_t>(wc.wr_id >> 48);
  }

  // Asks the peer's adapter for a sign of life.  The engine's.
  void ask();
  std::uint64_t answers() const { return probe_.answers(); }

  // Counts of operations, for those who wait until some have ended.
  std::uint64_t issued() const { return issued_.load(std::memory_order_acquire); }
  std::uint64_t finished() const { return finished_.load(std::memory_order_acquire); }
  bool dead() const { return dead_.load(std::memory_order_acquire); }
  // Dead, and not for a kernel's own wrong work request: the peer, or the way to it, is gone.  The
  // engine's.
  bool unreachable() const { return unreachable_; }

 private:
  // In place of an index; one more is CountedInbox's.
  static constexpr std::uint64_t kProbe = CountedInbox::kReceiveId - 1;

  // WQEs before `done` have completed and wait for a flush; 0: none.
  struct Held {
    std::uint64_t done = 0, ticket = 0;
  };

  std::uint64_t wr_id(std::uint64_t index) const {
    return std::uint64_t{setup_.tag} << 48 | (index & 0xffffffffffffu);
  }
  void arrived(const SendChain::Mark& mark);
  void nothing(std::uint64_t index);
  void add(std::uint64_t index, const Operation& operation, std::uint64_t offset,
           std::uint32_t bytes, bool last);
  void fill(ibv_send_wr& wr, ibv_sge& sge, const Operation& operation, std::uint64_t offset,
            std::uint32_t bytes);
  void post();
  void finish(std::uint64_t done);
  void die(std::uint64_t index, Syndrome syndrome);

  const VerbsBackEndSetup setup_;
  WorkQueue* queue_ = nullptr;
  std::optional<CountedSender> counted_;
  SendChain chain_;
  Held held_, later_;  // what has completed since goes to later_
  LivenessProbe probe_;
  std::uint64_t partial_index_ = 0;   // operation of which a part is posted...
  std::uint64_t partial_offset_ = 0;  // ...up to here; 0: none
  std::atomic<std::uint64_t> issued_{0}, finished_{0};
  std::atomic<bool> dead_{false};
  bool unreachable_ = false;
};

// What an error CQE says for an error completion of verbs.
Syndrome syndrome_of(ibv_wc_status status);

}  // namespace twinpath::gda
