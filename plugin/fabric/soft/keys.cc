#include "plugin/fabric/soft/keys.h"

#include <sys/mman.h>

#include <cerrno>
#include <cstring>

#include "plugin/base/clock.h"
#include "plugin/base/log.h"
#include "plugin/base/sync.h"
#include "plugin/fabric/soft/link.h"

namespace twinpath::soft {

KeyEntry* KeyView::hold(std::uint32_t key, std::uint64_t address, std::uint64_t length,
                        std::uint32_t access, std::uint32_t pd) const {
  KeyEntry* e = peek(key);
  if (e == nullptr) return nullptr;
  // Take first, look again after: either we see the entry withdrawn, or remove() sees our count
  // (both sides are sequentially consistent here, so one of the two must happen).
  e->users.fetch_add(1, std::memory_order_seq_cst);
  bool ok = e->key.load(std::memory_order_seq_cst) == key && (e->access & access) == access &&
            e->pd == pd && address >= e->iova && length <= e->length &&
            address - e->iova <= e->length - length;
  if (ok) return e;
  drop(e);
  return nullptr;
}

Result<std::unique_ptr<KeyTable>> KeyTable::create() {
  auto fd = make_shared_memory("twinpath-keys", sizeof(SharedTables));
  if (!fd) return fd.status();
  void* p = mmap(nullptr, sizeof(SharedTables), PROT_READ | PROT_WRITE, MAP_SHARED, fd->get(), 0);
  if (p == MAP_FAILED) {
    TP_WARN("soft HCA: cannot map the key table: %s", std::strerror(errno));
    return Status::no_memory;
  }
  return std::unique_ptr<KeyTable>(
      new KeyTable(std::move(fd).take(), static_cast<SharedTables*>(p)));
}

KeyTable::KeyTable(UniqueFd fd, SharedTables* shared)
    : fd_(std::move(fd)), shared_(shared), entries_(shared->keys), generation_(kKeyEntries, 1) {
  for (std::uint32_t i = kKeyEntries; i-- > 1;) free_.push_back(i);
}

KeyTable::~KeyTable() { munmap(shared_, sizeof(SharedTables)); }

std::uint32_t KeyTable::add(std::uint32_t pd_number, std::uint64_t base, std::uint64_t iova,
                            std::uint64_t length, std::uint32_t access, const PointerInfo& info,
                            std::uint64_t alloc_id) {
  std::lock_guard hold(lock_);
  if (free_.empty()) return 0;
  std::uint32_t index = free_.back();
  free_.pop_back();
  KeyEntry& e = entries_[index];
  e.access = access;
  e.pd = pd_number;
  e.iova = iova;
  e.length = length;
  e.base = base;
  e.kind = static_cast<std::uint32_t>(info.kind);
  e.gpu = info.gpu;
  e.alloc_id = alloc_id;
  e.alloc_base = info.alloc_base;
  std::uint32_t key = (index << 8) | ++generation_[index];
  e.key.store(key, std::memory_order_release);
  return key;
}

void KeyTable::remove(std::uint32_t key) {
  std::uint32_t index = (key >> 8) & (kKeyEntries - 1);
  KeyEntry& e = entries_[index];
  e.key.store(0, std::memory_order_seq_cst);
  for (std::int64_t deadline = now_ns() + 2 * kSecond;
       e.users.load(std::memory_order_seq_cst) != 0 && now_ns() < deadline;)
    sched_yield();
  if (e.users.load() != 0) return;  // a peer died holding it: the slot stays unused
  std::lock_guard hold(lock_);
  free_.push_back(index);
}

}  // namespace twinpath::soft
