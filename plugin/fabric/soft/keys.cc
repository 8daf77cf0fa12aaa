#include "plugin/fabric/soft/keys.h"

#include <algorithm>

#include "plugin/base/log.h"
#include "plugin/base/sync.h"
#include "plugin/base/wait_within.h"

namespace twinpath::soft {
namespace {

constexpr std::int64_t kMostWait = 2 * kSecond;

}  // namespace

HeldKey KeyView::hold(std::uint32_t key, std::uint64_t address, std::uint64_t length,
                      std::uint32_t access, std::uint32_t pd) const {
  const KeyEntry* e = peek(key);
  if (e == nullptr) return {};
  HeldKey held;
  held.count = &(*holds_)[key_index(key)];
  // Take first, look again after: either we see the entry withdrawn, or remove() sees our count
  // (both sides are sequentially consistent here, so one of the two must happen).
  held.count->fetch_add(1, std::memory_order_seq_cst);
  if (e->key.load(std::memory_order_seq_cst) == key) {
    static_cast<Region&>(held) = e->region;
    // What is checked is what is used: the compiler must not read the table again.
    std::atomic_signal_fence(std::memory_order_seq_cst);
    if ((held.access & access) == access && held.pd == pd && address >= held.iova &&
        length <= held.length && address - held.iova <= held.length - length)
      return held;
  }
  drop(held);
  return {};
}

Result<std::unique_ptr<KeyTable>> KeyTable::create() {
  auto keys = SharedMemory::create("twinpath-keys", sizeof(KeyTableMemory), Writers::creator);
  if (!keys) return keys.status();
  auto board = SharedMemory::create("twinpath-board", sizeof(Board), Writers::both);
  if (!board) return board.status();
  return std::unique_ptr<KeyTable>(new KeyTable(std::move(keys).take(), std::move(board).take()));
}

KeyTable::KeyTable(SharedMemory keys, SharedMemory board)
    : keys_(std::move(keys)),
      board_memory_(std::move(board)),
      entries_(keys_.as<KeyTableMemory>()),
      board_(board_memory_.as<Board>()),
      own_holds_(std::make_unique<Holds>()),
      generation_(kKeyEntries, 1) {
  for (std::uint32_t i = kKeyEntries; i-- > 1;) free_.push_back(i);
}

void KeyTable::add_holder(std::shared_ptr<Holder> holder) {
  const std::lock_guard hold(lock_);
  holders_.push_back(std::move(holder));
}

void KeyTable::remove_holder(const std::shared_ptr<Holder>& holder) {
  holder->gone.store(true);
  const std::lock_guard hold(lock_);
  std::erase(holders_, holder);
}

bool KeyTable::is_held(std::uint32_t index) const {
  return (*own_holds_)[index].load(std::memory_order_seq_cst) != 0 ||
         std::any_of(holders_.begin(), holders_.end(),
                     [index](const auto& h) { return h->holds(index); });
}

std::uint32_t KeyTable::add(std::uint32_t pd_number, std::uint64_t base, std::uint64_t iova,
                            std::uint64_t length, std::uint32_t access, const PointerInfo& info,
                            std::uint64_t alloc_id) {
  std::lock_guard hold(lock_);
  if (free_.empty()) {
    std::erase_if(kept_, [this](std::uint32_t i) {
      if (is_held(i)) return false;
      free_.push_back(i);
      return true;
    });
  }
  if (free_.empty()) return 0;
  std::uint32_t index = free_.back();
  free_.pop_back();
  KeyEntry& e = (*entries_)[index];
  e.region = {access,   pd_number, iova,
              length,   base,      static_cast<std::uint32_t>(info.kind),
              info.gpu, alloc_id,  info.alloc_base};
  std::uint32_t key = (index << 8) | ++generation_[index];
  e.key.store(key, std::memory_order_release);
  return key;
}

std::uint32_t KeyTable::rename(std::uint32_t key, std::uint8_t low) {
  const std::uint32_t renamed = (key & ~0xffu) | low;
  (*entries_)[key_index(key)].key.store(renamed, std::memory_order_release);
  return renamed;
}

std::uint32_t KeyTable::change(std::uint32_t key, std::uint8_t low, const Region& to) {
  const std::uint32_t index = key_index(key), changed = (key & ~0xffu) | low;
  withdraw(index);
  KeyEntry& e = (*entries_)[index];
  e.region = to;
  e.key.store(changed, std::memory_order_release);
  return changed;
}

void KeyTable::remove(std::uint32_t key) {
  const std::uint32_t index = key_index(key);
  withdraw(index);
  const std::lock_guard hold(lock_);
  (is_held(index) ? kept_ : free_).push_back(index);
}

void KeyTable::withdraw(std::uint32_t index) {
  (*entries_)[index].key.store(0, std::memory_order_seq_cst);
  std::vector<std::shared_ptr<Holder>> others;
  {
    const std::lock_guard hold(lock_);
    others = holders_;
  }
  // Seldom does anybody hold it, so the clock is read only then.
  for (RunLimit limit(kMostWait);;) {
    bool wait = (*own_holds_)[index].load(std::memory_order_seq_cst) != 0;
    std::erase_if(others, [&](const auto& h) { return !h->holds(index) || h->is_stuck(); });
    if (!wait && others.empty()) break;
    if (limit.over(now_ns())) break;
    sched_yield();
  }
  for (const auto& h : others) {
    h->stuck_at.store(index, std::memory_order_relaxed);
    TP_WARN(
        "soft HCA: process %d does not let go of memory that is deregistered here: it is stopped, "
        "or gets no core; it is not waited for again before it goes on",
        h->pid);
  }
}

}  // namespace twinpath::soft
