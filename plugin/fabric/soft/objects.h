#pragma once
// The soft HCA's verbs objects.  They *are* ibv_* objects (derived from them), so the inline
// data-path functions of verbs.h reach us through ibv_context::ops.
//
// Locks, outermost first: Hca::lock_ (lists of objects) -> SoftCq::members_lock ->
// SoftQp::lock -> SoftSrq::lock, SoftCq::lock -> that of an EventQueue.  A copy thread starts
// with SoftQp::lock.
#include <infiniband/verbs.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <optional>
#include <vector>

#include "plugin/base/sync.h"
#include "plugin/fabric/soft/device_spec.h"
#include "plugin/fabric/soft/event_queue.h"
#include "plugin/fabric/soft/keys.h"
#include "plugin/fabric/soft/port_rate.h"
#include "plugin/fabric/soft/qp_link.h"
#include "plugin/fabric/soft/queues.h"
#include "plugin/fabric/soft/retry_clock.h"
#include "plugin/fabric/soft/team_copy.h"
#include "plugin/gpu/engine.h"

namespace twinpath::soft {

class Hca;

struct SoftDevice : ibv_device {
  DeviceSpec spec;
  Hca* hca = nullptr;
  int index = 0;
  std::atomic<std::uint32_t> ports_down{0};  // bit n: port n
  bool port_up(int port) const {
    return (ports_down.load(std::memory_order_acquire) >> port & 1) == 0;
  }
  // What ports lose unnoticed (set_port_loss), a bit each.
  std::atomic<std::uint32_t> ports_silent{0}, ports_deaf{0}, ports_unanswered{0};
  std::array<PortRate, 9> rates;     // by number of the port
  std::atomic<bool> limited{false};  // one of these was ever set
  bool carries(int port) const {
    return port_up(port) && (ports_silent.load(std::memory_order_acquire) >> port & 1) == 0;
  }
  const Personality& like() const { return *spec.like; }
  std::array<std::atomic<std::uint16_t>, 9> lids{};  // that ports were given; 0: the first one
  std::uint16_t lid(int port) const;
};

// Lives inside a verbs_context, so that a libibverbs facade may make an extended context of it
// (extended.h); here abi_compat stays null and nothing looks at the outer part.
struct SoftContext : verbs_context {
  Hca* hca = nullptr;
  SoftDevice* soft_device = nullptr;
  EventQueue<ibv_async_event> events;  // async_fd is its descriptor
};

struct SoftPd : ibv_pd {
  std::uint32_t number = 0;
  std::atomic<int> users{0};
};

struct SoftMr : ibv_mr {
  PointerInfo info;
  std::uint64_t alloc_id = 0;
};

struct SoftCq;
struct SoftChannel : ibv_comp_channel {
  EventQueue<SoftCq*> events;  // fd is its descriptor
  std::mutex users_lock;       // guards refcnt
};

// The mutex, condition and counters of completed events that verbs objects carry, and how many
// events of the object were handed out: it may not go before all of them are acknowledged.
struct Reported {
  std::uint32_t events = 0;  // guarded by the EventQueue that they leave
};

enum class Armed : std::uint8_t { no, solicited, any };

struct SoftCq : ibv_cq {
  SpinLock lock;  // the ring, armed
  Raw<ibv_wc> ring;
  std::uint64_t head = 0, tail = 0;
  std::atomic<Armed> armed{Armed::no};
  std::atomic<bool> overflowed{false};
  // Set by each poll, cleared by the engine thread, which keeps in `idle` whether the owner looks
  // for itself.
  std::atomic<bool> polled{false};
  bool idle = false;
  std::uint64_t idle_round = 0;
  Reported comp_reported, async_reported;
  std::mutex members_lock;  // held while member QPs are advanced, so that none is destroyed
  std::vector<SoftQp*> members;
  std::vector<SoftQp*> awake;  // those of them that a poll moves along (activity.cc)
};

struct SoftSrq : ibv_srq {
  SpinLock lock;  // queue, limit
  ReceiveQueue queue;
  std::uint32_t limit = 0;  // 0: not armed
  std::atomic<int> users{0};
  Reported reported;
};

// The peer's atomic on GPU memory of this process that the responder stands at.
struct QpUpdate : WordUpdate {
  enum class State : std::uint8_t { idle, moving, done, failed };
  SoftQp* qp = nullptr;
  std::atomic<std::uint32_t>* held = nullptr;  // count of the key that it is under
  State state = State::idle;
};

// Fault injection: the atomic on host memory that the responder stands at, between its read and its
// write.
struct SplitAtomic {
  std::int64_t due = 0;  // of the write; 0: none
  std::uint64_t old = 0;
};

// Whether polls and sweeps pass a queue pair by (activity.cc).
struct QpActivity {
  // Set with the queue pair's lock and Hca::lock_ held, cleared with Hca::lock_.
  std::atomic<bool> asleep{true};
  // Guarded by Hca::lock_: when it last had something to do, and how much it had done by then.
  std::int64_t busy_at = 0;
  std::uint64_t seen_work = 0;
};

// Large host messages under way: the one that it sends, or reads, and the one that it takes; and
// what copy engines do for it.
struct QpCopies {
  std::uint32_t jobs_in_flight = 0;
  TeamCopy out, in;
  Claim own_claim{};  // of one that the far end does not help with
};

// What a sender keeps of its messages.
struct RequesterState {
  std::uint64_t messages = 0;           // sent so far that will be acknowledged
  std::uint64_t last_data_message = 0;  // last one whose data travels in packets
  std::uint32_t reads_outstanding = 0;
  std::uint32_t pull_id = 0;
  bool no_pull = false;      // the peer could not read our memory once
  std::uint64_t copied = 0;  // slices copied by us, for the retry clock
  std::uint64_t told = 0;    // how far the wire was when the far bell was last rung
};

// Of the SEND or READ that a responder stands at.
struct ResponderState {
  std::uint64_t send_offset = 0;
  std::uint64_t read_offset = 0;
  bool rnr_reported = false;
  bool established = false;        // IBV_EVENT_COMM_EST was given
  std::uint64_t pull_stalled = 0;  // what pull_failed says, until it is fixed
};

struct SoftQp : ibv_qp {
  Hca* hca = nullptr;
  SoftContext* soft_context = nullptr;
  SpinLock lock;
  QpActivity activity;
  ibv_qp_attr attr{};
  ibv_qp_cap cap{};
  bool signal_all = false;
  std::uint64_t direct_from = 0;  // bytes from which a copy by us is better than packets
  SendQueue send;
  ReceiveQueue receive;  // with an SRQ one entry: the receive that a message is consuming
  QpLink link;
  QpCopies copies;
  RequesterState requester;
  RetryClock retry;
  ResponderState responder;
  QpUpdate update;
  SplitAtomic split;
  bool drain_event = false;          // IBV_EVENT_SQ_DRAINED is owed
  std::optional<std::uint32_t> ece;  // what the owner has chosen of the device's options
  Reported reported;
};

inline SoftContext* soft(ibv_context* c) {
  // verbs.h's own container_of: ibv_context is the last member of verbs_context.
  return static_cast<SoftContext*>(reinterpret_cast<verbs_context*>(
      reinterpret_cast<std::uint8_t*>(c) - offsetof(verbs_context, context)));
}
inline const Personality& like(ibv_context* c) { return soft(c)->soft_device->like(); }
inline SoftQp* soft(ibv_qp* q) { return static_cast<SoftQp*>(q); }
inline SoftCq* soft(ibv_cq* c) { return static_cast<SoftCq*>(c); }
inline SoftSrq* soft(ibv_srq* s) { return static_cast<SoftSrq*>(s); }
inline SoftChannel* soft(ibv_comp_channel* c) { return static_cast<SoftChannel*>(c); }

// --- cq.cc
// Gives the completion's number in this CQ: it has been polled when `head` is beyond it.
std::uint64_t push_completion(SoftCq& cq, const ibv_wc& wc, bool solicited = false);

// --- channel.cc
// The armed CQ got this completion.  CQ's lock held.
void notify(SoftCq& cq, const ibv_wc& wc, bool solicited);
// A CQ that is going: takes its events back and waits for those that were handed out.
void end_channel_use(SoftCq& cq);

// --- events.cc
void async_event(SoftQp& qp, ibv_event_type type);
void async_event(SoftCq& cq, ibv_event_type type);
void async_event(SoftSrq& srq, ibv_event_type type);
// An object that is going: takes its events back and waits for those that were handed out.
void end_events(SoftQp& qp);
void end_events(SoftCq& cq);
void end_events(SoftSrq& srq);
void init_waiting(pthread_mutex_t& mutex, pthread_cond_t& cond);
void wait_acknowledged(pthread_mutex_t& mutex, pthread_cond_t& cond, const std::uint32_t& completed,
                       std::uint32_t reported);
void acknowledged(pthread_mutex_t& mutex, pthread_cond_t& cond, std::uint32_t& completed,
                  std::uint32_t count);

// --- shared_receive.cc
// Moves one receive of the SRQ into the QP's own queue; false: the SRQ is empty.  QP's lock held.
bool take_shared(SoftQp& qp);

// --- responder.cc: executes what the peer put into the ring.  Lock held.  True if anything moved.
bool respond(SoftQp& qp);
// How far it came with a packet that other files execute; wait: to be called again; more: the same,
// and a slice of it is done.
enum class Executed : std::uint8_t { done, wait, more, refused, failed };
// shared_copy.cc: the responder's part of a shared message.
Executed pull(SoftQp& qp, const PacketHeader& p, const std::uint8_t* payload);
// atomic.cc: FETCH_ADD and CMP_SWAP; answers with the old value.
Executed execute_atomic(SoftQp& qp, const PacketHeader& p, const std::uint8_t* payload);
// An atomic that the fault split_us has begun is not ended.
void end_split(SoftQp& qp);
// Our own memory under a key that the peer named, held; none when the QP's or the key's rights,
// bounds or PD refuse it.
HeldKey hold_any_target(SoftQp& qp, std::uint32_t rkey, std::uint64_t address, std::uint64_t bytes,
                        std::uint32_t access);
// The same, none when it is not host memory, too.
HeldKey hold_target(SoftQp& qp, std::uint32_t rkey, std::uint64_t address, std::uint64_t bytes,
                    std::uint32_t access);
// Scatters into the SGE list from byte `offset` of it; false when it does not fit or is not
// writable host memory under these keys of this PD.
bool scatter(SoftQp& qp, ibv_pd* pd, const ibv_sge* sges, int n, std::uint64_t offset,
             const void* from, std::uint64_t bytes);

// --- requester.cc: runs the send queue.  Lock held.  True if anything moved.
bool run_send_queue(SoftQp& qp);
// --- timers.cc: retry limits, dead peers, drained queues.  Engine thread; takes the lock.
void check_timers(SoftQp& qp, std::int64_t ran);  // a RunClock's time

// --- packets.cc: the outgoing ring.  Lock held.
// Room for a packet with `payload` bytes, or null; publish() makes it visible.
PacketHeader* reserve_packet(SoftQp& qp, std::uint32_t payload);
void publish_packet(SoftQp& qp, PacketHeader* p);

// --- queue_pair.cc
void enter_error(SoftQp& qp);  // lock held: state ERR, flushes both queues
void retire(SoftQp& qp);       // lock held: completes finished entries in order
// Lock not held, in a state in which no copy begins: what engines of GPUs were given has ended.  It
// cannot be taken back, and always ends.
void wait_for_engines(SoftQp& qp);
// Runs both halves once; gives false at once when somebody else holds the lock.
bool advance(SoftQp& qp);
void stop_copies(SoftQp& qp);           // lock held: no thread of the team is at its memory
void reset_queues(SoftQp& qp);          // lock held: as new, its wire forgotten
void take_losses(SoftQp& qp);           // lock held: what its port loses
void set_carrier(SoftQp& qp, bool up);  // lock held: the port's link is there or not

// --- activity.cc: queue pairs that have nothing to do sleep.
// Lock held, and the work in place: a queue pair of ours has something to do, or may have.
void rouse(SoftQp& qp);
inline void rouse_if_asleep(SoftQp& qp) {
  if (qp.activity.asleep.load(std::memory_order_relaxed)) [[unlikely]]
    rouse(qp);
}

// --- bell.cc: telling the far end of what was put on the wire, where it asked for that.
// Lock held.  After *every* packet that is published, before the lock is left: a far end that
// sleeps learns of it here only.
void ring_far_bell(SoftQp& qp);
inline void ring_if_wanted(SoftQp& qp) {
  // The compiler must not look at the bell before the packet is published; the processor may, and
  // activity.cc says why that does no harm.
  std::atomic_signal_fence(std::memory_order_seq_cst);
  if (qp.link.theirs != nullptr && qp.link.their_bell->wanted.load(std::memory_order_relaxed) != 0)
      [[unlikely]]
    ring_far_bell(qp);
}
// Asks the far end to ring.  Takes the lock; not patient: only where nobody holds it.
void want_bell(SoftQp& qp, bool patient);

}  // namespace twinpath::soft
