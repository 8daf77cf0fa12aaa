// WQEs whose bytes reach memory after the doorbell, in any order: never taken in half, never lost.
#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <iterator>
#include <random>
#include <thread>
#include <vector>

#include "gda/served/front/work_queue.h"
#include "plugin/base/clock.h"
#include "test/gda/rig.h"
#include "test/support/catch.h"
#include "test/support/log_capture.h"
#include "test/support/stand_still.h"

using namespace twinpath;
using namespace twinpath::gda;

namespace {

// Stores of a kernel that reach memory one by one, in an order of their own.
void store_dword(Queue& queue, std::uint64_t index, const Wqe& wqe, std::size_t dword) {
  auto* at = reinterpret_cast<std::uint32_t*>(queue.sq + index % queue.depth * kWqeBytes) + dword;
  std::atomic_ref<std::uint32_t>(*at).store(
      static_cast<std::uint32_t>(wqe.words[dword / 2] >> dword % 2 * 32),
      std::memory_order_relaxed);
}
void store_word(Queue& queue, std::uint64_t index, const Wqe& wqe, std::size_t word) {
  auto* at = reinterpret_cast<std::uint64_t*>(queue.sq + index % queue.depth * kWqeBytes) + word;
  std::atomic_ref<std::uint64_t>(*at).store(wqe.words[word], std::memory_order_relaxed);
}

}  // namespace

TEST_CASE("A WQE whose bytes come after the doorbell is taken when it is whole") {
  Rig rig;
  Queue& queue = rig.make(16, nullptr, DoorbellKind::count, 10 * kSecond);
  const std::uint32_t qpn = queue.device.qpn;
  const std::uint8_t data[12] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12};
  const std::vector<Wqe> wqes{
      make_write(0, qpn, 8, swap32(rig.data), 16, swap32(rig.data), 64),
      make_fetch_add(1, qpn, 8, swap32(rig.table), 1, swap32(rig.sink)),
      make_nop(2, qpn),
      make_dump(3, qpn, swap32(rig.sink)),
      make_read(4, qpn, 8, swap32(rig.data), 16, swap32(rig.data), 64),
  };
  std::mt19937 random(7);
  for (std::uint64_t i = 0; i < wqes.size(); ++i) {
    queue.raw_doorbell(i + 1);
    CHECK(queue.front->scan(64) == 0);
    std::vector<std::size_t> order(wqes[i].segments * 2);
    for (std::size_t k = 0; k < order.size(); ++k) order[k] = k;
    std::shuffle(order.begin(), order.end(), random);
    for (const std::size_t word : order) {
      CHECK(queue.front->scan(64) == 0);
      store_word(queue, i, wqes[i], word);
    }
    CHECK(queue.front->scan(64) == 1);
  }
  // Inline data: dword by dword, whatever the order.
  std::array<std::size_t, 4> order{8, 9, 10, 11};
  std::uint64_t i = wqes.size();
  do {
    const Wqe wqe = make_write_inline(i, qpn, 8, swap32(rig.data), data, 12);
    queue.raw_doorbell(i + 1);
    for (std::size_t k = 0; k < 4; ++k) store_word(queue, i, wqe, k);
    for (const std::size_t dword : order) {
      CHECK(queue.front->scan(64) == 0);
      store_dword(queue, i, wqe, dword);
    }
    CHECK(queue.front->scan(64) == 1);
    CHECK(std::equal(data, data + 12, rig.back_end.seen.back().operation.inline_data.begin()));
    queue.front->complete(i++);
  } while (std::next_permutation(order.begin(), order.end()));
  CHECK(queue.front->counts().late == i);
  CHECK(queue.front->counts().taken_as_is == 0);
  CHECK_FALSE(queue.front->failed());
}

TEST_CASE("Bytes that trickle in while the engine looks are never taken in half") {
  Rig rig;
  Queue& queue = rig.make(16, nullptr, DoorbellKind::count, 100 * kSecond);
  constexpr std::uint64_t kCount = 2000;
  std::thread kernel([&] {
    std::mt19937 random(11);
    for (std::uint64_t i = 0; i < kCount; ++i) {
      Producer<DeviceQp28> sq(queue.device);
      std::uint64_t index = 0;
      (void)sq.reserve(1, index);
      (void)sq.submit(index, 1);  // before the WQE
      std::array<std::uint8_t, 8> data;
      for (std::uint8_t& byte : data) byte = static_cast<std::uint8_t>(index);
      const bool inlined = index % 2 != 0;
      const Wqe wqe =
          inlined ? make_write_inline(index, sq.qpn(), index, swap32(rig.data), data.data(), 8)
                  : make_write(index, sq.qpn(), index, swap32(rig.data), index + 1,
                               swap32(rig.data), static_cast<std::uint32_t>(index + 1));
      // Control and addresses by 8 bytes, inline data by 4.
      std::vector<std::size_t> order{0, 1, 2, 3, 4, 5};
      if (inlined) order.push_back(6);  // 4 to 6 stand for dwords 8 to 10
      std::shuffle(order.begin(), order.end(), random);
      for (const std::size_t k : order) {
        if (inlined && k >= 4)
          store_dword(queue, index, wqe, k + 4);
        else
          store_word(queue, index, wqe, k);
        if (random() % 64 == 0) std::this_thread::yield();
      }
    }
  });
  std::uint64_t checked = 0;
  bool right = true;
  while (checked < kCount && !queue.front->failed()) {
    queue.front->scan(8);
    for (; !rig.back_end.seen.empty(); rig.back_end.seen.pop_front(), ++checked) {
      const std::uint64_t index = rig.back_end.seen.front().index;
      const Operation& op = rig.back_end.seen.front().operation;
      right = right && index == checked && op.remote == kRemoteAt + index;
      if (index % 2 != 0)
        right = right && op.bytes == 8 &&
                std::all_of(op.inline_data.begin(), op.inline_data.begin() + 8,
                            [&](std::uint8_t b) { return b == static_cast<std::uint8_t>(index); });
      else
        right = right && op.local == kLocalAt + index + 1 && op.bytes == index + 1;
      queue.front->complete(index);
    }
  }
  kernel.join();
  CHECK(right);
  CHECK(checked == kCount);
  CHECK(queue.front->counts().taken_as_is == 0);
}

TEST_CASE("Data that looks like poison is taken when patience ends") {
  Rig rig;
  Queue& queue = rig.make(16, nullptr, DoorbellKind::count, 2 * kMillisecond);
  const std::uint32_t qpn = queue.device.qpn;
  queue.post([&](std::uint64_t i) {
    return make_fetch_add(i, qpn, 0, swap32(rig.table), swap64(kPoison), swap32(rig.sink));
  });
  const std::int64_t start = now_ns();
  CHECK(queue.front->scan(64) == 0);
  while (queue.front->scan(64) == 0) REQUIRE(now_ns() - start < 10 * kSecond);
  CHECK(now_ns() - start >= 2 * kMillisecond);
  CHECK(rig.back_end.seen.back().operation.add == swap64(kPoison));

  std::uint8_t data[8];  // in the queue at byte 36: the poison's upper half, then its lower one
  for (unsigned k = 0; k < 8; ++k) data[k] = static_cast<std::uint8_t>(kPoison >> (k + 4) % 8 * 8);
  queue.post(
      [&](std::uint64_t i) { return make_write_inline(i, qpn, 0, swap32(rig.data), data, 8); });
  while (queue.front->scan(64) == 0) REQUIRE(now_ns() - start < 10 * kSecond);
  CHECK(std::equal(data, data + 8, rig.back_end.seen.back().operation.inline_data.begin()));
  CHECK(queue.front->counts().taken_as_is == 2);
  CHECK_FALSE(queue.front->failed());
}

TEST_CASE("A WQE that is missing is waited for longer than one whose data looks like poison") {
  Rig rig;
  rig.data_patience_ns = kMillisecond;
  Queue& queue = rig.make(16, nullptr, DoorbellKind::count, 100 * kSecond);
  const std::uint32_t qpn = queue.device.qpn;
  const std::uint8_t data[8] = {1, 2, 3, 4, 5, 6, 7, 8};
  const std::vector<Wqe> wqes{
      make_write_inline(0, qpn, 8, swap32(rig.data), data, 8),
      make_fetch_add(1, qpn, 8, swap32(rig.table), 1, swap32(rig.sink)),
      make_write(2, qpn, 8, swap32(rig.data), 16, swap32(rig.data), 64),
  };
  for (std::uint64_t i = 0; i < wqes.size(); ++i) {
    queue.raw_doorbell(i + 1);
    // One word is late, each time another: control, address, key.
    for (std::size_t word = 0; word < wqes[i].segments * 2; ++word)
      if (word != i) store_word(queue, i, wqes[i], word);
    const std::int64_t start = now_ns();
    while (now_ns() - start < 5 * kMillisecond) REQUIRE(queue.front->scan(64) == 0);
    store_word(queue, i, wqes[i], i);
    CHECK(queue.front->scan(64) == 1);
    queue.front->complete(i);
  }
  CHECK(queue.front->counts().late == wqes.size());
  CHECK(queue.front->counts().taken_as_is == 0);
  CHECK_FALSE(queue.front->failed());
}

TEST_CASE("A WQE is waited for in the time in which this process ran") {
  // Its last word is late, by a stop that is longer than either patience.
  Rig rig;
  Queue& queue = rig.make(16, nullptr, DoorbellKind::count, 50 * kMillisecond);
  const std::uint32_t qpn = queue.device.qpn;
  const std::uint8_t data[8] = {1, 2, 3, 4, 5, 6, 7, 8};
  const Wqe wqes[] = {make_write(0, qpn, 8, swap32(rig.data), 16, swap32(rig.data), 64),
                      make_write_inline(1, qpn, 8, swap32(rig.data), data, 8)};
  for (std::uint64_t i = 0; i < std::size(wqes); ++i) {
    const bool inlined = i == 1;
    const std::size_t last = inlined ? 5 : wqes[i].segments * 2 - 1;
    for (std::size_t word = 0; word < wqes[i].segments * 2; ++word)
      if (word != last) store_word(queue, i, wqes[i], word);
    queue.raw_doorbell(i + 1);
    CHECK(queue.front->scan(64) == 0);
    test::stand_still(150);
    CHECK(queue.front->scan(64) == 0);
    CHECK_FALSE(queue.front->failed());
    store_word(queue, i, wqes[i], last);
    CHECK(queue.front->scan(64) == 1);
    queue.front->complete(i);
  }
  CHECK(queue.front->counts().late == std::size(wqes));
  CHECK(queue.front->counts().taken_as_is == 0);
}

TEST_CASE("A WQE that never comes ends the queue when patience ends") {
  Rig rig;
  Queue& queue = rig.make();
  test::LogCapture log;
  queue.raw_doorbell(1);
  queue.front->scan(64);
  CHECK(queue.front->failed());
  CHECK(log.has(LogLevel::warn, "work request 0 was announced"));
  CHECK(queue.front->counts().taken_as_is == 0);
  CHECK(queue.result(0) == Syndrome::local_qp_operation);
}

TEST_CASE("What misses all of a WQE is waited for anew when only its data is missing") {
  LateWqes late(1000, 100);
  std::int64_t now = 1;
  // Looks often enough that all of the time counts.
  const auto waits = [&](bool but_for_data) {
    std::int64_t waited = 0;
    for (; late.may_come(but_for_data, now); now += 10) waited += 10;
    return waited;
  };
  const auto near = [](std::int64_t waited, std::int64_t limit) {
    return waited >= limit && waited <= limit + 20;
  };
  CHECK(near(waits(true), 100));
  CHECK_FALSE(late.may_come(true, now));
  CHECK(near(waits(false), 1000));
  CHECK(near(waits(true), 100));
  CHECK(late.counts().late == 1);  // one WQE, whatever it missed
  late.end(true);
  CHECK(late.counts().taken_as_is == 1);
  CHECK(near(waits(false), 1000));  // the next has all of its time
  late.end(false);
  CHECK(late.counts().late == 2);
  CHECK(late.counts().taken_as_is == 1);
}
