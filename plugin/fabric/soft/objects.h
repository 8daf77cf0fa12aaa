#pragma once
// The soft HCA's verbs objects.  They *are* ibv_* objects (derived from them), so the inline
// data-path functions of verbs.h reach us through ibv_context::ops.
//
// Locks, outermost first: Hca::lock_ (lists of objects) -> SoftCq::members_lock ->
// SoftQp::lock -> SoftCq::lock.  A copy thread takes SoftQp::lock only.
#include <infiniband/verbs.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <vector>

#include "plugin/base/owned.h"
#include "plugin/base/sync.h"
#include "plugin/fabric/soft/cuda_engine.h"
#include "plugin/fabric/soft/device_spec.h"
#include "plugin/fabric/soft/keys.h"
#include "plugin/fabric/soft/link.h"
#include "plugin/fabric/soft/peer.h"

namespace twinpath::soft {

class Hca;

inline constexpr int kMaxSge = 16;
inline constexpr std::uint32_t kMaxInline = 256;
inline constexpr std::uint32_t kMaxWr = 16384;
inline constexpr int kMaxCqe = 1 << 20;
inline constexpr int kGidEntries = 2;  // link-local, and the IPv4-mapped one that NCCL looks for

// An array whose memory is not touched until used (idle queues cost address space only).
template <class T>
struct Raw {
  std::unique_ptr<T[], void (*)(void*)> data{nullptr, std::free};
  std::uint32_t size = 0;
  bool allocate(std::uint32_t n) {
    static_assert(std::is_trivially_destructible_v<T>);
    size = n;
    // NOLINTNEXTLINE(bugprone-sizeof-expression)
    data.reset(static_cast<T*>(std::calloc(std::max(n, 1u), sizeof(T))));
    return data != nullptr;
  }
  T& operator[](std::uint64_t i) { return data[i % size]; }
};

struct SoftDevice : ibv_device {
  DeviceSpec spec;
  Hca* hca = nullptr;
  int index = 0;
};

struct SoftContext : ibv_context {
  Hca* hca = nullptr;
  SoftDevice* soft_device = nullptr;
  UniqueFd events_in;  // write end of async_fd
};

struct SoftPd : ibv_pd {
  std::uint32_t number = 0;
  std::atomic<int> users{0};
};

struct SoftMr : ibv_mr {
  PointerInfo info;
  std::uint64_t alloc_id = 0;
};

struct SoftQp;

struct SoftCq : ibv_cq {
  SpinLock lock;  // the ring
  Raw<ibv_wc> ring;
  std::uint64_t head = 0, tail = 0;
  bool overflowed = false;
  std::mutex members_lock;  // held while member QPs are advanced, so that none is destroyed
  std::vector<SoftQp*> members;
};

// How far a send WQE has come.
enum class Stage : std::uint8_t {
  queued,  // not begun, or part of its packets sent
  moving,  // copy engine at work
  sent,    // on the wire, waits for its acknowledgement
  placed,  // nothing more to wait for
};

struct SendEntry {
  std::uint64_t wr_id;
  std::uint64_t remote_address;
  std::uint64_t operand[2];  // compare_add, swap
  std::uint64_t ack_at;      // complete when the peer's acked reaches this
  std::uint64_t offset;      // bytes already placed or packed
  std::uint64_t received;    // READ and atomics: bytes come back
  std::uint64_t length;
  std::int64_t not_before;  // fault injection: start no earlier than this (now_ns); 0 = at once
  KeyEntry* held;           // remote key held while the copy engine writes
  std::uint32_t rkey;
  std::uint32_t imm;
  std::uint32_t pull_id;  // nonzero: both ends copy it
  std::uint16_t num_sge;
  std::uint16_t jobs_left;
  ibv_wr_opcode opcode;
  unsigned flags;
  Stage stage;
  std::uint8_t status;  // ibv_wc_status
  bool no_direct;       // direct copy was refused by the system: use packets
};

struct RecvEntry {
  std::uint64_t wr_id;
  int num_sge;
};

// A copy job that knows its WQE.
struct QpCopyJob : CopyJob {
  SoftQp* qp = nullptr;
  SendEntry* entry = nullptr;
};

struct SoftQp : ibv_qp {
  Hca* hca = nullptr;
  SoftContext* soft_context = nullptr;
  SpinLock lock;
  ibv_qp_attr attr{};
  ibv_qp_cap cap{};
  bool signal_all = false;

  // Send queue: [head, exec) begun, [exec, tail) queued; [head, sent) are past the copy engine.
  Raw<SendEntry> sq;
  Raw<ibv_sge> sq_sges;            // max_send_sge per entry
  Raw<std::uint8_t> sq_inline;     // max_inline per entry
  std::vector<QpCopyJob> sq_jobs;  // max_send_sge per entry, made at the first CUDA transfer
  std::uint64_t sq_head = 0, sq_sent = 0, sq_exec = 0, sq_tail = 0;
  std::uint32_t jobs_in_flight = 0;

  // Receive queue.
  Raw<RecvEntry> rq;
  Raw<ibv_sge> rq_sges;
  std::uint64_t rq_head = 0, rq_tail = 0;

  // The wire.
  std::shared_ptr<Link> link;
  std::shared_ptr<Peer> peer;  // null: destination is in this process
  LinkEnd* mine = nullptr;
  LinkEnd* theirs = nullptr;
  std::uint8_t* out_ring = nullptr;
  std::uint8_t* in_ring = nullptr;
  Claim* out_claim = nullptr;
  Claim* in_claim = nullptr;
  bool unreachable = false;  // no process answers for the destination

  // Sender bookkeeping.
  std::uint64_t messages = 0;           // sent so far that will be acknowledged
  std::uint64_t last_data_message = 0;  // last one whose data travels in packets
  std::uint32_t reads_outstanding = 0;
  std::uint32_t pull_id = 0;
  bool no_pull = false;  // the peer could not read our memory once
  std::uint64_t seen_acked = 0;
  std::int64_t waiting_since = 0;  // 0: not waiting

  // Responder state within one SEND or READ.
  std::uint64_t send_offset = 0;
  std::uint64_t read_offset = 0;
  bool rnr_reported = false;
  bool pull_offered = false;
  std::uint64_t pull_stalled = 0;  // what pull_failed says, until it is fixed

  SendEntry& entry(std::uint64_t i) { return sq[i]; }
  ibv_sge* sges_of(const SendEntry& e) {
    return &sq_sges.data[static_cast<std::uint64_t>(&e - sq.data.get()) * cap.max_send_sge];
  }
  std::uint8_t* inline_of(const SendEntry& e) {
    return &sq_inline.data[static_cast<std::uint64_t>(&e - sq.data.get()) * cap.max_inline_data];
  }
};

inline bool is_read(const SendEntry& e) { return e.opcode == IBV_WR_RDMA_READ; }
inline bool is_atomic(const SendEntry& e) {
  return e.opcode == IBV_WR_ATOMIC_CMP_AND_SWP || e.opcode == IBV_WR_ATOMIC_FETCH_AND_ADD;
}

inline SoftQp* soft(ibv_qp* q) { return static_cast<SoftQp*>(q); }
inline SoftCq* soft(ibv_cq* c) { return static_cast<SoftCq*>(c); }

// --- cq.cc
void push_completion(SoftCq& cq, const ibv_wc& wc);

// --- responder.cc: executes what the peer put into the ring.  Lock held.  True if anything moved.
bool respond(SoftQp& qp);
// shared_copy.cc: the responder's part of a shared message; false: to be called again.
enum class PullOutcome { done, wait, refused };
PullOutcome pull(SoftQp& qp, const PacketHeader& p, const std::uint8_t* payload);
// Our own memory under a key that the peer named, held; null when the QP's or the key's rights,
// bounds or PD refuse it, or it is not host memory.
KeyEntry* hold_target(SoftQp& qp, std::uint32_t rkey, std::uint64_t address, std::uint64_t bytes,
                      std::uint32_t access);
// Scatters into the SGE list from byte `offset` of it; false when it does not fit or is not
// writable host memory under these keys.
bool scatter(SoftQp& qp, const ibv_sge* sges, int n, std::uint64_t offset, const void* from,
             std::uint64_t bytes);

// --- requester.cc: runs the send queue.  Lock held.  True if anything moved.
bool run_send_queue(SoftQp& qp);
// Retry limits, dead peers.  Lock held; engine thread.
void check_timers(SoftQp& qp, std::int64_t now);

// --- packets.cc: the outgoing ring.  Lock held.
// Room for a packet with `payload` bytes, or null; publish() makes it visible.
PacketHeader* reserve_packet(SoftQp& qp, std::uint32_t payload);
void publish_packet(SoftQp& qp, PacketHeader* p);

// --- queue_pair.cc
void enter_error(SoftQp& qp);  // lock held: state ERR, flushes both queues
void retire(SoftQp& qp);       // lock held: completes finished entries in order
// Runs both halves once; gives false at once when somebody else holds the lock.
bool advance(SoftQp& qp);
void async_event(SoftQp& qp, ibv_event_type type);

}  // namespace twinpath::soft
