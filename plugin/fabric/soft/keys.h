#pragma once
// The table of memory keys of one process, in shared memory so that a peer on the same host can
// check and translate a remote address itself before it copies straight into our memory.
//
// Peers map the table read-only.  Who copies counts up what he holds of a key first, in memory of
// his own that the table's owner maps read-only (Holds); deregistration waits for that.  So nobody
// writes what another relies on, what a dead process held is forgotten with it, and it is known
// who holds.
//
// Threads: any.  An entry is published by its `key` (release) and withdrawn by clearing it.
#include <infiniband/verbs.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "plugin/base/owned.h"
#include "plugin/base/shared_memory.h"
#include "plugin/base/status.h"
#include "plugin/fabric/soft/board.h"
#include "plugin/gpu/engine.h"

namespace twinpath::soft {

// What GPU memory is and how it moves comes from there.
using gpu::check_range;
using gpu::CopyEnd;
using gpu::CopyJob;
using gpu::export_allocation;
using gpu::ExportedAllocation;
using gpu::import_allocation;
using gpu::import_local;
using gpu::ImportedAllocation;
using gpu::inspect_pointer;
using gpu::MemoryKind;
using gpu::PointerInfo;
using gpu::prepare_copies;
using gpu::submit_copy;
using gpu::WordUpdate;

// What a key stands for.
struct Region {
  std::uint32_t access;
  std::uint32_t pd;
  std::uint64_t iova;  // first remote address
  std::uint64_t length;
  std::uint64_t base;        // virtual address of iova in the owner
  std::uint32_t kind;        // MemoryKind
  std::int32_t gpu;          // owner's ordinal
  std::uint64_t alloc_id;    // CUDA allocation, unique in the owner; 0 for host
  std::uint64_t alloc_base;  // its first byte in the owner
};

struct KeyEntry {
  std::atomic<std::uint32_t> key;  // 0: free
  Region region;
};
static_assert(sizeof(KeyEntry) <= 80);

inline constexpr std::uint32_t kKeyEntries = 16384;
inline std::uint32_t key_index(std::uint32_t key) { return (key >> 8) & (kKeyEntries - 1); }

using KeyTableMemory = std::array<KeyEntry, kKeyEntries>;
// How many copies one process has under way into or out of each key of another.
using Holds = std::array<std::atomic<std::uint32_t>, kKeyEntries>;

// A region that cannot be deregistered while it is held: our own copy of the entry, for who owns
// the table may write into it at any time.
struct HeldKey : Region {
  std::atomic<std::uint32_t>* count = nullptr;
  explicit operator bool() const { return count != nullptr; }
};

// Read side, usable on a peer's table as well.
class KeyView {
 public:
  KeyView() = default;
  KeyView(const KeyTableMemory& entries, Holds& holds) : entries_(&entries), holds_(&holds) {}
  bool valid() const { return entries_ != nullptr; }
  // The live entry of a key, without holding it.
  const KeyEntry* peek(std::uint32_t key) const {
    const KeyEntry& e = (*entries_)[key_index(key)];
    return key != 0 && e.key.load(std::memory_order_acquire) == key ? &e : nullptr;
  }
  // Checks and holds: [address, address+length) inside, all bits of `access` granted, same PD.
  // False when refused.  Release with drop().
  HeldKey hold(std::uint32_t key, std::uint64_t address, std::uint64_t length, std::uint32_t access,
               std::uint32_t pd) const;
  static void drop(const HeldKey& e) { drop(e.count); }
  static void drop(std::atomic<std::uint32_t>* count) {
    count->fetch_sub(1, std::memory_order_release);
  }

 private:
  const KeyTableMemory* entries_ = nullptr;
  Holds* holds_ = nullptr;
};

// Another process that may hold keys of ours.
class Holder {
 public:
  Holder(SharedMemory holds, int process) : pid(process), memory_(std::move(holds)) {}
  const int pid;
  std::atomic<bool> gone{false};           // its process has ended
  std::atomic<std::uint32_t> stuck_at{0};  // index of a key that it kept too long; 0: none
  bool holds(std::uint32_t index) const {
    return !gone.load(std::memory_order_relaxed) &&
           (*memory_.as<const Holds>())[index].load(std::memory_order_seq_cst) != 0;
  }
  // It still keeps that key: it is stopped, most likely.
  bool is_stuck() const {
    const std::uint32_t at = stuck_at.load(std::memory_order_relaxed);
    return at != 0 && holds(at);
  }

 private:
  SharedMemory memory_;
};

class KeyTable {
 public:
  static Result<std::unique_ptr<KeyTable>> create();
  // Publishes; gives the key, or 0 when the table is full.
  std::uint32_t add(std::uint32_t pd_number, std::uint64_t base, std::uint64_t iova,
                    std::uint64_t length, std::uint32_t access, const PointerInfo& info,
                    std::uint64_t alloc_id);
  // Gives a key that nobody was told yet another low byte, which the caller of an adapter's own
  // commands chooses; the new key.
  std::uint32_t rename(std::uint32_t key, std::uint8_t low);
  // Gives a key another meaning, and a low byte as above; the new key.  Waits as remove() does, so
  // that nobody copies by the old meaning afterwards.
  std::uint32_t change(std::uint32_t key, std::uint8_t low, const Region& to);
  // Withdraws and waits for copies that hold it: up to 2 s for each process, and not again for one
  // that kept a key so long, until it goes on.
  void remove(std::uint32_t key);
  KeyView view() const { return {*entries_, *own_holds_}; }
  void add_holder(std::shared_ptr<Holder> holder);
  void remove_holder(const std::shared_ptr<Holder>& holder);
  Board& board() const { return *board_; }
  int keys_fd() const { return keys_.fd(); }
  int board_fd() const { return board_memory_.fd(); }

 private:
  KeyTable(SharedMemory keys, SharedMemory board);
  bool is_held(std::uint32_t index) const;  // lock_ held
  void withdraw(std::uint32_t index);

  SharedMemory keys_, board_memory_;
  KeyTableMemory* entries_;
  Board* board_;
  std::unique_ptr<Holds> own_holds_;  // by this process
  std::mutex lock_;
  std::vector<std::uint32_t> free_;
  std::vector<std::uint32_t> kept_;  // withdrawn, but somebody still held them
  std::vector<std::uint8_t> generation_;
  std::vector<std::shared_ptr<Holder>> holders_;
};

}  // namespace twinpath::soft
