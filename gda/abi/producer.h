#pragma once
// The kernel's side of a queue, in host code: what NCCL's device functions do with a DeviceQp, step
// by step (reserve, write, mark ready, ring, poll).  A CPU thread that runs it plays the GPU, so
// that everything behind the queues is tested without one.  gin_kernel.h builds put, signal and
// flush on it.
//
// Where NCCL uses a fence of GPU scope this uses an operation with release or acquire order: the
// same order for the CPU, and one that thread sanitizers understand.
//
// Threads: any number on one queue, like the threads of a kernel.
#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <thread>

#include "gda/abi/abi.h"
#include "gda/abi/cqe.h"
#include "gda/abi/wqe.h"
#include "plugin/base/clock.h"

namespace twinpath::gda {

namespace device {

template <class T>
std::atomic_ref<T> atomic(T& value) {
  return std::atomic_ref<T>(value);
}
template <class T>
T& at(std::uint64_t address) {
  return *reinterpret_cast<T*>(address);
}
// Returns the value before.
inline std::uint64_t fetch_max(std::uint64_t& value, std::uint64_t least) {
  auto word = atomic(value);
  std::uint64_t old = word.load(std::memory_order_relaxed);
  while (!word.compare_exchange_weak(old, old < least ? least : old, std::memory_order_acq_rel,
                                     std::memory_order_relaxed)) {
  }
  return old;
}

}  // namespace device

// NCCL does not initialise some bytes of a WQE: they hold whatever a register held.
inline void add_garbage(Wqe& wqe, std::uint64_t garbage) {
  const auto opcode = static_cast<Opcode>(first_dword(wqe.words[0]) & 0xff);
  wqe.words[1] |= garbage & 0xffffff;  // signature, two bytes before fm_ce_se
  if (opcode != Opcode::write) wqe.words[1] |= garbage & 0xffffffff00000000u;
  if (opcode == Opcode::wait) wqe.words[2] = garbage;
  if (opcode == Opcode::write || opcode == Opcode::read || opcode == Opcode::fetch_add)
    wqe.words[3] |= garbage & 0xffffffff00000000u;  // behind rkey
}

template <class Qp>
class Producer {
 public:
  // `timeout_ns`: a kernel would spin for ever; a test should fail instead (-ETIMEDOUT).
  explicit Producer(Qp& qp, std::int64_t timeout_ns = 60 * kSecond)
      : qp_(qp), timeout_ns_(timeout_ns) {}

  std::uint32_t qpn() const { return qp_.qpn; }
  std::uint32_t cqn() const { return qp_.cq.number; }

  // `count` consecutive WQEs; waits until their slots are free.  Like NCCL it goes on when the
  // CQE awaited is one with error.
  int reserve(std::uint32_t count, std::uint64_t& first) {
    first = device::atomic(qp_.reserved).fetch_add(count, std::memory_order_relaxed);
    const std::uint64_t last = first + count - 1;
    if (last < qp_.depth) return 0;
    return poll(last - qp_.depth) == -ETIMEDOUT ? -ETIMEDOUT : 0;
  }

  void write(std::uint64_t index, Wqe wqe) {
    add_garbage(wqe, index * 0x9e3779b97f4a7c15u);
    std::uint8_t* slot = &device::at<std::uint8_t>(qp_.sq) + (index & qp_.mask) * kWqeBytes;
    const std::size_t whole = wqe.end != 0 ? 4 : wqe.segments * 2;
    for (std::size_t i = 0; i < whole; ++i) store<std::uint64_t>(slot, i * 8, wqe);
    if (wqe.end == 0) return;
    std::size_t at = 32;  // inline: the count, then the data in pieces of four bytes
    for (; at + 4 <= wqe.end; at += 4) store<std::uint32_t>(slot, at, wqe);
    for (; at < wqe.end; ++at) store<std::uint8_t>(slot, at, wqe);
  }

  // All WQEs before `first` are ready too when this returns.
  int mark_ready(std::uint64_t first, std::uint32_t count) {
    auto ready = device::atomic(qp_.ready);
    const std::int64_t deadline = now_ns() + timeout_ns_;
    while (ready.load(std::memory_order_acquire) != first) {
      if (now_ns() > deadline) return -ETIMEDOUT;
      std::this_thread::yield();
    }
    ready.store(first + count, std::memory_order_release);
    return 0;
  }

  void ring(std::uint64_t count) {
    auto& word = device::at<std::uint64_t>(qp_.doorbell);
    const auto kind = static_cast<NicHandler>(qp_.nic_handler);
    if (kind == NicHandler::gpu_sm_db) {
      ring_twice(word, count);
    } else if (kind == NicHandler::gpu_no_dbr && Qp::kAddsIndexOffset) {
      if (device::fetch_max(qp_.rung, count) < count) store_doorbell(count);
    } else {
      device::fetch_max(word, count);
    }
  }

  // The second step of a ring without a record.  A kernel's store may come when another thread has
  // stored a newer count; a register of an adapter passes over it, but a word of memory has lost
  // the newer one.  So whoever stores looks again, and puts the newest there.  An exchange sees the
  // store that it overwrites, and with it that thread's count in `rung`: of two that store at once
  // the later one finds both.  The acquire: what is rung for here was written by the thread that
  // raised `rung`.  The word still shows the older count in between.
  void store_doorbell(std::uint64_t count) {
    auto word = device::atomic(device::at<std::uint64_t>(qp_.doorbell));
    for (std::uint64_t stored = 0, newest = count; stored != newest;) {
      stored = newest;
      word.exchange(adapter_doorbell(stored, qp_.qpn), std::memory_order_acq_rel);
      newest = device::atomic(qp_.rung).load(std::memory_order_acquire);
    }
  }

  int submit(std::uint64_t first, std::uint32_t count) {
    if (const int error = mark_ready(first, count); error != 0) return error;
    ring(first + count);
    return 0;
  }

  // Waits for the CQE of WQE `index`.  0; -EIO when it is one with error (which, as in NCCL, does
  // not count as consumed); -EPROTO when the entry is valid but of another WQE, which no kernel of
  // NCCL would notice on sm_90.
  int poll(std::uint64_t index) {
    if constexpr (Qp::kAddsIndexOffset) index += qp_.cq.index_offset;
    auto consumed = device::atomic(qp_.cq.consumed);
    auto& cqe = device::at<std::uint32_t>(qp_.cq.cqes + (index & (qp_.cq.depth - 1)) * kCqeBytes +
                                          kCqeBytes - 4);
    const std::int64_t deadline = now_ns() + timeout_ns_;
    std::uint32_t last = 0;
    for (;;) {
      const std::uint64_t before = consumed.load(std::memory_order_acquire);
      if (index < before) return 0;
      last = device::atomic(cqe).load(std::memory_order_acquire);
      if (index < before + qp_.cq.depth && cqe_is_of_lap(last, index, qp_.cq.depth)) break;
      if (now_ns() > deadline) return -ETIMEDOUT;
      std::this_thread::yield();
    }
    if (cqe_opcode(last) == CqeOpcode::error) return -EIO;
    // Another thread may have seen this entry and let the slot be used again meanwhile.
    if (cqe_counter(last) != (index & 0xffff))
      return consumed.load(std::memory_order_acquire) > index ? 0 : -EPROTO;
    device::fetch_max(qp_.cq.consumed, index + 1);
    return 0;
  }

  // NCCL's flush of one queue: the CQE of the newest WQE reserved.
  int wait_all() {
    const std::uint64_t reserved = device::atomic(qp_.reserved).load(std::memory_order_relaxed);
    return reserved == 0 ? 0 : poll(reserved - 1);
  }

 private:
  template <class T>
  static void store(std::uint8_t* slot, std::size_t at, const Wqe& wqe) {
    const auto value = static_cast<T>(wqe.words[at / 8] >> at % 8 * 8);
    device::atomic(*reinterpret_cast<T*>(slot + at)).store(value, std::memory_order_relaxed);
  }

  void ring_twice(std::uint64_t& word, std::uint64_t count) {
    auto lock = device::atomic(qp_.lock);
    while (lock.exchange(1, std::memory_order_acquire) != 0) std::this_thread::yield();
    if (device::fetch_max(qp_.rung, count) < count) {
      const std::uint64_t value = adapter_doorbell(count, qp_.qpn);
      device::atomic(word).store(value, std::memory_order_release);
      device::atomic(device::at<std::uint32_t>(qp_.dbrec))
          .store(doorbell_record(count), std::memory_order_release);
      device::atomic(word).store(value, std::memory_order_release);
    }
    lock.store(0, std::memory_order_release);
  }

  Qp& qp_;
  const std::int64_t timeout_ns_;
};

// A DeviceQp for the queue `qpn` whose memory lies at these addresses; all counts start at 0.
template <class Qp>
Qp make_device_qp(std::uint32_t qpn, std::uint32_t cqn, std::uint32_t depth, std::uint64_t sq,
                  std::uint64_t cqes, std::uint64_t doorbell, std::uint64_t dbrec,
                  NicHandler nic_handler = NicHandler::cpu_proxy,
                  DeviceMemoryType memory = DeviceMemoryType::gpu) {
  Qp qp{};
  qp.qpn = qpn;
  qp.qpn_shift8 = qpn << 8;
  qp.qpn_shift8_be = swap32(qpn << 8);
  std::uint32_t segments = 0;
  for (std::uint32_t& ds : qp.qpn_ds_be) ds = swap32(qpn << 8 | ++segments);
  qp.depth = static_cast<std::uint16_t>(depth);
  qp.mask = static_cast<std::uint16_t>(depth - 1);
  qp.sq = sq;
  qp.dbrec = dbrec;
  qp.doorbell = doorbell;
  qp.cq.cqes = cqes;
  qp.cq.number = cqn;
  qp.cq.depth = depth;
  qp.cq.mask = depth - 1;
  qp.cq.log_cqe_bytes = 6;
  qp.cq.memory = static_cast<std::uint32_t>(memory);
  qp.nic_handler = static_cast<std::uint32_t>(nic_handler);
  qp.memory = static_cast<std::uint32_t>(memory);
  return qp;
}

}  // namespace twinpath::gda
