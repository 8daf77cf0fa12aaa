#pragma once
// Clocks, bounded waits and the gate at which blocks line up, for all kernels here.
//
// NCCL's waitSignal never gives up.  A benchmark of a network under test must: every wait here
// ends after a time limit, with what was awaited and what was seen in the outcome.  flush() and
// the wait for a free slot inside put() cannot be bounded from outside; the host's watchdog is
// for these.
#include "tools/gda_perf/kernels.h"

namespace twinpath::gda_perf {

__device__ inline std::uint64_t timer_ns() {
  std::uint64_t t;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(t)::"memory");
  return t;
}
__device__ inline std::uint64_t clock_ticks() {
  std::uint64_t t;
  asm volatile("mov.u64 %0, %%clock64;" : "=l"(t)::"memory");
  return t;
}

__device__ inline void mark_start(Outcome& out) {
  out.start_ns = timer_ns();
  out.start_clock = clock_ticks();
}
__device__ inline void mark_end(Outcome& out) {
  out.end_clock = clock_ticks();
  out.end_ns = timer_ns();
}

// Polls `read` until it gives at least `least`.  The timer is looked at rarely: it is slow.
template <class Read>
__device__ bool wait_until(Read read, std::uint64_t least, std::uint64_t limit_ns,
                           std::uint64_t& seen) {
  constexpr unsigned kSpinsPerLook = 256;
  std::uint64_t begun = 0;
  for (unsigned spins = 1;; ++spins) {
    seen = read();
    if (seen >= least) return true;
    if (spins % kSpinsPerLook != 0) continue;
    const std::uint64_t now = timer_ns();
    if (begun == 0) {
      begun = now;
    } else if (now - begun > limit_ns) {
      return false;
    }
  }
}

struct Wait {
  std::uint64_t limit_ns;
  Outcome& out;

  __device__ bool signal(const ncclGin& gin, unsigned id, std::uint64_t least, std::uint64_t at) {
    const auto read = [&] { return gin.readSignal(id); };
    return report(wait_until(read, least, limit_ns, out.seen), Fault::signal, id, least, at);
  }
  __device__ bool counter(const ncclGin& gin, unsigned id, std::uint64_t least, std::uint64_t at) {
    const auto read = [&] { return gin.readCounter(id); };
    return report(wait_until(read, least, limit_ns, out.seen), Fault::counter, id, least, at);
  }
  __device__ bool word(std::uint64_t& own, std::uint64_t least, std::uint64_t at) {
    const cuda::atomic_ref<std::uint64_t, cuda::thread_scope_system> value(own);
    const auto read = [&] { return value.load(cuda::memory_order_acquire); };
    return report(wait_until(read, least, limit_ns, out.seen), Fault::word, 0, least, at);
  }
  // All blocks of the grid, each once.
  __device__ bool gate(unsigned* arrived) {
    cuda::atomic_ref<unsigned, cuda::thread_scope_device> count(*arrived);
    count.fetch_add(1, cuda::memory_order_acq_rel);
    const auto read = [&] { return std::uint64_t{count.load(cuda::memory_order_acquire)}; };
    return report(wait_until(read, gridDim.x, limit_ns, out.seen), Fault::gate, 0, gridDim.x, 0);
  }

 private:
  __device__ bool report(bool reached, Fault fault, unsigned id, std::uint64_t wanted,
                         std::uint64_t at) {
    if (reached) return true;
    out.fault = fault;
    out.id = id;
    out.wanted = wanted;
    out.at = at;
    return false;
  }
};

__device__ inline unsigned own_signal(const Side& side, unsigned signal) {
  return side.half * kSignalsPerHalf + signal;
}
__device__ inline ncclGin_SignalInc notify(const Side& side, unsigned signal) {
  return {(side.half ^ 1) * kSignalsPerHalf + signal};
}

// First and last word of a message.
__device__ inline void write_stamp(std::uint64_t* message, std::size_t words, std::uint64_t stamp) {
  volatile std::uint64_t* to = message;
  to[0] = stamp;
  to[words - 1] = stamp;
}
__device__ inline unsigned wrong_stamps(const std::uint64_t* message, std::size_t words,
                                        std::uint64_t stamp) {
  const volatile std::uint64_t* from = message;
  return from[0] != stamp || from[words - 1] != stamp ? 1 : 0;
}

// A signal in the peer's window.  A template, so that older headers need not have the type.
template <LatencyOp op>
__device__ auto notify_word(const Side& side) {
#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 30, 7)
  return ncclGin_StrongVASignalInc{side.window, side.peer_word_at};
#else
  static_assert(!in_window(op), "NCCL's headers are too old");
  return ncclGin_None{};
#endif
}

}  // namespace twinpath::gda_perf
