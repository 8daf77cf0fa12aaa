#pragma once
// The receiving end of a connection: offers buffers to the sender by clear-to-send cells and
// counts what arrives by the immediates of the sender's writes (arrivals.cc).
//
// When cells leave: in their irecv if the sender has no other, and always those of a group, of GPU
// memory, of a large buffer and of a receive without completion.  A small host receive's cell else
// goes with what the session's next poll finds waiting, or a little later while the sender has more
// cells than wait here: until something arrives, kCtsPatience polls have passed, or kHoldBoundUs at
// the latest, by the hub's thread.
//
// Threads: irecv, iflush and tests from one thread at a time; all state is under the hub's lock
// because any comm that polls a shared CQ, and the hub's thread, may deliver our completions.  But
// for the test of a receive that is done: RecvRequest::left_ says so without the lock, and which
// requests are free is the caller's own affair.  Registration: any thread.
#include <array>
#include <atomic>
#include <bit>
#include <cstring>
#include <vector>

#include "plugin/base/clock.h"
#include "plugin/base/run_clock.h"
#include "proxy/connect/connection.h"
#include "proxy/queues/slot_pool.h"
#include "proxy/receive/cts_writer.h"
#include "proxy/receive/flush.h"
#include "proxy/receive/staged_recv.h"
#include "proxy/wire/parcel.h"

namespace twinpath {

// Receives of up to this may have their cells wait for company: what they bring is cheaper than
// the write of a cell.
inline constexpr std::size_t kPatientReceive = 4096;
// Polls of the session during which a cell may wait.
inline constexpr int kCtsPatience = 64;

class ProxyRecvComm;

class alignas(kCacheLine) RecvRequest final : public Request {
 public:
  RecvRequest(ProxyRecvComm* comm, std::uint32_t slot) : comm_(comm), bits_(slot) {}
  ~RecvRequest() = default;
  Status test(int& done, int* sizes) override;
  std::size_t parts(std::span<Part, kMaxParts> out) const override;
  std::uint32_t parts_left() const override;

 private:
  friend class ProxyRecvComm;
  template <class T, std::uint16_t N>
  friend class SlotPool;
  // Whether a parcel may bring a buffer's message: straight to it, or to the mirror before it.
  // Gone: its memory was given back, and no CPU may write there.
  enum class Copied : std::uint8_t { never, straight, to_mirror, gone };
  // A buffer of the receive.  The peer may not be believed: what lies where stands here.
  struct Sub {
    std::uint8_t* to = nullptr;
    std::uint32_t capacity = 0;
    struct State {
      std::uint8_t expected = 0;  // chunks; 0 until the first arrives
      std::uint8_t arrived = 0;
      Copied copied = Copied::never;
      bool sized = false;  // a chunk has left the message's size in the box
      bool complete() const { return expected != 0 && arrived == expected; }
      // All of it in one comparison, since it is asked for each message of a parcel.  Those behind
      // the receive's last buffer are not awaited: of a receive of several all have come before its
      // request is used again.
      bool awaits(Copied how) const {
        return std::bit_cast<std::uint32_t>(*this) == std::bit_cast<std::uint32_t>(fresh(how));
      }
      static constexpr State fresh(Copied how) { return {0, 0, how, false}; }
      static constexpr State whole() { return {1, 1, Copied::never, false}; }
      // In one store.
      void become(State next) {
        const auto bits = std::bit_cast<std::uint32_t>(next);
        std::memcpy(static_cast<void*>(this), &bits, sizeof bits);
      }
    } state;
  };
  // A new use of it: answers to earlier ones bring another generation.
  void begin(unsigned count, unsigned staged, bool optional) {
    bits_ = (bits_ + (1u << 9)) & kReceiveBits;
    count_ = static_cast<std::uint8_t>(count);
    set_left(optional ? 0 : count);
    staged_ = static_cast<std::uint8_t>(staged);
    optional_ = optional;
    active_ = true;
  }
  int slot() const { return CellMeta(bits_).slot(); }
  // Subs not complete; none of a receive without completion.  Locked; the caller's test() reads it
  // without the lock.
  unsigned left() const { return left_.load(std::memory_order_relaxed); }
  // To be seen with what has arrived.  Only holders of the lock write it.
  void set_left(unsigned n) {
    left_.store(static_cast<std::uint8_t>(n), std::memory_order_release);
  }
  // Of one that is done.
  TP_ALWAYS_INLINE Status finish(int& done, int* sizes);

  ProxyRecvComm* const comm_;
  std::uint64_t first_cell_ = 0;
  std::uint32_t bits_;  // slot and generation, as in a cell
  std::uint8_t count_ = 0;
  std::atomic<std::uint8_t> left_{0};
  std::uint8_t staged_ = 0;  // a bit for each sub that lands in its mirror first
  bool optional_ = false;
  bool active_ = false;  // the caller's own
  std::uint16_t next_free_ = 0;
  // Bytes of each that have come, once some have.
  std::array<std::uint32_t, kMaxRecvs> sizes_{};
  std::array<Sub, kMaxRecvs> subs_{};
  // Of each with several chunks: a bit for each queue that brought one.
  std::array<std::uint32_t, kMaxRecvs> queues_{};
};
static_assert(kMaxRecvs <= 8 && sizeof(RecvRequest) <= 4 * kCacheLine);

class FlushRequest final : public Request {
 public:
  Status test(int& done, int* sizes) override;

 private:
  friend class ProxyRecvComm;
  ProxyRecvComm* comm_ = nullptr;
  std::uint16_t slot_ = 0;
  std::uint16_t generation_ = 0;
  std::uint32_t rails_ = 0;  // a bit each
  std::uint64_t address_ = 0;
  const ProxyMemory* memory_ = nullptr;
  int pending_ = 0;
  bool active_ = false;
  bool waits_ = false;           // to be posted by its test: queues are being replaced
  std::int64_t not_before_ = 0;  // it is not done: a rail that brought data cannot be read through
};

class ProxyRecvComm final : public RecvComm,
                            private CompletionSink,
                            private HeldWork,
                            private Recoverable,
                            private MemoryUser {
 public:
  ProxyRecvComm(std::shared_ptr<SessionCore> core, int device, ConnectionParts parts);
  // What was accepted is offered first, and what is on its way taken in, as far as that takes a
  // moment.
  ~ProxyRecvComm() override;

  Status irecv(const RecvBuffers& buffers, bool completion_optional, Request** request) override;
  using RecvComm::irecv;
  Status iflush(std::span<const RecvBuffer> buffers, Request** request) override;
  Result<Memory*> register_memory(void* data, std::size_t bytes, MemoryType type,
                                  std::uint64_t dmabuf_offset, int dmabuf_fd) override;
  Status deregister_memory(Memory* memory) override;

 private:
  friend class RecvRequest;
  friend class FlushRequest;
  using Flushes = std::array<FlushRequest, kFlushSlots>;
  // Of one that was not done, or without completion: polls.
  TP_APART Status test_pending(RecvRequest& request, int& done, int* sizes);
  Status test(FlushRequest& request, int& done);
  void on_completion(const ibv_wc& wc) override;
  bool post_held(bool overdue) override;
  void give_up(const ProxyMemory& memory) override;

  TP_APART RecvRequest* make_request();
  // Whether the buffers may be received into; the bits of those that go through host memory.
  Status check(const RecvBuffers& buffers, bool watched, std::uint8_t& staged) const;
  // Whether it is host memory and registered here: what check() need not look at.
  bool plain(const void* data, std::size_t bytes, const Memory* memory) const;
  // Such a buffer, and what its cell says.
  struct Plain {
    void* data;
    std::size_t bytes;
    int tag;
    Memory* memory;
    std::uint32_t meta;
    std::uint64_t seq;
  };
  // Fills its part of the request and its cell.
  void offer_plain(const Plain& buffer, RecvRequest::Sub& sub, const CtsLayout& layout,
                   std::uint8_t* cell, int first_key);
  TP_APART Status irecv_group(const RecvBuffers& buffers, Request** request);
  // Whatever irecv's short way is not for.
  TP_APART Status irecv_any(const RecvBuffers& buffers, bool completion_optional,
                            Request** request);
  RecvRequest* begin(unsigned count, unsigned staged, bool optional);
  // Fills part `index` of the request and its cell.
  void offer(RecvRequest& request, unsigned index, const RecvBuffers& buffers);
  // The cell of a lone small receive, while the sender has others.
  TP_APART Status wait_or_post();
  TP_APART Status no_room_yet();
  // Looks how many cells the sender has used.
  TP_APART void look_in_box();
  TP_APART void post_cells();
  void post_new_cells();  // the same where there are some and the link is whole
  TP_APART void not_posted(int error);
  bool finished(const RecvRequest& r) const {
    return r.left() == 0 && (!r.optional_ || cts_.posted(r.first_cell_));
  }
  // Receives that the peer was told of and that wait for data.
  bool expects_data();
  Waiting waiting(int more);

  // --- arrivals.cc
  TP_APART void on_other(const ibv_wc& wc);
  TP_APART void on_data(const ibv_wc& wc, int queue);
  // What an immediate announces; false when it makes no sense here (a reason given already holds).
  TP_APART bool take_chunk(std::uint32_t bits, std::uint32_t bytes, int queue);
  TP_APART bool take_group(RecvRequest& request, const Immediate& imm, std::uint32_t bytes,
                           int queue);
  TP_APART bool take_parcel(std::uint32_t bits, std::uint32_t bytes, int queue);
  unsigned take_in_order(RecvRequest& request, const std::uint8_t* entry, const std::uint8_t* data,
                         unsigned most);
  // Whether the data of that part had all arrived, in this or the last use of its request.
  bool came_before(CellMeta which);
  // The request in that slot if it waits for that part, else null.
  RecvRequest* expecting(CellMeta which) {
    if (!requests_.made(which.slot())) [[unlikely]]
      return nullptr;
    RecvRequest& r = requests_.at(which.slot());
    return r.left() != 0 && r.bits_ == (which.receive() & ~kSubBits) && which.sub() < r.count_
               ? &r
               : nullptr;
  }
  // `rail`: that brought its last part; any, of one that was staged.
  TP_ALWAYS_INLINE void sub_complete(RecvRequest& r, counters::Rail& rail, unsigned subs = 1) {
    const unsigned left = r.left() - subs;
    r.set_left(left);
    if (left != 0) return;
    cts_.used(r.first_cell_, r.count_);
    if constexpr (counters::kConnectionCounts) rail.messages.set(cts_.ended());
  }
  // Since the caller's last call in vain: whether anything was accepted or finished.
  std::uint64_t moved() const { return cts_.added() << 16 ^ requests_.next(); }
  // A call could achieve nothing; `accepted`: for a receive that was.
  [[gnu::noinline]] void in_vain(bool accepted);
  TP_APART void repost(int queue);
  FlushRequest* flush_of(const ibv_wc& wc);  // null: of an earlier use
  void flush_done(const ibv_wc& wc);
  void flush_failed(const ibv_wc& wc);

  // A rail whose port has failed cannot be read through, which is how a flush knows that writes of
  // before have reached the GPU.  They have by then.
  std::int64_t landed_by() const {
    return now_ns() + std::int64_t{core_->devices->config().gone_rail_ms} * kMillisecond;
  }

  // --- staged_recv.cc
  // Has a part land in the mirror.
  void stage(RecvRequest& request, int index, const ProxyMemory& memory);
  // More of a staged sub has arrived, copy it on; false when it is too much.
  TP_APART bool land(RecvRequest& request, int sub, bool in_order);
  // A parcel has brought a whole message; false when none may or it is not awaited (a reason given
  // holds), but for those that go straight to their buffer.
  TP_APART bool land_parcel(RecvRequest& request, int sub, const std::uint8_t* from,
                            std::uint32_t bytes);
  void copy_on();
  void prepare_staging();

  // --- when queues are replaced (recv_recovery.cc)
  AtRisk at_risk() override;
  bool drained() override;
  bool settled() override { return staged_ == nullptr || !staged_->copying_parts(); }
  HeldState held() override;
  void receives_posted() override { unposted_.fill(0); }
  Status reach(FencedNote& note, std::string& why) override;
  bool reachable(int rail);
  int resume(const FencedNote& theirs) override;
  std::uint64_t progress() override;
  // Of the cell of that memory: the rail whose key is a cell's key `i`.
  int key_rail(int i) const { return first_key_rail_ + (i & key_rail_mask_); }
  void remember(std::uint64_t seq, const Memory* memory) {
    if (cell_memory_ != nullptr) [[unlikely]]
      (*cell_memory_)[cts_place(seq)] = memory;
  }
  // Posts it, unless queues are being replaced: then it waits.
  Status begin_flush(std::unique_lock<SpinLock>& hold, FlushRequest& request);
  Status post_flush(FlushRequest& request, std::uint32_t rails);
  // Those under way are to be posted anew.
  void repeat_flushes();

  // Flush queues and requests, unless there are some.  Without the hub's lock; the other with it.
  Status prepare_flush();
  void make_flushes();
  bool flush_wanted() const;

  CompletionHub* const hub_;
  const int device_;
  int patience_ = 0;  // polls since cells began to wait
  bool optional_allowed_ = true;
  std::uint32_t carried_ = 0;  // rails that brought data since the last flush, a bit each
  // Rails of the keys in cells: all of the device's, or the one of a queue in reserve.
  int first_key_rail_ = 0, key_rail_mask_ = ~0;
  // By the cell's place: the memory it names, where its keys may change.
  std::unique_ptr<std::array<const Memory*, kCtsCells>> cell_memory_;
  ParcelFrontier parcels_;
  SlotPool<RecvRequest, kRecvSlots> requests_;
  std::unique_ptr<RegisteredBuffer> box_;
  std::unique_ptr<RegisteredBuffer> shadow_;  // null where cells go inline
  std::unique_ptr<PeerLink> link_;
  CtsWriter cts_;
  std::array<std::uint16_t, kMaxQps> unposted_{};  // receive work requests used up, by queue
  std::array<std::uint32_t, kMaxQps> rail_bit_{};  // of each queue
  counters::Connection* const counts_;
  std::array<counters::Rail*, kMaxQps> rail_counts_{};  // of each queue

  std::shared_ptr<SessionCore> core_;
  FlushQueues flush_;
  bool flush_stale_ = false;       // its queues, or their ports, failed
  std::int64_t flush_try_at_ = 0;  // not made anew before
  RunClock flush_mute_{kSecond};   // since when they cannot be made
  const EndPlan plan_;
  std::unique_ptr<StagedReceives> staged_;  // made with the first memory to be staged
  std::unique_ptr<Flushes> flushes_;        // made with the first GPU memory
};

}  // namespace twinpath
