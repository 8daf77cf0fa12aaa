#pragma once
// NCCL's GIN operations (put, put_value, signal, get, flush) on the device structures of one
// context, in host code: the same WQEs in the same order as the kernels of NCCL 2.28.9 (72-byte
// context) and 2.30 (88 bytes: get).  For tests and for measuring without a GPU.
//
// Threads: any number on one object.
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "gda/abi/abi.h"
#include "gda/abi/producer.h"
#include "gda/abi/wqe.h"

namespace twinpath::gda {

// What a put does besides moving data.
struct PutExtras {
  std::int64_t signal = -1;  // id at the peer, raised by `add` when the data is there
  // 2.30's VA signal instead: the word at that offset of the peer's part of a window.
  std::uint64_t signal_window = 0, signal_offset = 0;
  std::uint64_t add = 1;
  std::int64_t counter = -1;  // id here, raised by 1 when the source may be reused
};

template <class Qp, class Context>
class GinKernel {
 public:
  static constexpr std::uint64_t kChunk = std::uint64_t{1} << 30;
  static constexpr bool kGets = std::is_same_v<Context, DeviceContext88>;

  // `context`: address of the DeviceContext (GinContext::device_handle; for a 2.30 array, of one
  // element).  Windows are given as GinWindow::device_handle.  Results: 0, or -EIO, -ETIMEDOUT.
  GinKernel(std::uint64_t context, int rank, std::int64_t timeout_ns = 60 * kSecond)
      : context_(device::at<Context>(context)), rank_(rank), timeout_ns_(timeout_ns) {}

  int put(int peer, std::uint64_t to, std::uint64_t to_offset, std::uint64_t from,
          std::uint64_t from_offset, std::uint64_t bytes, const PutExtras& extras = {}) {
    return post(peer, chunks(bytes), extras, [&](Producer<Qp>& sq, std::uint64_t first) {
      transfer(sq, Opcode::write, first, rkey(to, peer), to_offset, lkey(from), from_offset, bytes);
    });
  }

  // 1 to 8 bytes, inside the WQE.
  int put_value(int peer, std::uint64_t to, std::uint64_t to_offset, std::uint64_t value,
                std::uint32_t bytes, const PutExtras& extras = {}) {
    return post(peer, 1, extras, [&](Producer<Qp>& sq, std::uint64_t first) {
      std::uint8_t data[8];
      std::memcpy(data, &value, sizeof data);
      sq.write(first, make_write_inline(first, sq.qpn(), to_offset, rkey(to, peer), data, bytes));
    });
  }

  int signal(int peer, std::int64_t id, std::uint64_t add = 1, std::int64_t counter = -1) {
    return post(peer, 0, {.signal = id, .add = add, .counter = counter},
                [](Producer<Qp>&, std::uint64_t) {});
  }

  // 2.30: a signal that is a word of a window.
  int signal_word(int peer, std::uint64_t window, std::uint64_t offset, std::uint64_t add = 1) {
    return post(peer, 0, {.signal_window = window, .signal_offset = offset, .add = add},
                [](Producer<Qp>&, std::uint64_t) {});
  }

  int get(int peer, std::uint64_t from, std::uint64_t from_offset, std::uint64_t to,
          std::uint64_t to_offset, std::uint64_t bytes) requires kGets {
    Producer<Qp> sq = queue(context_.queues, peer);
    const std::uint32_t count = chunks(bytes);
    std::uint64_t first = 0;
    if (const int error = sq.reserve(count, first); error != 0) return error;
    transfer(sq, Opcode::read, first, rkey(from, peer), from_offset, lkey(to), to_offset, bytes);
    if (const int error = sq.submit(first, count); error != 0) return error;
    device::fetch_max(element(context_.last_issued_get, peer), first + count);
    return 0;
  }

  // Sources of all puts to `peer` may be reused; data of gets is visible.  As NCCL 2.32.
  int flush(int peer) {
    Producer<Qp> sq = queue(context_.queues, peer);
    if constexpr (kGets) {
      auto& visible = element(context_.last_visible_get, peer);
      const std::uint64_t issued =
          device::atomic(element(context_.last_issued_get, peer)).load(std::memory_order_acquire);
      if (context_.reads_sink != 0 &&
          issued > device::atomic(visible).load(std::memory_order_acquire)) {
        std::uint64_t first = 0;
        if (const int error = sq.reserve(1, first); error != 0) return error;
        sq.write(first, make_dump(first, sq.qpn(), context_.sink_lkey_be));
        if (const int error = sq.submit(first, 1); error != 0) return error;
        const int error = sq.poll(first);
        if (error == 0) device::fetch_max(visible, issued);
        return error;
      }
    }
    return sq.wait_all();
  }

  // Not in NCCL: all counters of puts to `peer` have been raised.
  int flush_counters(int peer) { return queue(context_.companions, peer).wait_all(); }

  std::uint64_t read_signal(std::uint64_t id) const { return read(context_.signals, id); }
  std::uint64_t read_counter(std::uint64_t id) const { return read(context_.counters, id); }
  int wait_signal(std::uint64_t id, std::uint64_t least) const {
    return wait(context_.signals, id, least);
  }
  int wait_counter(std::uint64_t id, std::uint64_t least) const {
    return wait(context_.counters, id, least);
  }

  // The queue itself, to write what NCCL never would.
  Producer<Qp> queue_to(int peer) { return queue(context_.queues, peer); }

 private:
  static std::uint32_t chunks(std::uint64_t bytes) {
    return bytes == 0 ? 1 : static_cast<std::uint32_t>((bytes + kChunk - 1) / kChunk);
  }
  template <class T = std::uint64_t>
  static T& element(std::uint64_t array, int index) {
    return (&device::at<T>(array))[index];
  }
  static std::uint32_t rkey(std::uint64_t window, int peer) {
    return element<std::uint32_t>(device::at<DeviceWindow>(window).rkeys_be, peer);
  }
  static std::uint32_t lkey(std::uint64_t window) {
    return device::at<DeviceWindow>(window).lkey_be;
  }
  static std::uint64_t remote_offset(const DeviceTable& table, std::int64_t id) {
    // 2.28 has padding where 2.30 has `offset`; we fill it with 0.
    return 8 * (static_cast<std::uint64_t>(id) + table.offset);
  }
  static std::uint64_t read(const DeviceTable& table, std::uint64_t id) {
    return device::atomic((&device::at<std::uint64_t>(table.buffer))[id])
        .load(std::memory_order_acquire);
  }

  Producer<Qp> queue(std::uint64_t array, int peer) {
    return Producer<Qp>(element<Qp>(array, peer), timeout_ns_);
  }

  void transfer(Producer<Qp>& sq, Opcode opcode, std::uint64_t first, std::uint32_t rkey_be,
                std::uint64_t remote, std::uint32_t lkey_be, std::uint64_t local,
                std::uint64_t bytes) {
    if (bytes == 0) return sq.write(first, make_nop(first, sq.qpn()));
    for (std::uint64_t done = 0; done < bytes; done += kChunk, ++first) {
      const auto piece = static_cast<std::uint32_t>(bytes - done < kChunk ? bytes - done : kChunk);
      sq.write(first, make_transfer(opcode, first, sq.qpn(), remote + done, rkey_be, local + done,
                                    lkey_be, piece));
    }
  }

  // `count` WQEs of data, then the signal, on the peer's queue; the counter on the companion.
  template <class WriteData>
  int post(int peer, std::uint32_t count, const PutExtras& extras, WriteData&& write_data) {
    Producer<Qp> sq = queue(context_.queues, peer);
    const bool in_window = extras.signal_window != 0;
    const std::uint32_t total = count + (extras.signal >= 0 || in_window ? 1 : 0);
    std::uint64_t first = 0;
    if (const int error = sq.reserve(total, first); error != 0) return error;
    write_data(sq, first);
    if (total > count) {
      const std::uint32_t key = in_window ? rkey(extras.signal_window, peer)
                                          : element<std::uint32_t>(context_.signals.rkeys_be, peer);
      const std::uint64_t at =
          in_window ? extras.signal_offset : remote_offset(context_.signals, extras.signal);
      sq.write(first + count,
               make_fetch_add(first + count, sq.qpn(), at, key, extras.add, context_.sink_lkey_be));
    }
    if (extras.counter < 0) return sq.submit(first, total);

    // Before the companion's slots: who waited for these with its own not marked would keep all
    // behind it in the main queue from marking theirs, and one of them may hold what it waits for.
    if (const int error = sq.mark_ready(first, total); error != 0) return error;
    Producer<Qp> companion = queue(context_.companions, peer);
    std::uint64_t next = 0;
    if (const int error = companion.reserve(2, next); error != 0) return error;
    const std::uint32_t key = element<std::uint32_t>(context_.counters.rkeys_be, rank_);
    companion.write(next, make_wait(next, companion.qpn(), first + total - 1, sq.cqn()));
    companion.write(next + 1, make_fetch_add(next + 1, companion.qpn(),
                                             remote_offset(context_.counters, extras.counter), key,
                                             1, context_.sink_lkey_be));
    if (const int error = companion.mark_ready(next, 2); error != 0) return error;
    sq.ring(first + total);
    companion.ring(next + 2);
    return 0;
  }

  int wait(const DeviceTable& table, std::uint64_t id, std::uint64_t least) const {
    const std::int64_t deadline = now_ns() + timeout_ns_;
    while (read(table, id) < least) {
      if (now_ns() > deadline) return -ETIMEDOUT;
      std::this_thread::yield();
    }
    return 0;
  }

  Context& context_;
  const int rank_;
  const std::int64_t timeout_ns_;
};

using GinKernel28 = GinKernel<DeviceQp28, DeviceContext72>;
using GinKernel30 = GinKernel<DeviceQp30, DeviceContext88>;

}  // namespace twinpath::gda
