// Queues that end: by a wrong entry, or because we end them.
#include <thread>

#include "gda/adapter/mlx5/queue_watch.h"
#include "test/gda/mlx5/member.h"

using namespace twinpath;
using namespace twinpath::test;
using gda::mlx5::QueueState;

TEST_CASE("a bad key is an error completion, what is behind it is flushed, others go on") {
  Pair<> pair;
  auto& m = pair.a;
  auto kernel = m.kernel();
  const std::uint32_t good = m.window_keys()[1];
  m.window_keys()[1] = gda::swap32(gda::swap32(good) + 0x1000);
  CHECK(kernel.put(1, m.window(), 0, m.window(), 0, 64) == 0);
  m.window_keys()[1] = good;
  CHECK(kernel.put(1, m.window(), 0, m.window(), 0, 64, {.signal = 2}) == 0);
  CHECK(kernel.flush(1) == -EIO);
  gda::Producer<gda::DeviceQp30> main(m.queue(1));
  CHECK(main.poll(0) == -EIO);
  gda::CqeBytes cqe;
  std::memcpy(cqe, reinterpret_cast<const void*>(m.queue(1).cq.cqes), sizeof cqe);
  CHECK(gda::cqe_syndrome(cqe) == gda::Syndrome::remote_access);
  CHECK(*m.queues().look(1) == QueueState::error);
  CHECK(pair.b.kernel().read_signal(2) == 0);
  auto there = pair.b.kernel();
  CHECK(there.put(1, pair.b.window(), 64, pair.b.window(), 0, 64, {.signal = 2}) == 0);
  CHECK(there.flush(1) == 0);
  CHECK(there.read_signal(2) == 1);
}

TEST_CASE("a queue that is ended releases whoever waits for it") {
  Pair<> pair;
  auto& m = pair.a;
  gda::Producer<gda::DeviceQp30> main(m.queue(1)), companion(m.companion(1));
  std::uint64_t first = 0;
  REQUIRE(companion.reserve(2, first) == 0);
  companion.write(first, gda::make_wait(first, companion.qpn(), 0, main.cqn()));
  companion.write(first + 1, gda::make_nop(first + 1, companion.qpn()));
  REQUIRE(companion.submit(first, 2) == 0);
  int seen = 0;
  std::thread kernel([&] { seen = companion.poll(1); });  // waits for what never happens
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  CHECK(m.queues().stop(1) == Status::ok);
  kernel.join();
  CHECK(seen == -EIO);
  CHECK(companion.poll(0) == -EIO);
  CHECK(*m.queues().look(1) == QueueState::error);
  CHECK(*m.queues().look(kRanks + 1) == QueueState::error);
  CHECK(*m.queues().look(0) == QueueState::ready_to_send);
  // What is rung now is flushed, too.
  REQUIRE(main.reserve(1, first) == 0);
  main.write(first, gda::make_nop(first, main.qpn()));
  REQUIRE(main.submit(first, 1) == 0);
  CHECK(main.poll(first) == -EIO);
}

TEST_CASE("a queue that fails is seen, once, by asking each queue once a round") {
  Pair<> pair;
  auto& m = pair.a;
  gda::mlx5::QueueWatch watch(m.queues());  // four, so a round takes a second
  std::int64_t now = 5 * kSecond;
  CHECK_FALSE(watch.look(now, 100));
  auto kernel = m.kernel();
  m.window_keys()[1] ^= gda::swap32(0x1000);
  CHECK(kernel.put(1, m.window(), 0, m.window(), 0, 64, {.counter = 0}) == 0);
  CHECK(kernel.flush(1) == -EIO);
  CHECK_FALSE(watch.look(now, 100));  // nobody is asked so soon again
  CHECK_FALSE(watch.look(now + kSecond, 1));
  CHECK(watch.look(now + kSecond, 100) == std::optional<std::size_t>(1));
  CHECK_FALSE(watch.look(now + kSecond, 100));
  CHECK_FALSE(watch.look(now + 3 * kSecond, 100));
  CHECK(m.queues().stop(1) == Status::ok);
  CHECK(watch.look(now + 5 * kSecond, 100) ==
        std::optional<std::size_t>(kRanks + 1));  // its companion
  CHECK_FALSE(watch.look(now + 5 * kSecond, 100));
  CHECK_FALSE(watch.look(now + 7 * kSecond, 100));
}

TEST_CASE(
    "however many queues there are, each is asked for in time, and no adapter is asked too much") {
  struct Row {
    std::size_t queues;
    double round_s, asks_a_second;  // at most
  };
  // The last but one: 264 contexts of 8 ranks with counters.
  for (const Row row : {Row{1, 1, 1}, Row{16, 1, 16}, Row{80, 1.01, 80}, Row{400, 5.01, 80.1},
                        Row{4224, 10, 423}, Row{20'000, 10, 2001}}) {
    const auto interval = static_cast<double>(gda::mlx5::ask_interval_ns(row.queues)) / kSecond;
    CAPTURE(row.queues, interval);
    CHECK(interval * static_cast<double>(row.queues) <= row.round_s);
    CHECK(1 / interval <= row.asks_a_second);
  }
}
