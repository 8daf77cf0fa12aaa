// Queues that our driver made, filled by threads in the place of kernels and served by the device
// model alone: on RoCE and on InfiniBand, in one process and between two.
#include <thread>

#include "test/gda/mlx5/member.h"
#include "test/support/child_process.h"
#include "test/support/log_capture.h"

using namespace twinpath;
using namespace twinpath::test;
using gda::mlx5::QueueState;

namespace {

constexpr std::size_t kPiece = 512;
constexpr int kThreads = 3, kPuts = 200;  // of each thread

std::uint8_t pattern(int rank, std::size_t at) {
  return static_cast<std::uint8_t>(at * 31 + at / 251 + static_cast<std::size_t>(rank) * 97 + 1);
}

// Each rank puts to the other, with signal and counter, from several threads at once: all of them
// ring one register, for two queues.  An empty text, or what was wrong.
template <class M>
std::string storm(M& m, int rank) {
  const int peer = 1 - rank;
  for (std::size_t i = 0; i < kWindowBytes / 2; ++i) m.data()[i] = pattern(rank, i);
  std::atomic<int> wrong{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      auto kernel = m.kernel();
      for (int i = 0; i < kPuts; ++i) {
        const auto from = static_cast<std::size_t>((t * kPuts + i) % 256) * kPiece;
        if (kernel.put(peer, m.window(), kWindowBytes / 2 + from, m.window(), from, kPiece,
                       {.signal = t, .counter = t + 4}) != 0)
          ++wrong;
      }
    });
  }
  for (std::thread& t : threads) t.join();
  if (wrong != 0) return std::to_string(wrong) + " puts failed";
  auto kernel = m.kernel();
  if (kernel.flush(peer) != 0 || kernel.flush_counters(peer) != 0) return "a flush failed";
  for (std::uint64_t t = 0; t < kThreads; ++t) {
    if (kernel.wait_signal(t, kPuts) != 0) return "a signal is missing";
    if (kernel.read_counter(t + 4) != kPuts)
      return "counter " + std::to_string(kernel.read_counter(t + 4));
  }
  for (std::size_t i = 0; i < kWindowBytes / 2; ++i)
    if (m.data()[kWindowBytes / 2 + i] != pattern(peer, i))
      return "wrong byte " + std::to_string(i);
  return "";
}

// After it nothing more comes: all are exact.
template <class M>
std::string exact(M& m) {
  auto kernel = m.kernel();
  for (std::uint64_t t = 0; t < kThreads; ++t)
    if (kernel.read_signal(t) != kPuts || kernel.read_counter(t + 4) != kPuts)
      return "signal " + std::to_string(kernel.read_signal(t)) + ", counter " +
             std::to_string(kernel.read_counter(t + 4));
  return "";
}

template <class Qp, class Context>
void storm_both(const MemberSettings& settings) {
  Pair<Qp, Context> pair(settings);
  std::string why[2];
  std::thread other([&] { why[1] = storm(pair.b, 1); });
  why[0] = storm(pair.a, 0);
  other.join();
  CHECK(why[0].empty());
  CHECK(why[1].empty());
  INFO(why[0] << " " << why[1]);
  CHECK(exact(pair.a).empty());
  CHECK(exact(pair.b).empty());
  // 600 puts and as many signals through 16 slots: the queue went round 75 times.
  CHECK(pair.a.queue(1).reserved == 2 * kThreads * kPuts);
  CHECK(pair.a.companion(1).reserved == 2 * kThreads * kPuts);
}

}  // namespace

TEST_CASE("puts with signals and counters from many threads: data right, all counts exact") {
  storm_both<gda::DeviceQp30, gda::DeviceContext88>({});
}

TEST_CASE("likewise with the structures of NCCL 2.28") {
  storm_both<gda::DeviceQp28, gda::DeviceContext72>({});
}

TEST_CASE("likewise by GID, as to another subnet") {
  storm_both<gda::DeviceQp30, gda::DeviceContext88>({.by_gid = true});
}

TEST_CASE("likewise where a thread rings for the kernels") {
  storm_both<gda::DeviceQp28, gda::DeviceContext72>({.rung = true});
}

TEST_CASE("the far end in another process", "[.child]") {
  const Role role = own_role();
  Member<> m(1, {});
  std::array<Told, kRanks> told{Told{}, m.tell(1)};
  const Told mine = m.tell(0);
  if (!tell(role.fd, mine) || !hear(role.fd, told[0])) _exit(1);
  m.join(told);
  char ready = 1;
  if (!tell(role.fd, ready) || !hear(role.fd, ready)) _exit(2);
  if (role.name == "silent") {
    (void)hear(role.fd, ready);  // to be killed
    _exit(0);
  }
  const std::string why = storm(m, 1);
  if (!tell(role.fd, ready) || !hear(role.fd, ready)) _exit(3);
  if (!why.empty() || !exact(m).empty()) {
    std::fprintf(stderr, "rank 1: %s %s\n", why.c_str(), exact(m).c_str());
    _exit(4);
  }
  _exit(0);
}

namespace {

// Joined with a child that plays `role`, both ready.
struct Across {
  explicit Across(const std::string& role) : child(role), m(0, {}) {
    std::array<Told, kRanks> told{m.tell(0), Told{}};
    const Told mine = m.tell(1);
    REQUIRE(tell(child.fd, mine));
    REQUIRE(hear(child.fd, told[1]));
    m.join(told);
    char ready = 1;
    REQUIRE(hear(child.fd, ready));
    REQUIRE(tell(child.fd, ready));
  }
  ChildProcess child;
  Member<> m;
};

}  // namespace

TEST_CASE("two processes: data right, all counts exact") {
  Across across("storm");
  CHECK(storm(across.m, 0) == "");
  char done = 1;
  REQUIRE(hear(across.child.fd, done));
  CHECK(exact(across.m) == "");
  REQUIRE(tell(across.child.fd, done));
  CHECK(across.child.finish() == 0);
}

TEST_CASE("a peer that dies fails its queue alone, and its kernels see it") {
  Across across("silent");
  across.child.kill_and_wait();
  auto kernel = across.m.kernel();
  CHECK(kernel.put(1, across.m.window(), 0, across.m.window(), 0, 64, {.signal = 0}) == 0);
  CHECK(kernel.flush(1) == -EIO);
  CHECK(*across.m.queues().look(1) == QueueState::error);
  CHECK(kernel.put(0, across.m.window(), 64, across.m.window(), 0, 64, {.counter = 1}) == 0);
  CHECK(kernel.flush_counters(0) == 0);
  CHECK(kernel.read_counter(1) == 1);
  CHECK(*across.m.queues().look(0) == QueueState::ready_to_send);
}

TEST_CASE("put, value, get and signal, to the other and to oneself") {
  Pair<> pair;
  auto& m = pair.a;
  auto kernel = m.kernel();
  for (const int peer : {1, 0}) {
    auto& far = peer == 1 ? pair.b : pair.a;
    for (std::size_t i = 0; i < 4096; ++i) m.data()[i] = pattern(peer, i);
    CHECK(kernel.put(peer, m.window(), 8192, m.window(), 0, 4096, {.signal = 3, .add = 7}) == 0);
    CHECK(kernel.put_value(peer, m.window(), 16384, 0x1122334455667788u, 8, {.signal = 4}) == 0);
    CHECK(kernel.signal(peer, 5, 1000) == 0);
    CHECK(kernel.flush(peer) == 0);
    auto there = far.kernel();
    CHECK(there.wait_signal(3, 7) == 0);
    CHECK(there.wait_signal(5, 1000) == 0);
    CHECK(std::memcmp(far.data() + 8192, m.data(), 4096) == 0);
    std::uint64_t value = 0;
    std::memcpy(&value, far.data() + 16384, sizeof value);
    CHECK(value == 0x1122334455667788u);
    // Back again: what lies there.
    for (std::size_t i = 0; i < 100000; ++i) far.data()[32768 + i] = pattern(peer + 5, i);
    CHECK(kernel.get(peer, m.window(), 32768, m.window(), 140000, 100000) == 0);
    CHECK(kernel.flush(peer) == 0);
    CHECK(std::memcmp(m.data() + 140000, far.data() + 32768, 100000) == 0);
    CHECK(there.read_signal(3) == 7);
    CHECK(there.read_signal(4) == 1);
    CHECK(there.read_signal(5) == 1000);
  }
}

TEST_CASE("a companion waits until the main queue has come so far") {
  Pair<> pair;
  auto& m = pair.a;
  gda::Producer<gda::DeviceQp30> main(m.queue(1)), companion(m.companion(1));
  // Waits for the third entry of the main queue, of which there is none yet.
  std::uint64_t first = 0;
  REQUIRE(companion.reserve(1, first) == 0);
  companion.write(first, gda::make_wait(first, companion.qpn(), 2, main.cqn()));
  REQUIRE(companion.submit(first, 1) == 0);
  for (std::uint64_t i = 0; i < 3; ++i) {
    REQUIRE(main.reserve(1, first) == 0);
    main.write(first, gda::make_nop(first, main.qpn()));
    // Not done before: a queue of its own lap, whose CQE nobody has written.
    CHECK(gda::Producer<gda::DeviceQp30>(m.companion(1), 20 * kMillisecond).poll(0) == -ETIMEDOUT);
    REQUIRE(main.submit(first, 1) == 0);
    REQUIRE(main.poll(first) == 0);
  }
  CHECK(companion.poll(0) == 0);
}

TEST_CASE("a doorbell record's 16 bits wrap") {
  const bool rung = GENERATE(false, true);
  Pair<> pair({.log_depth = 8, .companions = false, .rung = rung});
  auto& m = pair.a;
  gda::Producer<gda::DeviceQp30> main(m.queue(0));
  constexpr std::uint32_t kBatch = 64, kBatches = 1100;  // 70400 entries
  int wrong = 0;
  for (std::uint32_t i = 0; i < kBatches; ++i) {
    std::uint64_t first = 0;
    wrong += main.reserve(kBatch, first) != 0;
    for (std::uint64_t k = first; k < first + kBatch; ++k)
      main.write(k, gda::make_nop(k, main.qpn()));
    wrong += main.submit(first, kBatch) != 0;
  }
  CHECK(wrong == 0);
  CHECK(main.wait_all() == 0);
  CHECK(m.queue(0).reserved == kBatch * kBatches);
}

TEST_CASE("a collapsed completion queue has the last completion alone") {
  Pair<> pair({.collapsed = true, .companions = false});
  auto& m = pair.a;
  gda::Producer<gda::DeviceQp30> main(m.queue(1));
  for (std::uint64_t k = 0; k < 50; ++k) {  // three laps of 16
    main.write(k, gda::make_nop(k, main.qpn()));
    main.ring(k + 1);
    const std::int64_t deadline = now_ns() + 60 * kSecond;
    std::uint32_t last = 0;
    do {
      last = gda::device::atomic(gda::device::at<std::uint32_t>(m.queue(1).cq.cqes + 60))
                 .load(std::memory_order_acquire);
    } while (gda::cqe_opcode(last) != gda::CqeOpcode::done ||
             (gda::cqe_counter(last) != k && now_ns() < deadline));
    REQUIRE(gda::cqe_counter(last) == k);
    CHECK(gda::cqe_is_of_lap(last, k, 16));
  }
}
