// Eight threads play a kernel on queues of depth 16, for which one thread plays the engine.  The
// back end really moves the data, but late, in bursts, and out of step with the queues.
#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <deque>
#include <memory>
#include <random>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "gda/abi/gin_kernel.h"
#include "test/gda/rig.h"
#include "test/support/catch.h"

using namespace twinpath;
using namespace twinpath::gda;

namespace {

// Addresses are real ones of this process; at most `kRoom` operations wait.
class LateBackEnd final : public BackEnd {
 public:
  explicit LateBackEnd(unsigned seed) : random_(seed) {}
  WorkQueue* front = nullptr;

  Issued issue(std::uint64_t index, const Operation& operation) override {
    if (waiting_.size() == kRoom) return Issued::full;
    waiting_.emplace_back(index, operation);
    return Issued::accepted;
  }

  // Executes some of what waits; reports perhaps later still.
  void work() {
    for (auto count = random_() % 4; count > 0 && !waiting_.empty(); --count) {
      execute(waiting_.front().second);
      done_ = waiting_.front().first + 1;
      waiting_.pop_front();
    }
    if (done_ == 0 || random_() % 3 == 0) return;
    front->complete(done_ - 1);
    done_ = 0;
  }

 private:
  static constexpr std::size_t kRoom = 7;

  static void execute(const Operation& op) {
    auto* remote = reinterpret_cast<std::uint8_t*>(op.remote);
    auto* local = reinterpret_cast<std::uint8_t*>(op.local);
    switch (op.kind) {
      case OperationKind::write:
        std::memcpy(remote, local, op.bytes);
        break;
      case OperationKind::read:
        std::memcpy(local, remote, op.bytes);
        break;
      case OperationKind::write_inline:
        std::memcpy(remote, op.inline_data.data(), op.bytes);
        break;
      case OperationKind::fetch_add:
        device::atomic(*reinterpret_cast<std::uint64_t*>(remote))
            .fetch_add(op.add, std::memory_order_acq_rel);
        break;
      case OperationKind::nop:
      case OperationKind::dump:
        break;
    }
  }

  std::mt19937 random_;
  std::deque<std::pair<std::uint64_t, Operation>> waiting_;
  std::uint64_t done_ = 0;
};

constexpr int kThreads = 8;
constexpr std::size_t kRounds = 400;
constexpr std::uint32_t kDepth = 16;
constexpr int kPeer = 1;

template <class Qp, class Context>
struct World {
  using Kernel = GinKernel<Qp, Context>;

  explicit World(NicHandler handler)
      : keys(2),
        source(kThreads),
        sink_memory(1),
        back_ends{LateBackEnd(1), LateBackEnd(2)},
        target(kThreads * kRounds),
        values(kThreads * kRounds),
        signals(kThreads),
        counters(kThreads) {
    const auto add = [&](auto& local, auto& mine, auto& theirs, std::uint32_t rights) {
      const KeyedMemory remote[2] = {memory_of(mine), memory_of(theirs)};
      return *keys.add(memory_of(local), remote, rights);
    };
    const std::uint32_t data_rights = kLocalRead | kLocalWrite | kRemoteWrite | kRemoteRead;
    window(source_window, add(source, source, source, data_rights));
    window(target_window, add(target, target, target, data_rights));
    window(values_window, add(values, values, values, data_rights));
    table(context.signals, signals, add(signals, signals, signals, kRemoteAtomic));
    table(context.counters, counters, add(counters, counters, counters, kRemoteAtomic));
    context.sink_lkey_be =
        swap32(add(sink_memory, sink_memory, sink_memory, kLocalRead | kLocalWrite));
    for (int q = 0; q < 2; ++q) make_queue(q, handler);
    context.queues = reinterpret_cast<std::uintptr_t>(main_queues.data());
    context.companions = reinterpret_cast<std::uintptr_t>(companion_queues.data());
    if constexpr (Kernel::kGets) {
      context.last_issued_get = reinterpret_cast<std::uintptr_t>(gets_issued.data());
      context.last_visible_get = reinterpret_cast<std::uintptr_t>(gets_visible.data());
    }
  }

  void run_engine(const std::atomic<bool>& stop) {
    while (!stop) {
      int taken = 0;
      for (auto& front : fronts) taken += front->scan(5);
      for (auto& back_end : back_ends) back_end.work();
      if (taken == 0) std::this_thread::yield();
    }
  }

  // Rings as a thread that is away for a while before it stores, and again before it looks whether
  // it has overwritten a newer count: the engine sees the doorbell go back.
  void ring_late(const std::atomic<bool>& stop) {
    const auto away = [] { std::this_thread::sleep_for(std::chrono::microseconds(100)); };
    while (!stop)
      for (auto* qps : {&main_queues, &companion_queues}) {
        Qp& qp = (*qps)[kPeer];
        const std::uint64_t count = device::atomic(qp.rung).load(std::memory_order_acquire);
        away();
        if (count == 0) continue;
        device::atomic(device::at<std::uint64_t>(qp.doorbell))
            .exchange(adapter_doorbell(count, qp.qpn), std::memory_order_acq_rel);
        away();
        Producer<Qp>(qp).store_doorbell(count);
      }
  }

  // Read when all threads have ended.
  std::string state() {
    std::ostringstream out;
    for (std::size_t q = 0; q < 2; ++q) {
      const Qp& qp = (q == 0 ? main_queues : companion_queues)[kPeer];
      const WorkQueue& front = *fronts[q];
      const auto& bell = device::at<std::uint64_t>(qp.doorbell);
      out << (q == 0 ? "main" : "companion") << " queue: reserved " << qp.reserved << ", ready "
          << qp.ready << ", rung " << qp.rung << ", doorbell " << std::hex << bell << std::dec
          << ", taken " << front.issued() << ", CQEs written " << front.produced() << ", seen "
          << qp.cq.consumed << (front.failed() ? ", failed" : "") << '\n';
    }
    return out.str();
  }

  template <class T>
  static KeyedMemory memory_of(std::vector<T>& v) {
    return {reinterpret_cast<std::uintptr_t>(v.data()), v.size() * sizeof(T), 0};
  }
  static void window(DeviceWindow& out, std::uint32_t key) {
    static thread_local std::deque<std::array<std::uint32_t, 2>> rkeys;
    rkeys.push_back({swap32(key), swap32(key)});
    out.rkeys_be = reinterpret_cast<std::uintptr_t>(rkeys.back().data());
    out.lkey_be = swap32(key);
  }
  static void table(DeviceTable& out, std::vector<std::uint64_t>& values, std::uint32_t key) {
    DeviceWindow as_window{};
    window(as_window, key);
    out.buffer = reinterpret_cast<std::uintptr_t>(values.data());
    out.rkeys_be = as_window.rkeys_be;
    out.lkey_be = as_window.lkey_be;
  }

  void make_queue(int q, NicHandler handler) {
    const auto at = static_cast<std::size_t>(q);
    auto& memory = queue_memory[at];
    const auto base = reinterpret_cast<std::uintptr_t>(memory.data());
    const auto qpn = static_cast<std::uint32_t>(0x200 + q);
    const bool adapter = handler != NicHandler::cpu_proxy;
    auto& qps = q == 0 ? main_queues : companion_queues;
    qps[kPeer] = make_device_qp<Qp>(qpn, qpn + 0x1000, kDepth, base, base + kDepth * 64,
                                    base + kDepth * 128, base + kDepth * 128 + 8, handler);
    cqs[at] = std::make_unique<HostCq>(memory.data()->data() + kDepth * 64, kDepth);
    WorkQueueSetup setup;
    setup.qpn = qpn;
    setup.cqn = qpn + 0x1000;
    setup.depth = kDepth;
    setup.sq = memory.data()->data();
    setup.doorbell = reinterpret_cast<std::uint64_t*>(base + kDepth * 128);
    setup.doorbell_kind = adapter ? DoorbellKind::adapter : DoorbellKind::count;
    setup.keys = &keys;
    setup.peer = kPeer;
    setup.poison = kPoison;
    fronts[at] = std::make_unique<WorkQueue>(setup, back_ends[at], *cqs[at],
                                             [this](std::uint32_t cqn) -> const WorkQueue* {
                                               for (const auto& front : fronts)
                                                 if (front != nullptr && front->cqn() == cqn)
                                                   return front.get();
                                               return nullptr;
                                             });
    back_ends[at].front = fronts[at].get();
  }

  struct alignas(64) Line : std::array<std::uint8_t, 64> {};
  KeyTable keys;
  std::vector<std::uint64_t> source, sink_memory;
  std::array<LateBackEnd, 2> back_ends;
  std::vector<std::uint64_t> target, values, signals, counters;
  DeviceWindow source_window{}, target_window{}, values_window{};
  Context context{};
  std::array<Qp, 2> main_queues{}, companion_queues{};
  std::array<std::uint64_t, 2> gets_issued{}, gets_visible{};
  std::array<std::array<Line, kDepth * 2 + 1>, 2> queue_memory{};
  std::array<std::unique_ptr<HostCq>, 2> cqs;
  std::array<std::unique_ptr<WorkQueue>, 2> fronts;
};

std::uint64_t value_of(int thread, std::size_t round) {
  return static_cast<std::uint64_t>(thread) << 32 | (round + 1);
}

template <class Qp, class Context>
void stress(NicHandler handler) {
  auto world = std::make_unique<World<Qp, Context>>(handler);
  using Kernel = GinKernel<Qp, Context>;
  const auto address = [](auto& object) { return reinterpret_cast<std::uintptr_t>(&object); };
  Kernel kernel(address(world->context), 0);
  const std::uintptr_t source = address(world->source_window);
  const std::uintptr_t target = address(world->target_window);
  const std::uintptr_t values = address(world->values_window);

  std::atomic<bool> stop{false};
  std::atomic<int> errors{0};
  std::thread engine([&] { world->run_engine(stop); });
  std::thread late_ringer([&] {
    if (handler == NicHandler::gpu_no_dbr) world->ring_late(stop);
  });
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t)
    threads.emplace_back([&, t] {
      const auto own = static_cast<std::size_t>(t);
      for (std::size_t round = 0; round < kRounds; ++round) {
        const std::size_t cell = own * kRounds + round;
        // The source is written again as soon as the counter says that it may be.
        world->source[own] = value_of(t, round);
        int error = kernel.put_value(kPeer, values, cell * 8, value_of(t, round), 8);
        if (error == 0)
          error = kernel.put(kPeer, target, cell * 8, source, own * 8, 8,
                             {.signal = t, .add = 1, .counter = t});
        if (error == 0 && round % 5 == 0) error = kernel.put(kPeer, target, 0, source, 0, 0);
        // Half of the rounds wait as a kernel does that has counters, half as one without.
        if (error == 0)
          error = round % 2 == 0 ? kernel.wait_counter(own, round + 1) : kernel.flush(kPeer);
        // What the signal promises is there when it is.
        if (error == 0) error = kernel.wait_signal(own, round + 1);
        if (world->target[cell] != value_of(t, round) || world->values[cell] != value_of(t, round))
          error = 1;
        if constexpr (Kernel::kGets) {
          world->source[own] = 0;
          if (error == 0) error = kernel.get(kPeer, target, cell * 8, source, own * 8, 8);
          if (error == 0) error = kernel.flush(kPeer);
          if (world->source[own] != value_of(t, round)) error = 1;
        }
        if (error != 0) {
          ++errors;
          return;
        }
      }
    });
  for (auto& thread : threads) thread.join();
  // Nothing more is waited for once a wait has run out: the test has to tell before it is ended.
  if (errors == 0) {
    CHECK(kernel.flush(kPeer) == 0);
    CHECK(kernel.flush_counters(kPeer) == 0);
  }
  stop = true;
  engine.join();
  late_ringer.join();
  INFO(world->state());
  CHECK(errors == 0);
  for (std::size_t t = 0; t < kThreads; ++t) {
    CHECK(world->signals[t] == kRounds);
    CHECK(world->counters[t] == kRounds);
  }
  for (auto& front : world->fronts) CHECK_FALSE(front->failed());
  // One CQE a WQE: put_value, put, signal, a NOP in every fifth round (and get, dump for some).
  CHECK(world->fronts[0]->produced() >= kThreads * kRounds * 3 + kThreads * kRounds / 5);
  CHECK(world->fronts[1]->produced() == kThreads * kRounds * 2);
}

}  // namespace

TEST_CASE("Eight threads share queues of depth 16, layouts of 2.28, doorbell by count") {
  stress<DeviceQp28, DeviceContext72>(NicHandler::cpu_proxy);
}
TEST_CASE("Eight threads share queues of depth 16, layouts of 2.28, adapter's doorbell") {
  stress<DeviceQp28, DeviceContext72>(NicHandler::gpu_sm_db);
}
TEST_CASE("Eight threads share queues of depth 16, layouts of 2.30 with gets") {
  stress<DeviceQp30, DeviceContext88>(NicHandler::cpu_proxy);
}
TEST_CASE("Eight threads share queues of depth 16, layouts of 2.30, one ring and no record") {
  stress<DeviceQp30, DeviceContext88>(NicHandler::gpu_no_dbr);
}
