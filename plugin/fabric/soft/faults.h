#pragma once
// Faults on demand (TWINPATH_SOFT_FAULTS), for tests and the demo:
//   fail_send=N      the N-th send WQE of this process ends in a retry-exceeded error
//   delay_us=T       every send WQE waits T microseconds before it starts
//   down_device=N    the first port of the N-th device (from 1) goes down
//   down_at_ms=T     so long after the process opened the soft HCA (default 1000)
//   down_ms=T        and for so long (default: for good)
//   down_every_ms=T  and again each time so much later (default: once)
//   slow_device=N    what the first port of the N-th device sends takes as long as
//   slow_mbps=R      at R Mb/s
//   fail_init=N, fail_rtr=N, fail_rts=N
//                    the first N times that a queue pair is to go there end in ETIMEDOUT
//   late_us=T        data for GPU memory is placed up to T microseconds after what follows it into
//                    host memory, as behind PCIe: posted_writes.h
//   split_us=T       an atomic on host memory reads its word T microseconds before it writes it:
//                    atomic among atomics, not with what CPUs do to the word (IBV_ATOMIC_HCA)
// Comma separated.  Nothing is random: the same run fails at the same place.
#include <infiniband/verbs.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <string>
#include <string_view>

namespace twinpath::soft {

struct SoftQp;

class Faults {
 public:
  // False and `why` for text that is not a fault list; then no fault is set.
  bool set(std::string_view text, std::string& why);
  bool any() const { return any_; }
  // Counts one send WQE; true when this one must fail.
  bool next_send_fails() {
    return fail_send_ != 0 && counter_.fetch_add(1, std::memory_order_relaxed) + 1 == fail_send_;
  }
  // Counts one move to that state; true when this one must fail.  Any thread.
  bool next_move_fails(ibv_qp_state to);
  std::int64_t delay_us() const { return delay_us_; }
  // Index of the device whose port comes and goes; -1: none does.
  int failing_device() const { return down_device_ - 1; }
  // Whether it is up.  The first call begins the time that this goes by; one thread.
  bool is_failing_port_up(std::int64_t now_ns);
  // Index of the device whose port is slow, and how; -1: none is.
  int slow_device() const { return slow_device_ - 1; }
  std::uint32_t slow_mbps() const { return slow_mbps_; }
  std::int64_t late_us() const { return late_us_; }
  std::int64_t split_us() const { return split_us_; }
  // One atomic at a time is between its read and its write: `owner`'s, if this is true, until it
  // ends it.
  bool begin_split(const SoftQp* owner) {
    const SoftQp* nobody = nullptr;
    return splitting_.compare_exchange_strong(nobody, owner, std::memory_order_acq_rel);
  }
  void end_split() { splitting_.store(nullptr, std::memory_order_release); }

 private:
  bool any_ = false;
  std::uint64_t fail_send_ = 0;
  std::int64_t delay_us_ = 0, late_us_ = 0, split_us_ = 0;
  int down_device_ = 0, slow_device_ = 0;
  std::uint32_t slow_mbps_ = 0;
  std::int64_t down_at_ms_ = 1000, down_ms_ = 0, down_every_ms_ = 0;
  std::int64_t began_ns_ = 0;  // 0: not yet
  std::atomic<std::uint64_t> counter_{0};
  std::array<std::atomic<std::int64_t>, 3> failing_moves_{};  // left, of INIT, RTR, RTS
  std::atomic<const SoftQp*> splitting_{nullptr};
};

}  // namespace twinpath::soft
