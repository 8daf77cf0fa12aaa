// The profiler tables: where a communicator's name goes, and that nothing else comes of them.
#include "plugin/nccl/abi/profiler.h"

#include <atomic>
#include <cstdlib>
#include <limits>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "plugin/nccl/abi/net.h"
#include "plugin/nccl/boundary.h"
#include "test/abi/fake_transport.h"
#include "test/support/catch.h"
#include "test/support/log_capture.h"

#define TP_DECLARE(v) extern "C" const twinpath::abi::ncclProfiler_v##v##_t ncclProfiler_v##v
TP_DECLARE(4);
TP_DECLARE(5);
TP_DECLARE(6);
extern "C" const twinpath::abi::ncclNet_v11_t ncclNetPlugin_v11;

namespace twinpath::test {
namespace {

using counters::Communicator;
using counters::CommunicatorState;

// As the net table's init opens it for a communicator, and NCCL then tells of it.
class Told {
 public:
  explicit Told(std::uint64_t id, const char* name = "tp", int rank = 3, int ranks = 8,
                bool net = true) {
    if (net) {
      REQUIRE(ncclNetPlugin_v11.init(&net_, id, nullptr, current_sink(), nullptr) ==
              abi::ncclSuccess);
      session = fake().last_session.serial;
    }
    mask = -1;
    REQUIRE(ncclProfiler_v5.init(&context, id, &mask, name, 2, ranks, rank, current_sink()) ==
            abi::ncclSuccess);
  }
  ~Told() {
    CHECK(ncclProfiler_v5.finalize(context) == abi::ncclSuccess);
    if (net_ != nullptr) CHECK(ncclNetPlugin_v11.finalize(net_) == abi::ncclSuccess);
  }
  Told(const Told&) = delete;
  const Communicator& place() const {
    REQUIRE(context != nullptr);
    return *static_cast<const Communicator*>(context);
  }
  std::string name() const { return place().identity.name.data(); }

  void* context = nullptr;
  int mask = 0;
  std::uint16_t session = 0;

 private:
  void* net_ = nullptr;
};

// The page that the program's Context got with its first init.
CounterPage& page() {
  static const std::shared_ptr<CounterPage> made = CounterPage::create("node07", "test", {});
  REQUIRE(made != nullptr);
  if (Context::get() == nullptr) {
    fake() = FakeState{};
    fake().counters = made;
    auto opened = Context::open();
    REQUIRE(opened);
  }
  return *made;
}

CommunicatorState state(const Communicator& c) {
  return static_cast<CommunicatorState>(c.state.get());
}

}  // namespace

TEST_CASE("before the net's init, and without counters, a profiler is told in vain",
          "[uncounted]") {
  void* context = &context;
  int mask = -1;
  // Not opened yet; then opened without a page, where this case runs alone.
  CHECK(ncclProfiler_v6.init(&context, 7, &mask, "tp", 1, 2, 0, nullptr) == abi::ncclSuccess);
  CHECK(context == nullptr);
  CHECK(mask == 0);
  CHECK(ncclProfiler_v6.finalize(nullptr) == abi::ncclSuccess);
  if (std::getenv("TWINPATH_TEST_UNCOUNTED") == nullptr) return;
  REQUIRE(Context::open());
  const Told told(7);
  CHECK(told.context == nullptr);
  CHECK(told.mask == 0);
  CHECK(ncclProfiler_v6.finalize(&mask) == abi::ncclSuccess);
}

TEST_CASE("each version's init leaves the name, and asks for no event") {
  const counters::Process& p = page().process();
  void* net = nullptr;
  REQUIRE(ncclNetPlugin_v11.init(&net, 77, nullptr, current_sink(), nullptr) == abi::ncclSuccess);
  int mask[] = {-1, -1, -1};
  void* context[] = {nullptr, nullptr, nullptr};
  CHECK(ncclProfiler_v4.init(&context[0], &mask[0], "four", 77, 2, 8, 3, nullptr) ==
        abi::ncclSuccess);
  CHECK(ncclProfiler_v5.init(&context[1], 77, &mask[1], "five", 2, 8, 3, nullptr) ==
        abi::ncclSuccess);
  CHECK(ncclProfiler_v6.init(&context[2], 77, &mask[2], "six", 2, 8, 3, nullptr) ==
        abi::ncclSuccess);
  const char* names[] = {"four", "five", "six"};
  for (int i = 0; i < 3; ++i) {
    REQUIRE(context[i] != nullptr);
    const auto& c = *static_cast<const Communicator*>(context[i]);
    CHECK(&c >= p.communicators.data());
    CHECK(c.sequence.load() % 2 == 0);
    CHECK(c.identity.id == 77);
    CHECK(c.identity.rank == 3);
    CHECK(c.identity.ranks == 8);
    CHECK(c.identity.nodes == 2);
    CHECK(std::string(c.identity.name.data()) == names[i]);
    // The same id again on one thread has no session of its own.
    CHECK(c.identity.session == (i == 0 ? fake().last_session.serial : 0));
    CHECK(mask[i] == 0);
  }
  CHECK(ncclProfiler_v4.finalize(context[0]) == abi::ncclSuccess);
  CHECK(ncclProfiler_v5.finalize(context[1]) == abi::ncclSuccess);
  CHECK(ncclProfiler_v6.finalize(context[2]) == abi::ncclSuccess);
  CHECK(ncclNetPlugin_v11.finalize(net) == abi::ncclSuccess);
}

TEST_CASE("a communicator and its split have their own names, which outlive their end") {
  page();
  const Communicator* gone = nullptr;
  {
    const Told world(100, "world", 3, 8), split(101, "tp", 1, 2);
    CHECK(world.context != split.context);
    CHECK(world.name() == "world");
    CHECK(split.name() == "tp");
    CHECK(split.place().identity.rank == 1);
    CHECK(world.session != split.session);
    CHECK(split.place().identity.session == split.session);
    // One that shares its parent's resources has no net init.
    const Told shares(102, "shared", 0, 4, false);
    CHECK(shares.place().identity.session == 0);
    gone = &split.place();
    CHECK(state(*gone) == CommunicatorState::living);
  }
  CHECK(state(*gone) == CommunicatorState::ended);
  CHECK(std::string(gone->identity.name.data()) == "tp");
  // Told twice, or of what never began.
  CHECK(ncclProfiler_v5.finalize(const_cast<Communicator*>(gone)) == abi::ncclSuccess);
  CHECK(ncclProfiler_v5.finalize(nullptr) == abi::ncclSuccess);
  int other = 0;
  CHECK(ncclProfiler_v5.finalize(&other) == abi::ncclSuccess);
}

TEST_CASE("ranks of one communicator in one process have a session each") {
  page();
  std::vector<std::optional<Told>> ranks(4);
  // One after another, since the fake notes one session; each on its own thread as in NCCL.
  for (int r = 0; r < 4; ++r)
    std::thread([&, r] { ranks[static_cast<std::size_t>(r)].emplace(200u, "world", r, 4); }).join();
  for (std::size_t r = 0; r < 4; ++r) {
    CHECK(ranks[r]->place().identity.rank == r);
    CHECK(ranks[r]->place().identity.session == ranks[r]->session);
    for (std::size_t other = 0; other < r; ++other)
      CHECK(ranks[r]->session != ranks[other]->session);
  }
}

TEST_CASE("communicators that begin and end on many threads at once find their own sessions") {
  page();
  std::vector<std::thread> threads;
  std::atomic<int> wrong{0};
  for (unsigned t = 0; t < 4; ++t)
    threads.emplace_back([&, t] {
      for (int i = 0; i < 200; ++i) {
        void* context = nullptr;
        int mask = -1;
        if (ncclProfiler_v5.init(&context, 300 + t, &mask, "many", 1, 4, static_cast<int>(t),
                                 nullptr) != abi::ncclSuccess ||
            context == nullptr || mask != 0)
          ++wrong;
        else if (static_cast<const Communicator*>(context)->identity.rank != t)
          ++wrong;
        if (ncclProfiler_v5.finalize(context) != abi::ncclSuccess) ++wrong;
      }
    });
  for (std::thread& t : threads) t.join();
  CHECK(wrong == 0);
}

TEST_CASE("strange names and numbers do no harm") {
  page();
  CHECK(Told(400, nullptr).name().empty());
  CHECK(Told(401, "").name().empty());
  CHECK(Told(402, "a\nb\x1b[31m\xc3\xa4\"\\").name() == "a?b?[31m??\"\\");
  CHECK(Told(403, std::string(5000, 'x').c_str()).name() == std::string(79, 'x'));
  constexpr int kLeast = std::numeric_limits<int>::min();
  for (const auto& [rank, ranks] : {std::pair{-1, 8}, {8, 8}, {0, 0}, {kLeast, kLeast}, {0, -1}}) {
    const Told told(404, "odd", rank, ranks);
    CHECK(told.place().identity.rank == counters::kNoRank);
    CHECK(told.place().identity.ranks == 0);
    CHECK(told.name() == "odd");
  }
  void* context = nullptr;
  int mask = -1;
  CHECK(ncclProfiler_v5.init(nullptr, 1, &mask, "x", 1, 1, 0, nullptr) == abi::ncclSuccess);
  CHECK(mask == 0);
  CHECK(ncclProfiler_v5.init(&context, 1, nullptr, "x", -1, 1, 0, nullptr) == abi::ncclSuccess);
  REQUIRE(context != nullptr);
  CHECK(static_cast<const Communicator*>(context)->identity.nodes == 0);
  CHECK(ncclProfiler_v5.finalize(context) == abi::ncclSuccess);
}

TEST_CASE("who finds no place goes without a name, and the first to end gives his") {
  const counters::Process& p = page().process();
  const std::uint32_t before = p.unnamed.get();
  std::vector<std::optional<Told>> all(counters::kMaxCommunicators);
  for (std::uint32_t i = 0; i < all.size(); ++i) all[i].emplace(500 + i, "many", 0, 1, false);
  CHECK(p.unnamed.get() == before);
  CHECK(Told(1000, "late", 0, 1, false).context == nullptr);
  CHECK(p.unnamed.get() == before + 1);
  const void* const first = all[9]->context;
  const void* const second = all[5]->context;
  all[9].reset();
  all[5].reset();
  const Told late(1001, "late", 0, 1, false), later(1002, "later", 0, 1, false);
  CHECK(late.context == first);
  CHECK(later.context == second);
  CHECK(late.name() == "late");
}

TEST_CASE("events are taken and thrown away") {
  void* event = &event;
  CHECK(ncclProfiler_v4.startEvent(nullptr, &event, nullptr) == abi::ncclSuccess);
  CHECK(event == nullptr);
  CHECK(ncclProfiler_v6.startEvent(nullptr, nullptr, nullptr) == abi::ncclSuccess);
  CHECK(ncclProfiler_v6.recordEventState(nullptr, 99, nullptr) == abi::ncclSuccess);
  CHECK(ncclProfiler_v6.stopEvent(nullptr) == abi::ncclSuccess);
}

TEST_CASE("a line of the log says who a communicator is") {
  page();
  const LogCapture log;
  const Told named(0xabcd, "tp"), unnamed(0xabce, nullptr, 0, 1);
  CHECK(log.has(LogLevel::info, "communicator tp (0xabcd): rank 3 of 8, on 2 nodes"));
  CHECK(log.has(LogLevel::info, "communicator 0xabce: rank 0 of 1, on 2 nodes"));
  CHECK(log.warnings().empty());
}

TEST_CASE("a forked child's calls leave its parent's page alone") {
  page();
  const Told parent(600, "parent");
  const std::uint32_t used = page().process().communicators_used.load();
  detail::forked.store(true);
  const LogCapture log;
  {
    void* context = &context;
    int mask = -1;
    CHECK(ncclProfiler_v5.init(&context, 601, &mask, "child", 1, 1, 0, nullptr) ==
          abi::ncclSuccess);
    CHECK(context == nullptr);
    CHECK(mask == 0);
    CHECK(ncclProfiler_v5.finalize(parent.context) == abi::ncclSuccess);
  }
  CHECK(log.warnings().empty());
  detail::forked.store(false);
  CHECK(state(parent.place()) == CommunicatorState::living);
  CHECK(page().process().communicators_used.load() == used);
}

}  // namespace twinpath::test
