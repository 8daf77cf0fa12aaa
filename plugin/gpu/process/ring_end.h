#pragma once
// The program's end of the rings of one GPU (rings.h): entries go out in their order, outcomes come
// back in the order in which the process ends them.  A slot is one entry's from push() until its
// outcome has come, or until there will be none.
//
// Threads: one.
#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <vector>

#include "plugin/base/status.h"
#include "plugin/gpu/process/passage.h"
#include "plugin/gpu/process/rings.h"

namespace twinpath::gpu::process {

class RingEnd {
 public:
  // What is remembered of an entry that is under way.
  struct Given {
    std::uint32_t task = 0;
    std::uint32_t chunk = Passage::kNone;
    std::uint64_t to = 0, bytes = 0;  // host memory that the chunk's bytes are for; 0 bytes: none
  };

  explicit RingEnd(Rings& rings) : rings_(rings) {
    for (std::uint32_t i = kEntries; i-- > 0;) free_.push_back(i);
  }

  bool room() const { return !free_.empty(); }
  // Nothing is under way.
  bool idle() const { return free_.size() == kEntries; }
  // There is room.  The process sees it from the next publish() on.
  void push(Entry& entry, const Given& given) {
    const std::uint32_t slot = free_.back();
    free_.pop_back();
    slots_[slot] = {given, pushed_};
    entry.slot = static_cast<std::uint16_t>(slot);
    rings_.entries[pushed_ % kEntries] = entry;
    ++pushed_;
  }
  void publish() {
    if (published_ == pushed_) return;
    published_ = pushed_;
    // Sequentially consistent with the look at `asleep`, see ServedGpu::sleep().
    rings_.submitted.store(pushed_);
    if (rings_.asleep.load() != 0) wake_up(rings_.asleep);
  }

  // Calls `arrived(const Given&, const Outcome&)` for each outcome that has come; its slot is free
  // then.  True: there was one.
  template <class Arrived>
  bool collect(Arrived&& arrived) {
    if (over_) return false;
    const std::uint32_t completed = rings_.completed.load(std::memory_order_acquire);
    if (completed == collected_) return false;
    while (collected_ != completed) {
      const Outcome outcome = rings_.outcomes[collected_ % kEntries];
      ++collected_;
      take(outcome, arrived);
    }
    return true;
  }

  // The process has ended: what it had told arrives, then all the rest, as `closed`, in the order
  // of its submission.  What the rings say does not count any more.
  template <class Arrived>
  void give_up(Arrived&& arrived) {
    (void)collect(arrived);
    over_ = true;
    std::vector<bool> free(kEntries, false);
    for (const std::uint32_t slot : free_) free[slot] = true;
    // The ring still has the order, beside older entries whose slots have been used again.
    for (std::uint32_t i = pushed_ - std::min(pushed_, kEntries); i != pushed_; ++i) {
      const std::uint32_t slot = rings_.entries[i % kEntries].slot;
      if (slot >= kEntries || free[slot] || slots_[slot].number != i) continue;
      take({0, slot, static_cast<std::uint32_t>(Status::closed)}, arrived);
    }
  }

 private:
  struct Slot {
    Given given;
    std::uint32_t number = 0;  // of the entry, in the ring
  };

  template <class Arrived>
  void take(const Outcome& outcome, Arrived& arrived) {
    if (outcome.slot >= kEntries) return;
    const Given given = slots_[outcome.slot].given;
    free_.push_back(outcome.slot);
    arrived(given, outcome);
  }

  Rings& rings_;
  std::vector<std::uint32_t> free_;  // never grows beyond its first size
  std::array<Slot, kEntries> slots_;
  std::uint32_t pushed_ = 0, published_ = 0, collected_ = 0;
  bool over_ = false;
};

}  // namespace twinpath::gpu::process
