#pragma once
// What the two ends of a connection say over its control socket when queues of it are replaced: the
// bytes, pure and bounds-checked.
//
//   stop    my queues stop; these I cannot use now.  Either end begins, the other answers alike.
//   fenced  nothing of the old queues reaches my memory any more.  This is what I have, and these
//           are my new queues.
//   ready   the new queues can receive.
//
//   ask     does your process run?  It answers at once, whatever it does:
//   answer  it does.
//
// Each but the last two is said once by both ends in a round; rounds are numbered, and a failure
// within one begins the next.  A frame is the byte kFailoverByte, one for its kind, and two of its
// body's length.
#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "plugin/rdma/key_range.h"
#include "proxy/wire/cts.h"
#include "proxy/wire/handshake.h"

namespace twinpath {

inline constexpr std::uint8_t kFailoverByte = 'R';
inline constexpr std::size_t kFailoverHeader = 4;
inline constexpr std::size_t kMostFailoverBody = 16384;
// Hello::capabilities: understands these frames.
inline constexpr std::uint32_t kCanFailOver = 1;

enum class FailoverKind : std::uint8_t { stop = 1, fenced = 2, ready = 3, ask = 4, answer = 5 };

// Queues as a bit each.
using QueueMask = std::uint32_t;
static_assert(kMaxQps <= 32);
constexpr QueueMask queue_bit(int q) { return QueueMask{1} << q; }

struct StopNote {
  std::uint32_t round = 0;
  QueueMask unwanted = 0;
  QueueMask down = 0;  // of these, because their ports are: the sender will say when they are back
  std::string why;     // empty: because the peer stopped
};

// What an end has of the connection's messages.
//   Sender:   it has seen all clear-to-send cells before `begin`.
//   Receiver: all messages for cells before `begin` are complete, there are cells before `end`, and
//             a set bit of `open` (by the cell's place) says that its message is awaited: it has
//             not arrived, or not as a whole.
struct HeldState {
  std::uint64_t begin = 0, end = 0;
  std::array<std::uint64_t, kCtsCells / 64> open{};

  void set_open(std::uint64_t seq) {
    open[cts_place(seq) / 64] |= std::uint64_t{1} << cts_place(seq) % 64;
  }
  bool awaits(std::uint64_t seq) const {
    return seq >= begin && (open[cts_place(seq) / 64] >> cts_place(seq) % 64 & 1) != 0;
  }
};

// Gives a cell the keys of the memory that it names; false where none of these ranges has it.
bool renew_keys(const CtsLayout& layout, std::uint8_t* cell, std::span<const KeyRange> memory);
// There are no more cells than that.
inline constexpr std::size_t kMostKeyRanges = kCtsCells;

struct FencedNote {
  std::uint32_t round = 0;
  HeldState held;
  QueueMask made = 0;
  std::vector<QueueAddress> queues;  // of the queues in `made`, in order
  std::vector<HelloRail> rails;      // this end's, as they are now
  // Of a receiver with queues in reserve.
  std::vector<KeyRange> memory;
  int key_rails = 0;  // keys of each
};

std::vector<std::uint8_t> encode_failover(const StopNote& note);
std::vector<std::uint8_t> encode_failover(const FencedNote& note);
std::vector<std::uint8_t> encode_ready(std::uint32_t round);
// `ask` or `answer`.
std::vector<std::uint8_t> encode_failover(FailoverKind kind);

// The length of the frame that begins with these bytes; 0 while that cannot be told, and more than
// the frame may have when it is none.
std::size_t failover_frame_bytes(std::span<const std::uint8_t> bytes);
bool decode_failover(std::span<const std::uint8_t> body, StopNote& note);
bool decode_failover(std::span<const std::uint8_t> body, FencedNote& note);
bool decode_ready(std::span<const std::uint8_t> body, std::uint32_t& round);

}  // namespace twinpath
