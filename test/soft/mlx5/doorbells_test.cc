// Which records are read when somebody rings, in memory that takes long to read: a GPU's.
#include <array>
#include <atomic>
#include <chrono>
#include <cstring>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

#include "plugin/fabric/soft/mlx5/execution.h"
#include "test/support/catch.h"

namespace twinpath::soft::mlx5 {
namespace {

using namespace std::chrono_literals;

constexpr std::uint32_t kPd = 7, kPage = 3;
constexpr std::size_t kQueues = 32;
// Below the least address that a process may have.
constexpr std::uint64_t kRecords = 0x1000, kSends = 0x2000, kCompletions = 0x8000, kEnd = 0x10000;
constexpr std::uint64_t kSendBlocks = 4, kBlock = 64, kEntries = 4;

// Memory of nobody's process, and what was done with it.  Global because the model's hooks have no
// argument to carry it.
struct Elsewhere {
  std::mutex lock;
  std::array<std::uint8_t, kEnd> bytes{};
  int record_reads = 0;
  std::array<int, kQueues> reads_until_completed{};

  static Elsewhere& instance() {
    static Elsewhere all;
    return all;
  }
  void clear() {
    const std::lock_guard hold(lock);
    bytes.fill(0);
    record_reads = 0;
    reads_until_completed.fill(-1);
  }
  int reads_of(std::size_t queue) {
    const std::lock_guard hold(lock);
    return reads_until_completed[queue];
  }
};

bool read_slowly(std::uint64_t address, void* to, std::size_t bytes) {
  Elsewhere& e = Elsewhere::instance();
  if (address < kRecords || address + bytes > kEnd) return false;
  if (address < kSends) std::this_thread::sleep_for(20us);
  const std::lock_guard hold(e.lock);
  if (address < kSends && bytes == 4) ++e.record_reads;
  std::memcpy(to, e.bytes.data() + address, bytes);
  return true;
}

bool write_there(std::uint64_t address, const void* from, std::size_t bytes, std::size_t) {
  Elsewhere& e = Elsewhere::instance();
  if (address < kCompletions || address + bytes > kEnd) return false;
  const std::lock_guard hold(e.lock);
  std::memcpy(e.bytes.data() + address, from, bytes);
  e.reads_until_completed.at((address - kCompletions) / (kEntries * kBlock)) = e.record_reads;
  return true;
}

// What the carriers ask of verbs: these queue pairs carry nothing.
Verbs hollow_verbs() {
  Verbs v{};
  v.create_cq = [](ibv_context*, int, void*, ibv_comp_channel*, int) -> ibv_cq* {
    static ibv_cq cq{};
    return &cq;
  };
  v.destroy_cq = [](ibv_cq*) { return 0; };
  v.create_qp = [](ibv_pd*, ibv_qp_init_attr*) {
    static std::uint32_t number = 0x100;
    auto* qp = new ibv_qp{};
    qp->qp_num = ++number;
    return qp;
  };
  v.destroy_qp = [](ibv_qp* qp) {
    delete qp;
    return 0;
  };
  return v;
}

// Queues of one doorbell page whose every byte is elsewhere.
class Rung {
 public:
  Rung() {
    Elsewhere::instance().clear();
    around_.verbs = hollow_verbs();
    around_.read_elsewhere = read_slowly;
    around_.write_elsewhere = write_there;
    execution_ = std::make_unique<Execution>(around_);
    execution_->know_pd(kPd, &pd_);
    execution_->know_page(kPage, {&word_});
    for (std::size_t i = 0; i < kQueues; ++i) add(i);
  }

  // An entry that does nothing and completes, and its record.
  void post(std::size_t queue) {
    Elsewhere& e = Elsewhere::instance();
    const std::lock_guard hold(e.lock);
    std::uint8_t* const entry = e.bytes.data() + sends(queue);
    entry[7] = 1;      // one segment
    entry[11] = 0x08;  // completion asked for
    e.bytes[record(queue) + 7] = 1;
  }
  void ring(std::uint32_t named) {
    std::atomic_ref(word_).store(__builtin_bswap64(std::uint64_t{named} << 8 | 1),
                                 std::memory_order_release);
  }
  std::uint32_t number(std::size_t queue) const { return numbers_[queue]; }
  bool completed(std::size_t queue) const { return Elsewhere::instance().reads_of(queue) >= 0; }
  // `meanwhile` is called until then.
  bool wait(
      const std::vector<std::size_t>& queues, const std::function<void()>& meanwhile = [] {}) {
    for (int looks = 0; looks < 20000; ++looks) {
      bool all = true;
      for (const std::size_t q : queues) all = all && completed(q);
      if (all) return true;
      meanwhile();
      std::this_thread::sleep_for(500us);
    }
    return false;
  }

 private:
  static std::uint64_t record(std::size_t queue) { return kRecords + queue * 8; }
  static std::uint64_t sends(std::size_t queue) { return kSends + queue * kSendBlocks * kBlock; }

  void add(std::size_t i) {
    CompletionQueueFacts cq;
    cq.number = static_cast<std::uint32_t>(i + 1);
    cq.address = kCompletions + i * kEntries * kBlock;
    cq.log_entries = 2;
    cq.ignores_overrun = true;
    execution_->make(cq);
    QueuePairFacts qp;
    qp.service = Service::key_changes;
    qp.pd = kPd;
    qp.uar = kPage;
    qp.send_cq = cq.number;
    qp.sends = sends(i);
    qp.record = record(i);
    qp.send_blocks = kSendBlocks;
    numbers_[i] = execution_->make(qp);
    REQUIRE(numbers_[i] != 0);
    REQUIRE(execution_->change(numbers_[i], State::ready_to_send, {}));
  }

  Surroundings around_;
  ibv_pd pd_{};
  std::uint64_t word_ = 0;
  std::array<std::uint32_t, kQueues> numbers_{};
  std::unique_ptr<Execution> execution_;
};

TEST_CASE("A queue that a word names is served before the records of others are read") {
  Rung rung;
  rung.post(20);
  rung.ring(rung.number(20));
  REQUIRE(rung.wait({20}));
  CHECK(Elsewhere::instance().reads_of(20) == 1);
}

TEST_CASE("Queues whose words were overwritten are served, however often others ring") {
  Rung rung;
  for (const std::size_t queue : {std::size_t{0}, std::size_t{9}, kQueues - 1}) rung.post(queue);
  SECTION("another queue rings without end") {
    CHECK(rung.wait({0, 9, kQueues - 1}, [&] { rung.ring(rung.number(20)); }));
  }
  SECTION("the word names nobody") {
    rung.ring(0xffffff);
    CHECK(rung.wait({0, 9, kQueues - 1}));
  }
}

}  // namespace
}  // namespace twinpath::soft::mlx5
