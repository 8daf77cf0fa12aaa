#pragma once
// One end of a connection in a process of its own: opens the fabric, connects, moves verified
// messages until told to stop, and writes what happens to it into memory shared with its parent.
//
// The shared memory outlives a killed end.  Threads: one per end; the parent only reads, but for
// the flags of Shared.
#include <array>
#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

#include "plugin/base/config.h"
#include "plugin/base/limits.h"
#include "plugin/base/status.h"

namespace twinpath::test {

enum class Side : int { sender = 0, receiver = 1 };
constexpr Side other(Side s) { return s == Side::sender ? Side::receiver : Side::sender; }
constexpr const char* side_name(Side s) { return s == Side::sender ? "sender" : "receiver"; }

enum class Phase : int { starting, connected, done, failed };

struct LoggedWarning {
  std::int64_t at;  // now_ns, the same clock in all processes
  std::array<char, 1800> text;
};

struct EndState {
  static constexpr int kMaxWarnings = 6;
  std::atomic<int> pid;    // of its process
  std::atomic<int> round;  // how many connections before this one
  std::atomic<Phase> phase;
  std::atomic<std::int64_t> ended_at;       // done or failed
  std::atomic<std::uint64_t> messages;      // completed; at the receiver also verified
  std::atomic<std::uint64_t> bytes;         // of them
  std::atomic<std::int64_t> longest_pause;  // ns between two messages
  std::atomic<Status> status;               // of the call that failed
  std::array<char, 16> call;                // which that was
  std::array<char, 200> wrong;              // wrong data: what and where
  std::atomic<std::uint32_t> posted_twice;  // an immediate, see once.h; not of an end over there
  std::atomic<int> warnings;
  std::array<LoggedWarning, kMaxWarnings> warning;
};

// Made of zero bytes.
struct Shared {
  std::atomic<bool> handle_ready;
  std::array<std::uint8_t, kHandleBytes> handle;
  std::atomic<bool> finish;  // the sender's next message is the last one
  std::atomic<bool> pause;   // the sender starts no more messages
  std::atomic<bool> quit;    // leave now
  std::atomic<int> round;    // above an end's own: give the connection back and make a new one
  std::array<EndState, 2> ends;
  EndState& end(Side s) { return ends[static_cast<std::size_t>(s)]; }
};

struct EndPlan {
  Config config;
  std::size_t window = 4;    // messages under way, at most kMaxWindow
  bool merge = false;        // one device out of all ports
  long memlock_kib = -1;     // >= 0: that limit of locked memory, as a user without privileges
  int peer_timeout_ms = -1;  // >= 0: how long a silent peer is waited for
  bool remote = false;       // on the other host; see remote_end.h
};

// How an end that has posted a message twice is described.
inline constexpr const char* kPostedTwice = "has posted twice immediate";

inline constexpr std::size_t kMaxMessage = 256 * 1024;
inline constexpr std::size_t kMaxWindow = 4;

// Never returns; the caller has just forked.
[[noreturn]] void run_end(Shared& shared, Side side, const EndPlan& plan,
                          const std::vector<std::size_t>& sizes);

}  // namespace twinpath::test
