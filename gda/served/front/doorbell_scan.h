#pragma once
// Which queues of a context the engine looks at in a turn: those whose doorbell has changed, and
// those with anything to do (awake).  The others cost a comparison each, of words that lie dense in
// two arrays; a queue itself is some eight cache lines.
//
// Rule: a queue may rest when nothing can move it but its doorbell.  Whoever moves it otherwise (a
// completion, a failure from outside) wakes it.
//
// Threads: the engine's only.  Doorbells are written by kernels meanwhile.
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace twinpath::gda {

class DoorbellScan {
 public:
  // All are awake at first.  `doorbells` outlives this.
  DoorbellScan(const std::uint64_t* doorbells, std::size_t count)
      : doorbells_(doorbells), seen_(count), awake_(count, 1) {}

  void wake(std::size_t queue) { awake_[queue] = 1; }
  void wake_all() { awake_.assign(awake_.size(), 1); }

  // Calls visit(queue) for those of [first, last) that must be looked at; it returns whether the
  // queue stays awake.  True when there was any.
  template <class Visit>
  bool pass(std::size_t first, std::size_t last, Visit&& visit) {
    bool any = false;
    for (std::size_t q = first; q < last; ++q) {
      const std::uint64_t word = load(q);
      if (word == seen_[q] && awake_[q] == 0) continue;
      // Before the visit, which loads the word again, with acquire: what it sees is this or newer,
      // and of a newer one the next pass finds the difference.
      seen_[q] = word;
      awake_[q] = 0;
      if (visit(q)) awake_[q] = 1;
      any = true;
    }
    return any;
  }

 private:
  std::uint64_t load(std::size_t q) const {
    return std::atomic_ref<std::uint64_t>(const_cast<std::uint64_t&>(doorbells_[q]))
        .load(std::memory_order_relaxed);
  }

  const std::uint64_t* const doorbells_;
  std::vector<std::uint64_t> seen_;
  std::vector<std::uint8_t> awake_;
};

}  // namespace twinpath::gda
