#pragma once
// The table of memory keys of one process, in shared memory so that a peer on the same host can
// check and translate a remote address itself before it copies straight into our memory.  The
// process's notice board (board.h) lies behind it.
//
// Threads: any.  An entry is published by its `key` (release) and withdrawn by clearing it; an
// initiator that found it holds `users` up while it copies, and deregistration waits for that
// (bounded: a peer may have died inside).
#include <infiniband/verbs.h>

#include <atomic>
#include <cstdint>
#include <mutex>
#include <vector>

#include "plugin/base/owned.h"
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

struct KeyEntry {
  std::atomic<std::uint32_t> key;  // 0: free
  std::atomic<std::uint32_t> users;
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
static_assert(sizeof(KeyEntry) <= 80);

inline constexpr std::uint32_t kKeyEntries = 16384;

// Read side, usable on a peer's table as well.
class KeyView {
 public:
  KeyView() = default;
  explicit KeyView(KeyEntry* entries) : entries_(entries) {}
  bool valid() const { return entries_ != nullptr; }
  // The live entry of a key, without holding it.
  KeyEntry* peek(std::uint32_t key) const {
    KeyEntry& e = entries_[(key >> 8) & (kKeyEntries - 1)];
    return key != 0 && e.key.load(std::memory_order_acquire) == key ? &e : nullptr;
  }
  // Checks and holds: [address, address+length) inside, all bits of `access` granted, same PD.
  // Null when refused.  Release with drop().
  KeyEntry* hold(std::uint32_t key, std::uint64_t address, std::uint64_t length,
                 std::uint32_t access, std::uint32_t pd) const;
  static void drop(KeyEntry* e) { e->users.fetch_sub(1, std::memory_order_release); }

 private:
  KeyEntry* entries_ = nullptr;
};

// What peers map.
struct SharedTables {
  KeyEntry keys[kKeyEntries];
  Board board;
};

class KeyTable {
 public:
  static Result<std::unique_ptr<KeyTable>> create();
  ~KeyTable();
  // Publishes; gives the key, or 0 when the table is full.
  std::uint32_t add(std::uint32_t pd_number, std::uint64_t base, std::uint64_t iova,
                    std::uint64_t length, std::uint32_t access, const PointerInfo& info,
                    std::uint64_t alloc_id);
  // Withdraws and waits up to 2 s for copies that hold it.
  void remove(std::uint32_t key);
  KeyView view() const { return KeyView(entries_); }
  Board& board() const { return shared_->board; }
  int fd() const { return fd_.get(); }

 private:
  KeyTable(UniqueFd fd, SharedTables* shared);
  UniqueFd fd_;
  SharedTables* shared_;
  KeyEntry* entries_;
  std::mutex lock_;
  std::vector<std::uint32_t> free_;
  std::vector<std::uint8_t> generation_;
};

}  // namespace twinpath::soft
