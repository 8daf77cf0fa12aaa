#pragma once
// The front end of one send queue that a kernel fills: looks at its doorbell, fetches WQEs, checks
// every field, hands operations to the back end, retires in order and writes CQEs.
//
// The kernel's side of the protocol is NCCL's GDAKI (2.28.9 to 2.30.7): dense WQEs of 64 bytes,
// one CQE each, CQE number = WQE number, a monotonic 64-bit doorbell word in host memory.
// WAIT (a companion queue waits for a CQE of another queue) is executed here and reaches no back
// end.
//
// Threads: the engine's only, except `failed()` and `counts()`, from any.
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "gda/abi/operation.h"
#include "gda/abi/wqe.h"
#include "gda/served/front/back_end.h"
#include "gda/served/front/decode.h"
#include "gda/served/front/key_table.h"
#include "gda/served/front/late_wqes.h"
#include "plugin/base/counters.h"

namespace twinpath::gda {

enum class QueueState : std::uint8_t { ready, error };

// What the doorbell word holds.
enum class DoorbellKind : std::uint8_t {
  count,  // number of WQEs written so far, 64 bits, host order
  // What an adapter's register takes (wqe.h); 0 until first rung.  A ring may come after a newer
  // one and be seen for a while; who stored it puts the newest there again
  // (Producer::store_doorbell).
  adapter,
};

// Writes finished CQEs where the kernel polls.  Host memory: at once; GPU memory: gathered until
// flush().  The last four bytes of a CQE (wqe_counter, signature, op_own) become visible after
// the rest.
class CqeWriter {
 public:
  virtual void write(std::uint64_t index, const std::uint8_t (&cqe)[64]) = 0;
  virtual void flush() {}

 protected:
  ~CqeWriter() = default;
};

// Of one (context, peer): numbers, memory, and the keys of its comm.  All memory is visible to the
// CPU and outlives the queue.
struct WorkQueueSetup {
  std::uint32_t qpn = 0;                    // 24 bits, unique in the engine
  std::uint32_t cqn = 0;                    // of its CQ, unique in the engine; WAIT names it
  std::uint32_t depth = 0;                  // power of two, 16..32768; CQ and SQ have the same
  std::uint8_t* sq = nullptr;               // depth * 64 bytes
  const std::uint64_t* doorbell = nullptr;  // producer index: number of WQEs written so far
  DoorbellKind doorbell_kind = DoorbellKind::count;
  const KeyTable* keys = nullptr;
  int peer = 0;  // rank that remote keys are looked up for
  // Tells "not written yet" from data: the SQ is filled with it and each slot again after use,
  // because the doorbell may overtake WQE bytes on their way to host memory.  Random per queue.
  std::uint64_t poison = 0;
  counters::GinCounts* counts = nullptr;  // the engine's
  std::uint64_t first = 0;  // number of the first WQE; not 0 only where counts are to wrap soon
  // How long a WQE is waited for whose doorbell was rung; then the queue fails.  Milliseconds were
  // seen where many GPU threads poll the same host memory.  Both are times in which this process
  // ran: kernels that are threads of it, or stood still with its host, wrote nothing meanwhile.
  std::int64_t patience_ns = 1'000'000'000;
  // And how long one of which nothing is missing but data that looks like poison; then it is taken
  // as it is.  An accident once in 2^32 dwords of inline data, while taking data too early would be
  // wrong bytes at the peer: so not short.
  std::int64_t data_patience_ns = 20'000'000;
};

class WorkQueue {
 public:
  // Finds a queue by the number of its CQ, for WAIT; null when there is none.
  using FindCq = std::function<const WorkQueue*(std::uint32_t cqn)>;

  // Fills the SQ with poison, so it comes before the first kernel.
  WorkQueue(const WorkQueueSetup& setup, BackEnd& back_end, CqeWriter& cq, FindCq find_cq);

  // Takes up to `budget` WQEs that have been rung for and gives them to the back end.  Returns how
  // many were taken, WAIT and NOP included.
  int scan(int budget);

  // By the back end, in order: all operations up to and including `index` are done.  May be called
  // from within issue() and flush().  Ignored for what a failed queue has flushed already.
  void complete(std::uint64_t index);
  // By the back end: the operation `index` failed.  It gets an error CQE with that syndrome, all
  // after it, present and future, "flushed".  Only this queue is harmed.  What the back end still
  // has under way behind `index` counts as flushed at once.  An idle queue is closed by
  // fail(issued(), ...).
  void fail(std::uint64_t index, Syndrome syndrome);

  // Nothing moves it before its doorbell does, or the back end fails it.  The engine's.
  bool resting() const {
    return produced_ == rung_ && produced_ == head_ && !have_pending_ && !issued_ && !written_ &&
           (state_ == QueueState::ready || drained_);
  }

  // CQEs written so far.
  std::uint64_t produced() const { return produced_; }
  // WQEs taken so far.
  std::uint64_t issued() const { return head_; }
  QueueState state() const { return state_; }
  bool failed() const { return failed_.load(std::memory_order_relaxed); }
  QueueCounts counts() const { return late_.counts(); }
  std::uint32_t cqn() const { return setup_.cqn; }
  int peer() const { return setup_.peer; }

 private:
  enum class Verdict : std::uint8_t { done, blocked, impossible };
  struct Taken {  // what is remembered of a WQE until its CQE
    std::uint8_t opcode = 0;
    bool wait = false;
  };
  // In state error: the WQE `index` gets this once all before it are done.
  struct Failure {
    std::uint64_t index = 0;
    Syndrome syndrome = Syndrome::none;
    std::uint8_t opcode = 0;
  };

  void count(std::size_t operation);
  void look_at_doorbell();
  bool take();        // the WQE at head_; false: not now
  bool fetch_head();  // into pending_
  bool take_wait();   // pending_ is a WAIT
  bool take_operation();
  void kill(std::uint64_t index, Syndrome syndrome, std::uint8_t opcode);
  void settle();
  int flush_rung(int budget);
  void retire(std::uint8_t opcode, Syndrome syndrome);
  void flush_cq();

  Verdict judge_wait() const;
  bool has_produced(std::uint32_t index) const;
  bool deadlocks(const WorkQueue& target) const;

  std::uint8_t* slot(std::uint64_t index) const {
    return setup_.sq + (index & (setup_.depth - 1)) * kWqeBytes;
  }
  Taken& taken(std::uint64_t index) { return taken_[index & (setup_.depth - 1)]; }

  const WorkQueueSetup setup_;
  BackEnd& back_end_;
  CqeWriter& cq_;
  const FindCq find_cq_;
  std::vector<Taken> taken_;

  // produced_ <= done_ <= head_, and head_ <= rung_ until the queue fails.
  std::uint64_t rung_;      // the doorbell when last looked at
  std::uint64_t head_;      // next WQE to take
  std::uint64_t done_;      // all WQEs before it are done
  std::uint64_t produced_;  // next CQE to write

  Decoded pending_;  // WQE head_, when have_pending_: blocked, or refused by a full back end
  bool have_pending_ = false;
  bool known_blocked_ = false;  // pending_ is a WAIT that was looked at before
  bool issued_ = false;         // since the back end's flush
  bool written_ = false;        // since the CQ's flush
  LateWqes late_;

  QueueState state_ = QueueState::ready;
  Failure failure_;
  bool drained_ = false;  // its CQE is written; the rest is flushed
  std::atomic<bool> failed_{false};
};

}  // namespace twinpath::gda
