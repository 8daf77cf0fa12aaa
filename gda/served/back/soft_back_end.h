#pragma once
// Executes one queue's operations on the software HCA in place of a queue pair (mode `gda-cpu`
// there): memory behind keys is found as the adapter finds it, GPU memory goes to the copy engines
// straight away, host memory is copied by the CPU, and a signal is one atomic on the peer's table,
// added by whoever sees the data before it arrive.  Nobody at the peer has to poll for it.  A
// signal in a window of GPU memory is added by the copy thread of that GPU, begun when its turn has
// come.
//
// What is out of reach (atomics in windows of other processes, memory that the system does not let
// us copy, keys that are wrong) goes through the queue pair, alone: before it everything else has
// ended, and nothing else begins until it has.  If its port is lost meanwhile, the queue is.
//
// Order: effects of the CPU come after all that was issued before them; copies of the copy engines
// are in order among themselves, but may pass a signal that waits for copies before it.  NCCL's
// kernels cannot tell: they may not write what a peer has not released.
//
// Threads: the engine's, and the GPU's copy thread in copy_done(); they share the ring under its
// lock, held for no longer than a signal takes.  issued(), finished(), dead() and quiet(): any.
#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "gda/served/back/soft_ways.h"
#include "gda/served/back/verbs_back_end.h"
#include "gda/served/front/back_end.h"
#include "gda/served/front/work_queue.h"
#include "plugin/base/sync.h"
#include "plugin/base/wait_within.h"
#include "plugin/fabric/soft_hca.h"

namespace twinpath::gda {

struct SoftBackEndSetup {
  VerbsBackEnd* verbs = nullptr;    // for what is out of reach; outlives this
  SoftWaysSetup ways;               // over its queue pairs
  std::uint32_t depth = 1;          // of the work queue: more operations are never under way
  std::uint8_t* scratch = nullptr;  // depth * VerbsBackEnd::kScratchSlot, pinned, as that one's
  // The peer's signals: their key and address at the peer, and where they are mapped here; null
  // where they are not.  Of a peer in this process nothing is needed.
  std::uint64_t signals = 0, signals_bytes = 0;
  std::uint8_t* signals_here = nullptr;
};

class SoftBackEnd final : public BackEnd {
 public:
  // Copies end by themselves, or the copy thread gives them up.
  static constexpr std::int64_t kCopyLimit = 40 * kSecond;

  explicit SoftBackEnd(const SoftBackEndSetup& setup);
  // Waits for copies under way, which need nobody's help to end, within the limit.
  ~SoftBackEnd();
  SoftBackEnd(const SoftBackEnd&) = delete;
  SoftBackEnd& operator=(const SoftBackEnd&) = delete;
  // Before the first scan.
  void attach(WorkQueue& queue) { queue_ = &queue; }
  // The peer cannot do the same: all through the first queue pair.  Before the first scan.
  void step_aside() { aside_ = true; }
  // For all queues of a GPU that has failed one limit, not one after the other; it outlives them.
  void end_within(RunLimit& limit) { limit_ = &limit; }

  Issued issue(std::uint64_t index, const Operation& operation) override;
  void flush() override { setup_.verbs->flush(); }
  // Reports what copy engines have finished; true when there was something.
  bool poll();
  // As VerbsBackEnd's.
  void ask();
  void fail_all(Syndrome syndrome);
  std::uint64_t issued() const;
  std::uint64_t finished() const;
  bool dead() const { return ring_->dead.load(std::memory_order_acquire) || setup_.verbs->dead(); }
  // The process that makes copies has ended, and no peer is reached by way of GPU memory any more;
  // or this one is reached over no port.
  bool unreachable() const { return ring_->unreachable.load(std::memory_order_acquire); }
  // poll() would find nothing, nor will it before the next issue().  The engine's.
  bool resting() const {
    return quiet() && !ring_->attention.load(std::memory_order_acquire) &&
           ring_->finished.load(std::memory_order_acquire) <= reported_;
  }
  // Nothing here moves bytes any more.
  bool quiet() const { return ring_->under_way.load(std::memory_order_acquire) == 0; }

 private:
  enum class Effect : std::uint8_t { nothing, add, copy, update };
  enum class State : std::uint8_t { pending, moving, done, failed };
  struct Ring;
  // An operation; as a job it is the copy engines'.
  struct Slot : gpu::WordUpdate {
    Ring* ring = nullptr;
    std::uint64_t index = 0;  // of its WQE
    State state = State::pending;
    Effect effect = Effect::nothing;
    int way = 0;
    soft::Place to_place, from_place;
    std::uint64_t moved = 0;  // by the CPU, of `bytes`
  };
  // What the copy thread reaches; outlives this object if copies never end.
  struct Ring {
    explicit Ring(const SoftBackEndSetup& setup) : ways(setup.ways), slots(setup.depth) {}
    Slot& at(std::uint64_t number) { return slots[number % slots.size()]; }
    // Lock held.  Retires what is done, from the front; carries out effects that were waiting, long
    // ones only for the engine.
    void advance();

    // Looked up by the engine; copy() and drop() also by the copy thread, so they read no member
    // that changes.  Here because they keep the peer's key tables mapped.
    SoftWays ways;
    SpinLock lock;  // first, tail's increase, states
    std::vector<Slot> slots;
    std::uint64_t first = 0, tail = 0;        // [first, tail) are under way
    std::atomic<std::uint64_t> finished{0};   // WQEs before it are done
    std::atomic<std::uint64_t> under_way{0};  // tail - first
    std::atomic<bool> attention{false};  // the engine must look at the front: it failed, or is long
    std::atomic<bool> dead{false};
    std::atomic<bool> unreachable{false};
  };

  static constexpr std::uint64_t kNone = ~std::uint64_t{0};

  static void copy_done(gpu::CopyJob* job, Status status);
  // False: the system refuses.  Of a copy the next slice.
  static bool carry_out(Slot& slot);
  static void let_go(Slot& slot);
  static bool is_long(const Slot& slot);

  std::uint8_t* scratch() const {
    return setup_.scratch + ring_->tail % setup_.depth * VerbsBackEnd::kScratchSlot;
  }
  soft::Reached prepare(const Operation& operation, Slot& slot);
  soft::Reached prepare_add(const Operation& operation, Slot& slot);
  Issued by_queue_pair(std::uint64_t index, const Operation& operation, int way);
  Issued append(Slot& slot, bool copy_engine);
  bool attend();
  void finish_now(std::uint64_t index);
  void die(std::uint64_t index, Syndrome syndrome);

  const SoftBackEndSetup setup_;
  WorkQueue* queue_ = nullptr;
  std::unique_ptr<Ring> ring_;
  bool aside_ = false;
  std::uint64_t partial_ = kNone;  // the queue pair has taken a part of this operation
  RunLimit* limit_ = nullptr;      // null: its own
  std::uint64_t reported_ = 0;
  std::atomic<std::uint64_t> issued_{0};
};

}  // namespace twinpath::gda
