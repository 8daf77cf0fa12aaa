#pragma once
// Keys that kernels put into WQEs.  They are ours, not the fabric's: a number of a window, checked
// here against bounds and rights before the fabric sees anything.  Addresses in WQEs are offsets
// in the window (NCCL's GDAKI registers everything with IOVA 0).
//
// A key is (number << 8 | tag); the tag changes when a number is reused, so a stale key of a
// deregistered window is refused.  lkey and the rkeys of one window are the same key, because
// windows are registered collectively and in the same order at every rank.
//
// Threads: add and remove from one thread at a time; lookups from the engine's thread at the same
// time, lock-free.  A removed window's record stays readable (its owner keeps the engine from
// using it: see GinComm::deregister_window).
#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "plugin/base/status.h"

namespace twinpath::gda {

enum KeyRight : std::uint32_t {
  kLocalRead = 1u << 0,
  kLocalWrite = 1u << 1,
  kRemoteWrite = 1u << 2,
  kRemoteRead = 1u << 3,
  kRemoteAtomic = 1u << 4,
};

// One rank's memory behind a key.
struct KeyedMemory {
  std::uint64_t address = 0;  // first byte, as the fabric addresses it
  std::uint64_t bytes = 0;
  std::uint32_t fabric_key = 0;  // lkey for the own rank's local use, rkey for peers
  std::uint32_t second_key = 0;  // the same over the team's second port, where there is one
  // Of the own rank's.
  int gpu = -1;              // where it lies; -1: in the host's
  bool never_reset = false;  // see WindowTraits
};

// Where a checked (key, offset, length) lies.
struct Located {
  std::uint64_t address = 0;
  std::uint32_t fabric_key = 0, second_key = 0;
  int gpu = -1;
  bool never_reset = false;
};

class KeyTable {
 public:
  static constexpr std::size_t kMaxWindows = 4096;  // numbers; 0 is none
  explicit KeyTable(int ranks);
  ~KeyTable();

  // `local`: this rank's memory with its lkey; `remote`: one per rank, with rkeys (the own rank
  // included).  Result: the key, in host byte order.  no_memory when the table is full.
  Result<std::uint32_t> add(const KeyedMemory& local, std::span<const KeyedMemory> remote,
                            std::uint32_t rights);
  void remove(std::uint32_t key);
  // By who adds: nothing can be added any more until something is removed.
  bool full() const { return present_ + 1 == kMaxWindows; }

  // False when the key is unknown, lacks the right, or [offset, offset + bytes) leaves the window.
  bool local(std::uint32_t key, std::uint64_t offset, std::uint64_t bytes, std::uint32_t right,
             Located& out) const;
  bool remote(std::uint32_t key, int rank, std::uint64_t offset, std::uint64_t bytes,
              std::uint32_t right, Located& out) const;

 private:
  struct Window;
  const Window* find(std::uint32_t key) const;
  const int ranks_;
  std::unique_ptr<std::atomic<Window*>[]> windows_;
  // All windows ever added: a lookup that began before a removal may still read its record.  24
  // bytes per rank and registration; registrations are rare.
  std::vector<std::unique_ptr<Window>> kept_;
  std::vector<std::uint8_t> tags_;
  std::size_t next_ = 1;  // number to try first
  std::size_t present_ = 0;
};

}  // namespace twinpath::gda
