#pragma once
// The two queues of a queue pair: what was posted, how far it has come, and the memory that belongs
// to each entry.  A shared receive queue is one of the second kind.
//
// Entries are counted from the first that was ever posted, and the counts never go round; memory is
// theirs by turns.
//
// Threads: whoever holds the lock of the queue pair, or of the shared receive queue.
#include <infiniband/verbs.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "plugin/gpu/engine.h"

namespace twinpath::soft {

struct SoftQp;

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
  std::uint64_t operand[4];  // WordOperation's
  std::uint64_t ack_at;      // complete when the peer's acked reaches this
  std::uint64_t offset;      // bytes already placed or packed
  std::uint64_t received;    // READ and atomics: bytes come back
  std::uint64_t length;
  std::uint64_t completion;  // done: what push_completion gave, else kNoCompletion
  std::int64_t not_before;   // fault injection: start no earlier than this (now_ns); 0 = at once
  std::atomic<std::uint32_t>* held;  // remote key's count, held while the copy engine writes
  struct PostedWrite* late;          // fault injection: takes its data; owned
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
  bool helped;          // the team's copy is its copy
  bool shifted;         // an SGE's MR has an iova that is not its address
  std::uint8_t part;    // of an atomic of 4 bytes: where they begin in the word
};

inline constexpr std::uint64_t kNoCompletion = ~std::uint64_t{0};

inline bool is_read(const SendEntry& e) { return e.opcode == IBV_WR_RDMA_READ; }
inline bool is_atomic(const SendEntry& e) {
  return e.opcode == IBV_WR_ATOMIC_CMP_AND_SWP || e.opcode == IBV_WR_ATOMIC_FETCH_AND_ADD;
}

// A copy job that knows its WQE.
struct QpCopyJob : gpu::CopyJob {
  SoftQp* qp = nullptr;
  SendEntry* entry = nullptr;
  std::atomic<std::uint32_t>* held = nullptr;  // count of the key of our own memory
};

struct SendQueue {
  // [head, exec) begun, [exec, tail) queued; [head, sent) are past the copy engine.
  std::uint64_t head = 0, sent = 0, exec = 0, tail = 0;
  // Entries before it may be used again.  Follows `head` only when a completion behind them has
  // been polled (IB specification vol. 1, 10.8.6), as on an adapter.
  std::uint64_t free = 0;
  std::uint32_t max_sge = 0, max_inline = 0;  // of an entry; bytes
  Raw<SendEntry> entries;
  Raw<ibv_sge> sges;
  Raw<std::uint8_t> inlined;
  std::vector<QpCopyJob> jobs;  // max_sge an entry, made at the first CUDA transfer
  std::vector<std::unique_ptr<std::uint8_t[]>> relays;  // one an entry, made at the first use

  // False: no memory.
  bool allocate(const ibv_qp_cap& cap) {
    max_sge = cap.max_send_sge;
    max_inline = cap.max_inline_data;
    return entries.allocate(cap.max_send_wr) && sges.allocate(cap.max_send_wr * max_sge) &&
           inlined.allocate(cap.max_send_wr * max_inline);
  }
  void reset() {
    head = sent = exec = tail = free = 0;
    relays.clear();
  }

  bool is_empty() const { return head == tail; }
  bool has_room() const { return tail - free < entries.size; }
  // Nothing begun waits.
  bool is_drained() { return head == exec && (exec == tail || entry(exec).offset == 0); }
  // Takes back what completions have set free: all before number `polled` of the CQ are polled.
  void take_back(std::uint64_t polled) {
    for (std::uint64_t i = free; i != head; ++i) {
      const std::uint64_t at = entry(i).completion;
      if (at == kNoCompletion) continue;
      if (at >= polled) break;
      free = i + 1;
    }
  }

  SendEntry& entry(std::uint64_t i) { return entries[i]; }
  std::size_t slot_of(const SendEntry& e) const {
    return static_cast<std::size_t>(&e - entries.data.get());
  }
  ibv_sge* sges_of(const SendEntry& e) { return &sges.data[slot_of(e) * max_sge]; }
  std::uint8_t* inline_of(const SendEntry& e) { return &inlined.data[slot_of(e) * max_inline]; }
  // One for each SGE.
  QpCopyJob* jobs_of(const SendEntry& e) {
    if (jobs.empty()) jobs.resize(std::size_t{entries.size} * max_sge);
    return &jobs[slot_of(e) * max_sge];
  }
  // Memory of the message's length that stands for its SGEs (relay.cc); null: they are used
  // themselves.
  std::uint8_t* relay_of(const SendEntry& e) const {
    return relays.empty() ? nullptr : relays[slot_of(e)].get();
  }
  // Null: no memory.
  std::uint8_t* make_relay(const SendEntry& e);
  void end_relay(const SendEntry& e) {
    if (!relays.empty()) relays[slot_of(e)].reset();
  }
};

struct RecvEntry {
  std::uint64_t wr_id;
  int num_sge;
};

struct ReceiveQueue {
  std::uint64_t head = 0, tail = 0;
  std::uint32_t max_sge = 0;  // of an entry
  Raw<RecvEntry> entries;
  Raw<ibv_sge> sges;

  // False: no memory.
  bool allocate(std::uint32_t size, std::uint32_t most_sges) {
    max_sge = most_sges;
    return entries.allocate(size) && sges.allocate(size * max_sge);
  }
  // To another size, in which all that are there must have room.  False: no memory, nothing
  // changed.
  bool resize(std::uint32_t size);

  std::uint64_t count() const { return tail - head; }
  bool is_empty() const { return head == tail; }
  RecvEntry& first() { return entries[head]; }
  ibv_sge* first_sges() { return sges_at(head); }
  // There must be room for it, and for its SGEs.
  void push(const RecvEntry& e, const ibv_sge* list) {
    const auto n = static_cast<std::size_t>(e.num_sge);
    if (n != 0) std::memcpy(sges_at(tail), list, n * sizeof *list);
    entries[tail] = e;
    ++tail;
  }
  ibv_sge* sges_at(std::uint64_t i) { return &sges.data[i % entries.size * max_sge]; }
};

}  // namespace twinpath::soft
