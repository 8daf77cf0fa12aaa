#pragma once
// The sending end of a connection: finds the clear-to-send cell for a message and writes the
// message to where the cell says.
//
// When it leaves.  A message goes out in its isend, unless it waits for company (coalescer.h) or is
// copied to host memory first.  Waiting ends after kPatience polls of the session, and at the
// latest after kHoldBoundUs, by the hub's thread.  Nobody has to call this comm for it.
//
// Order.  No message depends on another: each has a cell, a place and a notice of its own, so they
// may take any queue and overtake each other.  Within a message, pieces are counted.
//
// Threads: isend and tests from one thread at a time; all state is under the hub's lock because
// any comm that polls a shared CQ, and the hub's thread, may deliver our completions.  But for the
// test of a request that is done: SendRequest::pending_ says so without the lock, and which
// requests are free is the caller's own affair.  Registration: any thread.
#include <algorithm>
#include <array>
#include <atomic>

#include "proxy/connect/connection.h"
#include "proxy/queues/depths.h"
#include "proxy/queues/slot_pool.h"
#include "proxy/send/coalescer.h"
#include "proxy/send/cts_ring.h"
#include "proxy/send/flights.h"
#include "proxy/send/lanes.h"
#include "proxy/send/staged_send.h"

namespace twinpath {

class ProxySendComm;

class alignas(kCacheLine) SendRequest final : public Request {
 public:
  SendRequest(ProxySendComm* comm, std::uint64_t wr_id) : comm_(comm), wr_id_(wr_id) {}
  ~SendRequest() = default;
  Status test(int& done, int* sizes) override;
  std::size_t parts(std::span<Part, kMaxParts> out) const override;
  std::uint32_t parts_left() const override;

 private:
  friend class ProxySendComm;
  template <class T, std::uint16_t N>
  friend class SlotPool;
  static constexpr std::uint16_t kNone = Coalescer::kNone;
  static constexpr std::uint8_t kChunked = 1;   // staged, in several writes on one queue
  static constexpr std::uint8_t kTimed = 2;     // how long it takes is counted
  static constexpr std::uint8_t kUnnoted = 4;   // the receiver gets no notice of it
  static constexpr std::uint8_t kStaged = 8;    // from its memory's mirror
  static constexpr std::uint8_t kPaced = 16;    // its pieces are measured
  static constexpr std::uint8_t kWatched = 32;  // its flight is told of them
  // A new use of it: completions of earlier ones find another number.  `seq`: of its cell.
  void begin(const void* data, std::size_t bytes, const ProxyMemory* memory, std::uint64_t seq,
             std::uint16_t before = kNone) {
    bytes_ = static_cast<std::uint32_t>(bytes);
    data_ = static_cast<const std::uint8_t*>(data);
    memory_ = memory;
    cell_ = static_cast<std::uint32_t>(seq);
    wr_id_ += std::uint64_t{1} << 48;
    pending_.store(1, std::memory_order_relaxed);
    active_ = true;
    special_ = 0;
    before_ = before;
  }
  // Writes without completion.  Locked; the caller's test() reads it without the lock.
  std::uint8_t pending() const { return pending_.load(std::memory_order_relaxed); }
  // To be seen with what happened before: at 0 its owner may use the memory again.  No atomic
  // read-modify-write, for only holders of the lock write it.
  void set_pending(int n) {
    pending_.store(static_cast<std::uint8_t>(n), std::memory_order_release);
  }
  // Of one that is done.
  TP_ALWAYS_INLINE Status finish(int& done, int* sizes);
  ProxySendComm* const comm_;
  std::uint64_t wr_id_;
  std::uint32_t bytes_ = 0;
  // What it takes to send it again.
  std::uint32_t cell_ = 0;  // low half of its number
  const std::uint8_t* data_ = nullptr;
  const ProxyMemory* memory_ = nullptr;
  std::uint16_t before_ = kNone;    // slot of the one before it in its batch
  std::uint16_t block_ = kNoBlock;  // of the parcel whose completion this one gets
  std::uint16_t next_free_ = 0;
  std::uint8_t pool_ = 0;  // rail of that block
  std::atomic<std::uint8_t> pending_{0};
  bool active_ = false;       // the caller's own
  std::uint8_t special_ = 0;  // of those
  bool small_ = false;        // its completion is what others are held for
};
static_assert(sizeof(SendRequest) == kCacheLine);

class ProxySendComm final : public SendComm,
                            private CompletionSink,
                            private HeldWork,
                            private Recoverable,
                            private MemoryUser {
 public:
  ProxySendComm(std::shared_ptr<SessionCore> core, int device, ConnectionParts parts);
  // What was accepted goes out first, as far as that takes a moment.
  ~ProxySendComm() override;

  Status isend(void* data, std::size_t bytes, int tag, Memory* memory, Request** request) override;
  Status isend_watched(void* data, std::size_t bytes, int tag, Memory* memory,
                       Request** request) override;
  Result<Memory*> register_memory(void* data, std::size_t bytes, MemoryType type,
                                  std::uint64_t dmabuf_offset, int dmabuf_fd) override;
  Status deregister_memory(Memory* memory) override;

 private:
  friend class SendRequest;
  // Of one that was not done: polls.
  TP_APART Status test_pending(SendRequest& request, int& done, int* sizes);
  void on_completion(const ibv_wc& wc) override;
  TP_APART void on_other(const ibv_wc& wc);
  TP_APART void batch_completed(SendRequest& last, const ibv_wc& wc);
  bool post_held(bool overdue) override;
  void give_up(const ProxyMemory& memory) override;

  // Whatever isend's short way is not for; the second of them locked.
  struct Special {
    bool stage = false;    // through host memory
    bool watched = false;  // its flight is noted
  };
  TP_APART Status isend_any(void* data, std::size_t bytes, int tag, const ProxyMemory* memory,
                            bool watched, Request** request);
  // Of plain memory, locked: what the short way is not for.
  TP_APART Status answer_checked(void* data, std::size_t bytes, int tag, const ProxyMemory* memory,
                                 Request** request);
  Status answer_member(void* data, std::size_t bytes, int tag, const ProxyMemory* memory,
                       Request** request);
  // Of plain memory.  Those that leave the lock are entered with it.
  TP_APART Status isend_waiting(void* data, std::size_t bytes, int tag, const ProxyMemory* memory,
                                Request** request);
  TP_APART Status isend_and_leave(void* data, std::size_t bytes, int tag, const ProxyMemory* memory,
                                  Request** request);
  TP_APART Status answer_and_leave(void* data, std::size_t bytes, int tag,
                                   const ProxyMemory* memory, Request** request);
  TP_APART Status gather_and_leave(void* data, std::size_t bytes, int tag,
                                   const ProxyMemory* memory, Request** request);
  TP_APART Status post_batch_and_leave();
  TP_APART Status post_failed_and_leave(int error);
  TP_APART Status answer(void* data, std::size_t bytes, int tag, const ProxyMemory* memory,
                         Special special, Request** request);
  SendRequest* make_request();
  bool writes_under_way();
  Waiting waiting(int more);
  // --- what readers of the counters learn
  // Since the caller's last call in vain: whether anything was accepted or finished.
  std::uint64_t moved() const { return ring_.head() << 16 ^ requests_.next(); }
  counters::Wait cause();
  // A call could achieve nothing, with `more` requests beside those accepted.
  [[gnu::noinline]] void in_vain(int more);
  // Something is posted, of a batch all at once.  Behind the use of its cell.
  TP_ALWAYS_INLINE void count_posted(const Lane& lane, std::uint64_t bytes) {
    if constexpr (!counters::kConnectionCounts) return;
    // Each read once: after an atomic store the compiler would read them again.
    counters::Rail& to = *lane.counts;
    const std::uint64_t messages = ring_.head();
    to.messages.set(messages);
    to.bytes.add(bytes);
  }
  void set_slow_from() { slow_from_ = std::min(ring_.report().due_at() - 1, time_at_); }
  void leg_arrived(const SendRequest& request, const ibv_wc& wc);
  // Locked, like all of flights_.
  void note_leg(const Lane& lane, std::size_t bytes) {
    if (flights_ != nullptr) [[unlikely]]
      flights_->add(lane.rail, lane.qp->qp_num, static_cast<std::uint32_t>(bytes));
  }
  void begin_timing(SendRequest& request);
  void end_timing(SendRequest& request, const ibv_wc& wc);

  // Whether it may be sent at all; `stage`: through host memory.
  Status check(const void* data, std::size_t bytes, const ProxyMemory* memory, bool& stage) const;
  TP_APART Status no_cell_yet();
  // --- posting (send_post.cc)
  Status send_now(SendRequest& request, const Outgoing& m);
  // A message of a group, or one that is held behind another.
  Status gather(SendRequest& request, const Outgoing& m) {
    const bool leaves = coalescer_.add(m, request.before_);
    if (flights_ != nullptr) [[unlikely]]  // the queue is chosen when the batch goes
      note_gathered(request);
    if (leaves) return post_batch();
    hub_->hold(*this);
    return Status::ok;
  }
  // --- groups whose parcel is laid as they come (send_group.cc)
  // A message for the next cell, which is of a group.
  TP_APART Status begin_group_and_leave(void* data, std::size_t bytes, int tag,
                                        const ProxyMemory* memory, Request** request);
  // Whether that group may be such.
  bool begin_group(CellMeta first);
  // A request for its next member; null where that is something else.
  TP_ALWAYS_INLINE SendRequest* member(int tag, std::size_t bytes) {
    if (!coalescer_.group_open() || link_->halted()) [[unlikely]]
      return nullptr;
    const CellView cell = coalescer_.group().cell();
    if (cell.tag() != tag || bytes > cell.bytes()) [[unlikely]]
      return nullptr;
    return requests_.take_again();
  }
  // Before it is added to the group.
  TP_ALWAYS_INLINE void begin_member(SendRequest& request, const void* data, std::size_t bytes,
                                     const ProxyMemory* memory) {
    request.begin(data, bytes, memory, ring_.head(), coalescer_.last());
    ring_.use_next();
  }
  Status post_group();
  // Entered with the lock, and leaves it.
  TP_APART Status post_group_and_leave();
  // Nothing more is added to it: members that were sent are a batch.
  TP_APART void end_group();

  void note_gathered(const SendRequest& request) {
    flights_->add(lanes_.first().rail, 0, request.bytes_);
  }
  TP_APART Status post_batch();
  Status post_whole(SendRequest& request, const Outgoing& m, const Lane& lane) {
    if (m.bytes <= kParcelBytes) {
      request.small_ = true;
      coalescer_.small_left();
    }
    count_posted(lane, m.bytes);
    WriteMaker::fill(m, WriteMaker::whole(m), lane, wr_, sge_);
    wr_.wr_id = request.wr_id_;
    wr_.imm_data = htonl(message_immediate(m.meta.receive(), 1));
    wr_.send_flags |= IBV_SEND_SIGNALED;
    ibv_send_wr* bad = nullptr;
    if (const int error = ibv_post_send(lane.qp, &wr_, &bad); error != 0) [[unlikely]]
      return post_failed(lane, m.bytes, error);
    return Status::ok;
  }
  // A message cut over several lanes.
  Status post_striped(SendRequest& request, const Outgoing& m, Lanes::Range over);
  Status post_piece(const SendRequest& request, const Outgoing& m, const WriteMaker::Piece& piece,
                    const Lane& lane);
  TP_APART Status post_failed(const Lane& lane, std::size_t bytes, int error);
  void piece_arrived(const ibv_wc& wc);
  // Of that completion, or -1.
  int lane_of(const ibv_wc& wc) const;
  Status tell_used();
  SendBatch::Parcel take_parcel(SendRequest& last, int rail);
  void warn_truncated(std::size_t sent, std::size_t posted);

  // --- when queues are replaced (send_recovery.cc)
  AtRisk at_risk() override;
  bool drained() override { return true; }
  bool settled() override { return true; }
  HeldState held() override;
  void receives_posted() override {}
  Status reach(FencedNote& note, std::string& why) override;
  int resume(const FencedNote& theirs) override;
  // Cells that were seen before with the keys that they have now; false: one names memory that the
  // receiver does not.
  bool renew_keys(const FencedNote& theirs);
  std::uint64_t progress() override;
  void choose_queues();
  // The cell of an answer without notice: the receiver may use its place again before the answer
  // has arrived.
  void keep_cell(SendRequest& request, const CellView& cell);
  Status send_again(SendRequest& request);
  // It goes, if it has not gone before: what is under way out of it can no longer be sent again.
  void forget(const ProxyMemory& memory);
  // The message has bytes, and their memory has gone.
  static bool forgotten(const SendRequest& r) { return r.memory_ == nullptr && r.bytes_ != 0; }
  std::uint64_t cell_of(const SendRequest& r) const { return ring_.number(r.cell_); }

  // --- through host memory (staged_send.cc): the copies are started at once, and each poll of the
  // session posts what has been copied.
  void prepare_staging();
  void send_staged(SendRequest& request, const Outgoing& m);
  void start_copies();
  void post_staged();
  int post_staged_again();
  Status post_copied(const StagedSends::Piece& piece);

  // What each isend looks at.
  CompletionHub* const hub_;
  CtsRing ring_;
  static constexpr std::uint64_t kNever = ~std::uint64_t{0};
  // The next message to be timed.
  std::uint64_t time_at_ = counters::kConnectionCounts ? 0 : kNever;
  std::uint64_t slow_from_ = 0;  // messages from here on go no short way: the lesser of both
  counters::Connection* const counts_;
  const std::uint64_t wr_base_;
  const std::size_t most_bytes_;
  std::size_t short_way_ = 0;  // messages of up to this may go it
  const int device_;
  const WriteMaker maker_;
  SlotPool<SendRequest, kSendSlots> requests_;
  Coalescer coalescer_;

  Lanes lanes_;
  ibv_send_wr wr_{};  // of a message that goes whole
  ibv_sge sge_{};

  std::vector<ParcelPool*> pools_;  // by rail

  std::shared_ptr<SessionCore> core_;
  std::unique_ptr<RegisteredBuffer> ring_memory_;
  std::unique_ptr<PeerLink> link_;
  // By slot, kept_stride_ each; made with the first answer without notice that could be lost.
  std::vector<std::uint8_t> kept_cells_;
  const EndPlan plan_;
  std::unique_ptr<Flights> flights_;     // null: nobody has watched a message
  std::unique_ptr<StagedSends> staged_;  // made with the first memory to be staged
  int staged_writes_ = 0;                // writes of kChunked requests under way
  std::int64_t timed_since_ = 0;         // when the message that is timed was posted; 0: none is
  std::uint64_t looks_ = 0;              // at what is at risk
  bool warned_truncated_ = false;
  bool keys_change_ = false;  // of cells: a queue in reserve was in use
};

}  // namespace twinpath
