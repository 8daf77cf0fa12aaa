#pragma once
// The wire between two QPs: for each of them a half that it alone writes, with the byte ring of
// what it sends and a few counters that stand for acknowledgements, and a page of words that both
// write.
//
// Between processes each half is a memfd of its writer, which the other maps read-only (nothing has
// a name in /dev/shm, so a crash leaves nothing behind); inside one process all is one piece of
// anonymous memory.  Who has the lower QP number offers its half and the words, the other answers
// with its half: until then a link has one half only.
//
// What comes from the other half may change at any time: it is copied before it is checked.
// Orders that matter:
//   ring bytes  -> produced (release)   | peer: produced (acquire) -> reads bytes
//   data placed -> acked    (release)   | peer: acked (acquire)    -> completes its WQE
//   bytes read  -> consumed (release)   | peer: consumed (acquire) -> overwrites the bytes
#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

#include "plugin/base/owned.h"
#include "plugin/base/shared_memory.h"
#include "plugin/base/status.h"

namespace twinpath::soft {

inline constexpr std::uint32_t kRingBytes = 32 * 1024;
inline constexpr std::uint32_t kPacketPayload = 8 * 1024;  // largest payload of one packet

enum class EndState : std::uint32_t { unset = 0, ready = 1, error = 2, closed = 3 };

// What LinkWords::bell asks for: waking the engine, or marking the queue pair, which sleeps.
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
  std::atomic<std::uint32_t> rnr_timer;    // my QP's min_rnr_timer code
  std::atomic<std::uint32_t> can_mark;     // 1: I can mark the peer's notice board
  // Of my port, and where my packets go; 0: what is sent comes by its GID.
  std::atomic<std::uint32_t> lid, to_lid;
};

struct LinkHalf {
  LinkEnd end;
  alignas(64) std::uint8_t ring[kRingBytes];
};

// Which chunk of the running shared message is next: id << 32 | chunk.
struct alignas(64) Claim {
  std::atomic<std::uint64_t> next;
};
// kBell*, set by the end whose it is, taken by the other: tell me when you put something on the
// wire.
struct alignas(64) Bell {
  std::atomic<std::uint32_t> wanted;
};

// Rubbish in here costs its writer's own messages: chunks that nobody copies, bells not rung.
struct LinkWords {
  Bell bell[2];    // [0] belongs to the lower QP number
  Claim claim[2];  // of the messages that this end sends
};

enum class PacketOp : std::uint8_t {
  pad,              // skip to the ring's start
  write,            // payload goes to address
  send,             // payload goes to the current receive WQE
  imm,              // RDMA write whose data is already in place: immediate data only
  read_request,     // length bytes from address
  read_response,    // payload for my oldest READ
  atomic_request,   // payload: WordOperation's operands
  atomic_response,  // payload: the old value
  pull,       // help copying a large write; imm: its id, total: its bytes, payload: PullSource
  violation,  // the peer's direct access was refused, rkey: the right it needed: go to error
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

// Where the bytes of a `pull` lie at the requester, which the responder reads under that key.
struct PullSource {
  std::uint64_t address, iova;
  std::uint32_t lkey, reserved;
};

inline constexpr std::uint8_t kFirst = 1, kLast = 2, kImm = 4, kSolicited = 8, kCompareSwap = 16;

class Link {
 public:
  static Result<std::shared_ptr<Link>> create_local();  // both halves, in anonymous memory
  // Offers: makes the words and the own half; `own`: 0 or 1, as in LinkWords.
  static Result<std::shared_ptr<Link>> create_shared(std::size_t own, std::uint64_t number);
  // Takes an offer: the other's half and the words.
  static Result<std::shared_ptr<Link>> map_shared(std::size_t own, std::uint64_t number,
                                                  int half_fd, int words_fd, std::string& why);
  // Who took the offer makes its half.
  Status make_half();
  // Who offered gets the other's.
  Status map_half(int half_fd, std::string& why);
  ~Link();
  Link(const Link&) = delete;
  Link& operator=(const Link&) = delete;

  LinkHalf* own(std::size_t end) { return written_[end]; }
  const LinkHalf* far(std::size_t end) const { return seen_[end]; }  // null: not there yet
  LinkWords& words() { return *words_; }
  std::uint64_t number() const { return number_; }
  // To be sent; -1 where there is none.
  int half_fd() const { return memory_[own_].fd(); }
  int words_fd() const { return words_memory_.fd(); }
  // They were sent.
  void close_fds();

 private:
  Link(std::size_t own, std::uint64_t number) : own_(own), number_(number) {}

  const std::size_t own_;
  const std::uint64_t number_;
  SharedMemory memory_[2], words_memory_;
  void* local_ = nullptr;  // create_local()
  LinkHalf* written_[2] = {nullptr, nullptr};
  const LinkHalf* seen_[2] = {nullptr, nullptr};
  LinkWords* words_ = nullptr;
};

}  // namespace twinpath::soft
