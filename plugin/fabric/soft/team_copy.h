#pragma once
// One large copy of host memory that several threads work at: chunk by chunk, and a counter says
// which is next.  The counter may be shared with the process at the other end, which works at the
// same message (shared_copy.cc).
//
// A queue pair owns two of them, for the message that it sends and for the one that it takes, and
// works at them with its lock held; the threads of the team (copy_team.h) help without that lock.
#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>

#include "plugin/fabric/soft/keys.h"
#include "plugin/fabric/soft/link.h"

namespace twinpath::soft {

inline constexpr std::uint64_t kChunk = 64 * 1024;
// Messages of so many bytes are worth a team, or the help of the other process.
inline constexpr std::uint64_t kSharedFrom = 4 * kChunk;
inline constexpr int kMaxCopyThreads = 16;

struct TeamCopy {
  // A key under which one of the ends lies.  A helper holds it while it copies a chunk: then the
  // memory cannot be deregistered, and when it was, no other chunk is begun.
  struct Guard {
    KeyView keys;  // not valid(): nothing to hold
    std::uint32_t key = 0, access = 0, pd = 0;
    std::uint64_t address = 0;
  };
  // Set by the owner, and constant while a slot of the team has it.
  std::uint32_t id = 0;  // of the message; 0: none was begun
  int pid = 0;           // whose memory `far` is; 0: this process's
  bool to_far = false;
  bool alone = false;   // the owner does not want help
  bool stream = false;  // stores past the caches, within this process
  std::uint64_t near = 0, far = 0, total = 0;
  Claim* claim = nullptr;
  Guard near_guard, far_guard;
  // By helper, the owner last: 1 + the chunk that the system would not let it copy; 0: none.  A
  // helper stays away after the first, so there is one each.
  std::array<std::atomic<std::uint32_t>, kMaxCopyThreads + 1> failed{};

  // The owner's: which slot has it, -1 none, and whether it was taken back from there; what was
  // left of it when it last looked, and how many looks found that.
  int slot = -1;
  bool closing = false;
  std::uint64_t left = 0;
  int looks = 0;

  void begin(std::uint32_t message, int process, bool write, std::uint64_t near_address,
             std::uint64_t far_address, std::uint64_t bytes, Claim& next);
  // The lowest chunk that failed, 1 + its number; it is failed no more.  0: none.
  std::uint32_t take_failed();
};

inline std::uint64_t chunk_bytes(std::uint64_t total, std::uint64_t offset) {
  return std::min(kChunk, total - offset);
}

// Chunks of it that nobody has begun.
std::uint64_t chunks_left(const TeamCopy& c);
bool begun(const TeamCopy& c);

// The next chunk's first byte, or false when none is left (or another message runs).
bool claim_chunk(const TeamCopy& c, std::uint64_t& offset);

// [near, near + bytes) to or from `far` of that process.  False: the system refuses.
bool move_host(int pid, std::uint64_t near, std::uint64_t far, std::uint64_t bytes, bool to_far,
               bool stream = false);

enum class Chunk : std::uint8_t {
  copied,
  none,     // all are begun
  refused,  // a key is not valid any more
  failed,   // the system refuses; `failed` has it
};
// Copies the next chunk.  `who`: index into `failed`.
Chunk copy_chunk(TeamCopy& c, int who, bool guarded);

}  // namespace twinpath::soft
