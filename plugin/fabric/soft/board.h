#pragma once
// The notice board of a process: which of its sleeping queue pairs have something to do.
//
// A queue pair that did nothing for a while sleeps (activity.cc): polls and the engine's sweeps
// pass it by, so thousands of them cost nothing.  Who gives it something to do marks it here: the
// far end when it puts a packet into the ring, and threads of this process that post to it or
// change its state.  Pollers and the engine look at one word of the board.
//
// It lies in memory that peers map (with the table of keys), so the far end marks without a system
// call; it sends a wake to the engine for the first mark only.
//
// Threads and processes: any.
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

namespace twinpath::soft {

inline constexpr std::uint32_t kQpIndexBits = 14;
inline constexpr std::uint32_t kQpsPerProcess = 1u << kQpIndexBits;

class Board {
 public:
  // True when the owner's engine must be woken: since it last looked, nobody else has marked.
  bool mark(std::uint32_t qp_num) {
    const std::uint32_t index = qp_num % kQpsPerProcess;
    marks_[index / 64].fetch_or(std::uint64_t{1} << index % 64, std::memory_order_release);
    // Release: who takes `any_` finds the mark.
    return any_.exchange(1, std::memory_order_acq_rel) == 0;
  }

  // Cheap: for every poll.
  bool any() const { return any_.load(std::memory_order_relaxed) != 0; }

  // Gives the index of each marked queue pair and takes the marks away.  `any_` goes first: a mark
  // that this walk does not meet sets it anew afterwards, so it is found by the next.
  template <class Use>
  void take(Use use) {
    if (any_.exchange(0, std::memory_order_acq_rel) == 0) return;
    for (std::size_t i = 0; i < marks_.size(); ++i) {
      if (marks_[i].load(std::memory_order_relaxed) == 0) continue;
      for (std::uint64_t m = marks_[i].exchange(0, std::memory_order_acquire); m != 0; m &= m - 1)
        use(static_cast<std::uint32_t>(i * 64) + static_cast<std::uint32_t>(__builtin_ctzll(m)));
    }
  }

 private:
  // All zero, as fresh shared memory is: nothing is marked.
  alignas(64) std::atomic<std::uint32_t> any_;
  alignas(64) std::array<std::atomic<std::uint64_t>, kQpsPerProcess / 64> marks_;
};

}  // namespace twinpath::soft
