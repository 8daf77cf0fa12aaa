#pragma once
// The wire between two QPs: one piece of memory that both can reach, with a byte ring for each
// direction and a few counters that stand for acknowledgements.
//
// Between processes it is a memfd passed over a UNIX socket (nothing has a name in /dev/shm,
// so a crash leaves nothing behind); inside one process it is anonymous memory.
//
// Each LinkEnd is written by its own side only.  Orders that matter:
//   ring bytes  -> produced (release)   | peer: produced (acquire) -> reads bytes
//   data placed -> acked    (release)   | peer: acked (acquire)    -> completes its WQE
//   bytes read  -> consumed (release)   | peer: consumed (acquire) -> overwrites the bytes
#include <atomic>
#include <cstdint>
#include <memory>

#include "plugin/base/owned.h"
#include "plugin/base/status.h"

namespace twinpath::soft {

inline constexpr std::uint32_t kRingBytes = 32 * 1024;
inline constexpr std::uint32_t kPacketPayload = 8 * 1024;  // largest payload of one packet

enum class EndState : std::uint32_t { unset = 0, ready = 1, error = 2, closed = 3 };

// What LinkEnd::bell asks for: waking the engine, or marking the queue pair, which sleeps.
inline constexpr std::uint32_t kBellWake = 1, kBellMark = 2;

struct LinkEnd {
  alignas(64) std::atomic<std::uint64_t> produced;  // bytes put into my outgoing ring
  alignas(64) std::atomic<std::uint64_t> consumed;  // bytes taken from the peer's ring
  std::atomic<std::uint64_t> acked;  // the peer's messages that I have executed, in order
  std::atomic<std::uint32_t> nak;    // ibv_wc_status for the peer's message acked+1; 0 none
  std::atomic<std::uint32_t> rnr;    // 1: that message waits for a receive WQE of mine
  alignas(64) std::atomic<std::uint32_t> state;  // EndState
  std::atomic<std::uint32_t> pd;                 // number of my QP's protection domain
  std::atomic<std::uint32_t> access;             // qp_access_flags
  // Large messages copied by both ends at once (shared_copy.cc).
  std::atomic<std::uint32_t> can_pull;     // 1: I can read the peer's memory
  std::atomic<std::uint64_t> pull_failed;  // responder: id << 32 | chunk that I could not read
  std::atomic<std::uint64_t> pull_fixed;   // requester: id whose failed chunk I have written
  std::atomic<std::uint32_t> bell;         // kBell*: tell me when you put something on the wire
  std::atomic<std::uint32_t> rnr_timer;    // my QP's min_rnr_timer code
  std::atomic<std::uint32_t> can_mark;     // 1: I can mark the peer's notice board
};

// Which chunk of the running shared message is next: id << 32 | chunk.
struct alignas(64) Claim {
  std::atomic<std::uint64_t> next;
};

struct LinkMemory {
  LinkEnd end[2];  // [0] belongs to the lower QP number
  Claim claim[2];  // of the messages that this end sends
  alignas(64) std::uint8_t ring[2][kRingBytes];
};

enum class PacketOp : std::uint8_t {
  pad,              // skip to the ring's start
  write,            // payload goes to address
  send,             // payload goes to the current receive WQE
  imm,              // RDMA write whose data is already in place: immediate data only
  read_request,     // length bytes from address
  read_response,    // payload for my oldest READ
  atomic_request,   // payload: two u64 operands
  atomic_response,  // payload: the old value
  pull,             // help copying a large write; imm: its id, total: its bytes, payload: source
  violation,        // the peer's direct access was refused, rkey: the right it needed: go to error
};

struct PacketHeader {
  std::uint32_t bytes;  // header and payload, rounded up to 16
  PacketOp op;
  std::uint8_t flags;
  std::uint16_t reserved;
  std::uint32_t rkey;
  std::uint32_t length;  // payload bytes (read_request: bytes wanted)
  std::uint64_t address;
  std::uint32_t imm;    // network order, as in ibv_send_wr
  std::uint32_t total;  // bytes of the whole message, in its last packet
};
static_assert(sizeof(PacketHeader) == 32);

inline constexpr std::uint8_t kFirst = 1, kLast = 2, kImm = 4, kSolicited = 8, kCompareSwap = 16;

class Link {
 public:
  static Result<std::shared_ptr<Link>> create_local();               // anonymous memory
  static Result<std::shared_ptr<Link>> create_shared(UniqueFd& fd);  // memfd, to be sent
  static Result<std::shared_ptr<Link>> map_shared(int fd);
  ~Link();
  Link(const Link&) = delete;
  Link& operator=(const Link&) = delete;
  LinkMemory& memory() { return *memory_; }

 private:
  explicit Link(LinkMemory* memory) : memory_(memory) {}
  LinkMemory* memory_;
};

// A memfd of `bytes`, its pages reserved now so that a full system shows here as an error and
// not later as SIGBUS.  Logs the cause.
Result<UniqueFd> make_shared_memory(const char* name, std::size_t bytes);

}  // namespace twinpath::soft
