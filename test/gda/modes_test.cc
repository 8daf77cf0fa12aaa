// The mode of each peer of a GIN communicator: what the records and the user's wishes give, that
// both ends come to the same, and that data is right in every mixture.
#include <sys/resource.h>

#include <atomic>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <thread>

#include "gda/memory/shared_tables.h"
#include "gda/team/modes.h"
#include "test/gda/gin_ranks.h"
#include "test/support/catch.h"
#include "test/support/log_capture.h"
#include "test/support/needs.h"
#include "topology/decide/policy.h"

using namespace twinpath;
using namespace twinpath::gda;
using namespace twinpath::test;

namespace {

// --- what a pair gets -------------------------------------------------------------------

PairEnds soft_ends(ModeChoice here = ModeChoice::automatic,
                   ModeChoice there = ModeChoice::automatic) {
  EndFacts facts;
  facts.soft_queues = facts.without_place = facts.gdr_expected = true;
  facts.compute_capability = 90;
  EndSettings settings;
  settings.wish = here;
  PairEnds ends;
  ends.here = make_record(facts, settings);
  settings.wish = there;
  ends.there = make_record(facts, settings);
  ends.here_names = {"alpha", "GPU0", "soft0"};
  ends.there_names = {"beta", "GPU1", "soft1"};
  return ends;
}

PairEnds swapped(const PairEnds& e) {
  return {e.there, e.here, e.there_names, e.here_names, e.no_adapter_there, e.no_adapter_here};
}

// --- traffic of all kinds between all ranks ---------------------------------------------

std::uint32_t key_of(const WindowMemory& window) {
  return device::at<DeviceWindow>(window.handle()).lkey_be;
}
std::uint32_t key_there(const WindowMemory& window, int rank) {
  const std::uint64_t keys = device::at<DeviceWindow>(window.handle()).rkeys_be;
  return (&device::at<std::uint32_t>(keys))[rank];
}

std::string traffic(Rank& r, GinComm& comm, int signals = 64) {
  ContextSettings settings = settings30();
  settings.signals = signals;
  auto context = comm.create_context(settings);
  EXPECT_GIN(context);
  constexpr std::size_t kMost = 300 << 10;
  const auto n = static_cast<std::size_t>(r.ranks);
  WindowMemory from(comm, kMost * n), to(comm, kMost * n), values(comm, 64 * n);
  EXPECT_GIN(from && to && values);
  GinKernel30 kernel((*context)->device_handle(), r.rank, kLimit);
  std::uint64_t round = 0;
  for (const std::size_t bytes : {std::size_t{0}, std::size_t{1}, std::size_t{8}, std::size_t{24},
                                  std::size_t{4096}, std::size_t{5001}, kMost}) {
    ++round;
    const auto seed = [&](int source, int target) {
      return static_cast<unsigned>(source * 16 + target) + static_cast<unsigned>(round * 5);
    };
    for (int p = 0; p < r.ranks; ++p) {
      const std::size_t at = static_cast<std::size_t>(p) * kMost;
      from.fill(seed(r.rank, p), at, bytes);
      PutExtras extras;
      extras.signal = r.rank;
      extras.add = round;
      extras.counter = p;
      TRY_GIN(kernel.put(p, to.handle(), static_cast<std::size_t>(r.rank) * kMost, from.handle(),
                         at, bytes, extras));
      TRY_GIN(kernel.put_value(p, values.handle(), static_cast<std::size_t>(r.rank) * 64,
                               round * 1000 + static_cast<std::uint64_t>(r.rank), 8,
                               {.signal = 20, .add = 1}));
    }
    for (int p = 0; p < r.ranks; ++p) {
      TRY_GIN(kernel.wait_signal(static_cast<std::uint64_t>(p), round * (round + 1) / 2));
      const std::int64_t bad =
          to.mismatch(seed(p, r.rank), static_cast<std::size_t>(p) * kMost, bytes);
      EXPECT_GIN(bad == -1, bad, p, static_cast<std::int64_t>(bytes));
      TRY_GIN(kernel.wait_counter(static_cast<std::uint64_t>(p), round));
    }
    TRY_GIN(kernel.wait_signal(20, round * static_cast<std::uint64_t>(r.ranks)));
    for (int p = 0; p < r.ranks; ++p) {
      std::uint64_t value = 0;
      std::memcpy(&value, values.data() + p * 64, sizeof value);
      EXPECT_GIN(value == round * 1000 + static_cast<std::uint64_t>(p), p,
                 static_cast<std::int64_t>(value));
    }
    r.meeting->barrier();
    for (int p = 0; p < r.ranks; ++p) {  // what that rank sent to itself
      const std::size_t at = static_cast<std::size_t>(p) * kMost;
      std::memset(to.data() + at, 0, kMost);
      TRY_GIN(kernel.get(p, from.handle(), at, to.handle(), at, bytes));
      TRY_GIN(kernel.flush(p));
      const std::int64_t bad = to.mismatch(seed(p, p), at, bytes);
      EXPECT_GIN(bad == -1, bad, p, static_cast<std::int64_t>(bytes));
    }
    r.meeting->barrier();
  }
  // Atomics in a window: within reach in one process, by the queue pair between processes.
  std::memset(values.data(), 0, 64 * n);
  r.meeting->barrier();
  for (int p = 0; p < r.ranks; ++p) {
    Producer<DeviceQp30> queue = kernel.queue_to(p);
    const auto& shape = device::at<DeviceContext88>((*context)->device_handle());
    for (int i = 0; i < 10; ++i) {
      std::uint64_t first = 0;
      TRY_GIN(queue.reserve(2, first));
      queue.write(first, make_write(first, queue.qpn(), static_cast<std::size_t>(r.rank) * kMost,
                                    key_there(to, p), 0, key_of(from), 100));
      queue.write(first + 1, make_fetch_add(first + 1, queue.qpn(), 0, key_there(values, p), 3,
                                            shape.sink_lkey_be));
      TRY_GIN(queue.submit(first, 2));
    }
  }
  const std::uint64_t sum = 30 * static_cast<std::uint64_t>(r.ranks);
  const std::int64_t end = now_ns() + kLimit;
  auto& word = *reinterpret_cast<std::uint64_t*>(values.data());
  while (std::atomic_ref<std::uint64_t>(word).load(std::memory_order_acquire) != sum &&
         now_ns() < end)
    std::this_thread::yield();
  EXPECT_GIN(std::atomic_ref<std::uint64_t>(word).load() == sum, static_cast<std::int64_t>(word));
  EXPECT_GIN(!(*context)->failed());
  r.meeting->barrier();
  return {};
}

// --- mixtures ---------------------------------------------------------------------------

struct Mixture {
  const char* what;
  int ranks;
  // Of each rank, its own settings; and per pair 'a' for gda, 'g' for gda-cpu, 'p' for proxy, row
  // by row.
  struct {
    ModeChoice mode;
    const char* peers;
  } rank[4];
  const char* pairs;
};
constexpr ModeChoice kAuto = ModeChoice::automatic, kProxy = ModeChoice::proxy,
                     kCpu = ModeChoice::gda_cpu, kGda = ModeChoice::gda, kStage = ModeChoice::stage;
constexpr Mixture kMixtures[] = {
    {"nothing is set", 3, {{kAuto, ""}, {kAuto, ""}, {kAuto, ""}}, "ggg ggg ggg"},
    {"proxy everywhere", 2, {{kProxy, ""}, {kProxy, ""}}, "pp pp"},
    {"gda-cpu everywhere", 2, {{kCpu, ""}, {kCpu, ""}}, "gg gg"},
    {"one end alone asks for proxy", 3, {{kAuto, ""}, {kProxy, ""}, {kAuto, ""}}, "gpg ppp gpg"},
    {"the ends ask for different modes", 2, {{kGda, ""}, {kProxy, ""}}, "gp pp"},
    {"single peers",
     4,
     {{kAuto, "1:proxy"}, {kAuto, ""}, {kAuto, "2-3:proxy"}, {kProxy, "0:gda-cpu"}},
     "gpgg pggp ggpp gppp"},
    {"stage", 2, {{kStage, ""}, {kAuto, ""}}, "pp pg"},
    {"gda", 2, {{kGda, ""}, {kGda, ""}}, "aa aa"},
};

std::string pairs_row(const LogCapture& log, int rank, int ranks) {
  std::string row;
  for (int p = 0; p < ranks; ++p) {
    const std::string start = p == rank ? std::string("GIN queue to itself: ")
                                        : "GIN queue to rank " + std::to_string(p) + " (";
    char got = '?';
    for (const LogLine& line : log.lines()) {
      if (line.level != LogLevel::info || line.text.find(start) == std::string::npos) continue;
      if (line.text.find(": gda-cpu over soft0") != std::string::npos) got = 'g';
      if (line.text.find(": gda over soft0") != std::string::npos) got = 'a';
      if (line.text.find(": proxy over soft0") != std::string::npos) got = 'p';
      // The reason stands behind it.
      if (line.text.find("; CPU soft0 with ") == std::string::npos &&
          line.text.find("soft0 with ") == std::string::npos)
        got = '!';
    }
    row += got;
  }
  return row;
}

template <int Index>
std::string mixture(Rank& r) {
  const Mixture& m = kMixtures[Index];
  EXPECT_GIN(set_modes(r, m.rank[r.rank].mode, m.rank[r.rank].peers));
  auto comm = r.connect();
  EXPECT_GIN(comm != nullptr);
  return traffic(r, *comm);
}
// In a process of its own the log is of this rank alone.
template <int Index>
std::string logged_mixture(Rank& r) {
  const LogCapture log;
  const std::string error = mixture<Index>(r);
  if (!error.empty()) {
    for (const std::string& line : log.warnings()) std::fprintf(stderr, "%s\n", line.c_str());
    return error;
  }
  const Mixture& m = kMixtures[Index];
  const std::string expected(m.pairs + r.rank * (m.ranks + 1), static_cast<std::size_t>(m.ranks));
  const std::string row = pairs_row(log, r.rank, m.ranks);
  if (row != expected) return "modes " + row + " instead of " + expected;
  int said = 0;
  for (const std::string& line : log.warnings())
    if (line.find("mode gda was asked for and cannot be had") != std::string::npos &&
        line.find("is used") != std::string::npos)
      ++said;
  const bool asks = m.rank[r.rank].mode == kGda && row.find('a') == std::string::npos;
  if (said != (asks ? 1 : 0)) return text("warnings about mode gda", said, asks);
  return {};
}

#define MIXTURE(n) const NamedScenario mixture_##n("mixture" #n, logged_mixture<n>);
MIXTURE(0)
MIXTURE(1)
MIXTURE(2)
MIXTURE(3)
MIXTURE(4)
MIXTURE(5)
MIXTURE(6)
MIXTURE(7)
constexpr Scenario kThreadMixtures[] = {mixture<0>, mixture<1>, mixture<2>, mixture<3>,
                                        mixture<4>, mixture<5>, mixture<6>, mixture<7>};
static_assert(std::size(kThreadMixtures) == std::size(kMixtures));

// Rank 1 cannot make shared memory for its signals: its pairs come to proxy at both ends.
std::string without_table(Rank& r) {
  const LogCapture log;
  EXPECT_GIN(set_modes(r, kAuto, ""));
  auto comm = r.connect();
  EXPECT_GIN(comm != nullptr);
  constexpr int kSignals = 200000;
  if (r.rank == 1) {  // larger than all that the soft HCA shares, smaller than the signals
    const rlimit limit{1 << 20, 1 << 20};
    EXPECT_GIN(::signal(SIGXFSZ, SIG_IGN) != SIG_ERR && ::setrlimit(RLIMIT_FSIZE, &limit) == 0);
  }
  if (std::string error = traffic(r, *comm, kSignals); !error.empty()) return error;
  const std::string row = pairs_row(log, r.rank, r.ranks);
  const std::string expected = r.rank == 1 ? "pgp" : "gpg";
  return row == expected ? "" : "modes " + row + " instead of " + expected;
}
const NamedScenario without_table_name("without_table", without_table);

// Rank 1 has no atomics, so all signals are counted: no word gets adds of CPUs and of adapters.
std::string one_without_atomics(Rank& r) {
  const LogCapture log;
  EXPECT_GIN(set_modes(r, kProxy, "", QueuePlace::host, r.rank != 1));
  auto comm = r.connect();
  EXPECT_GIN(comm != nullptr);
  if (std::string error = traffic(r, *comm); !error.empty()) return error;
  int without = 0;
  for (const LogLine& line : log.lines())
    without += line.text.find("signals without atomics") != std::string::npos ? 1 : 0;
  EXPECT_GIN(without == 3, without);
  return {};
}
const NamedScenario one_without_atomics_name("one_without_atomics", one_without_atomics);

// Without a GPU its memory is the host's.
std::string gpu_cqs(Rank& r) {
  EXPECT_GIN(set_modes(r, r.rank == 0 ? kAuto : kProxy, "", QueuePlace::gpu));
  auto comm = r.connect();
  EXPECT_GIN(comm != nullptr);
  return traffic(r, *comm);
}

}  // namespace

TEST_CASE("The mode of a pair is the lesser of what both ends want and can") {
  struct Row {
    ModeChoice here, there, mode;
  };
  for (const Row& row : {Row{kAuto, kAuto, kCpu}, Row{kAuto, kProxy, kProxy},
                         Row{kCpu, kAuto, kCpu}, Row{kGda, kGda, kCpu}, Row{kGda, kProxy, kProxy},
                         Row{kStage, kGda, kProxy}, Row{kCpu, kGda, kCpu}}) {
    CAPTURE(static_cast<int>(row.here), static_cast<int>(row.there));
    const PairEnds ends = soft_ends(row.here, row.there);
    CHECK(pair_up(ends, true, true).mode == row.mode);
    CHECK(pair_up(swapped(ends), true, true).mode == row.mode);
    // No adapter but the software one reads our queues.
    CHECK(pair_up(ends, false, true).mode == kProxy);
  }
}

TEST_CASE("An adapter's own queues are used where both ends ask and can, on any fabric") {
  for (const bool soft : {true, false}) {
    for (const ModeChoice here : {kAuto, kProxy, kCpu, kGda}) {
      for (const ModeChoice there : {kAuto, kProxy, kCpu, kGda}) {
        for (const bool ready : {true, false}) {
          CAPTURE(soft, static_cast<int>(here), static_cast<int>(there), ready);
          PairEnds ends = soft_ends(here, there);
          ends.no_adapter_here.clear();
          if (ready) ends.no_adapter_there.clear();
          const Pairing p = pair_up(ends, soft, true);
          const Pairing q = pair_up(swapped(ends), soft, true);
          const bool asked = asks_for_adapter(here, soft) && asks_for_adapter(there, soft);
          CHECK(p.adapter == (asked && ready));
          CHECK(p.adapter == q.adapter);
          CHECK(p.mode == q.mode);
          if (p.adapter) CHECK(p.mode == std::min(here, there));
          if (p.adapter) CHECK(p.warning.empty());
        }
      }
    }
  }
  // gda-cpu is the software adapter's own way; elsewhere it is the adapter's with a CPU that rings.
  CHECK_FALSE(asks_for_adapter(kCpu, true));
  CHECK(asks_for_adapter(kCpu, false));
}

TEST_CASE("The reason of a mode names both ends and what a better one lacks") {
  Pairing p = pair_up(soft_ends(), true, true);
  CHECK(p.warning.empty());
  CHECK(p.why.find("GPU0 soft0 with beta GPU1 soft1") != std::string::npos);
  CHECK(p.why.find("GDA-P (I5 ") != std::string::npos);
  CHECK(p.why.find("lacks UAR_SOFT at alpha: soft0 is software") != std::string::npos);
  p = pair_up(soft_ends(kProxy), true, true);
  CHECK(p.warning.empty());
  CHECK(p.why.find("MODE_SET at alpha") != std::string::npos);
  PairEnds ends = soft_ends(kGda, kGda);
  ends.no_adapter_here.clear();
  ends.no_adapter_there = "soft1 is no mlx5 adapter";
  p = pair_up(ends, true, true);
  CHECK(p.warning.find("mode gda was asked for and cannot be had") == 0);
  CHECK(p.warning.find("(at beta: soft1 is no mlx5 adapter)") != std::string::npos);
  CHECK(p.warning.find("; gda-cpu is used") != std::string::npos);
  p = pair_up(ends, false, true);
  CHECK(p.warning.find("; proxy is used") != std::string::npos);
  p = pair_up(soft_ends(kStage), true, true);
  CHECK(p.warning.find("mode stage was asked for") == 0);
  CHECK(p.warning.find("proxy is used") != std::string::npos);
  CHECK(pair_up(soft_ends(kStage), true, false).warning.empty());  // no GPU memory at all
  p = pair_up(soft_ends(kCpu), false, true);
  CHECK(p.warning.find("mode gda-cpu was asked for and cannot be had") == 0);
  CHECK(p.warning.find("; proxy is used") != std::string::npos);
}

TEST_CASE("A signal table is mapped by who is offered it, and nothing else is") {
  auto tables = SharedTables::make(-1, 5000);
  REQUIRE(tables);
  CHECK((*tables)->bytes() == 5000);
  const std::uint64_t value = 42;
  CHECK((*tables)->copy_in(4992, &value, 8) == Status::ok);
  CHECK((*tables)->copy_in(4993, &value, 8) != Status::ok);
  Writer w;
  encode_offer((*tables)->offer(), w);
  Reader in(w.bytes());
  TableOffer offer = decode_offer(in);
  CHECK(in.ok());
  CHECK(offer.same_process());
  std::string why;
  auto mapped = MappedTable::open(offer, why);
  REQUIRE(mapped != nullptr);
  REQUIRE(mapped->bytes() == 5000);
  CHECK(mapped->data() != (*tables)->host());
  CHECK(std::memcmp(mapped->data() + 4992, &value, 8) == 0);
  mapped->data()[0] = 7;
  CHECK((*tables)->host()[0] == 7);
  TableOffer wrong = offer;
  ++wrong.inode;
  CHECK(MappedTable::open(wrong, why) == nullptr);
  CHECK(why.find("another one") != std::string::npos);
  wrong = offer;
  wrong.fd = -1;
  CHECK(MappedTable::open(wrong, why) == nullptr);
  wrong = offer;
  wrong.bytes = 1 << 20;
  CHECK(MappedTable::open(wrong, why) == nullptr);
  wrong = offer;
  ++wrong.process;
  CHECK_FALSE(wrong.same_process());
  // It stays when its maker is gone.
  (*tables).reset();
  CHECK(mapped->data()[0] == 7);
}

TEST_CASE("Traffic is right in every mixture of modes") {
  NEEDS(!on_adapters(), "modes other than proxy are the soft HCA's");
  for (std::size_t i = 0; i < std::size(kMixtures); ++i) {
    CAPTURE(kMixtures[i].what);
    CHECK(run_threads(kMixtures[i].ranks, kThreadMixtures[i]) == "");
  }
}

TEST_CASE("Both ends of each pair log the same mode") {
  NEEDS(!on_adapters(), "modes other than proxy are the soft HCA's");
  NEEDS(kSeesBarriers, "the thread sanitizer does not see barriers of other processes");
  for (std::size_t i = 0; i < std::size(kMixtures); ++i) {
    CAPTURE(kMixtures[i].what);
    CHECK(run_processes(kMixtures[i].ranks, "mixture" + std::to_string(i)) == "");
  }
}

TEST_CASE("A rank whose signals cannot be mapped is spoken to by proxy, both ways") {
  NEEDS(!on_adapters(), "modes other than proxy are the soft HCA's");
  NEEDS(kSeesBarriers, "the thread sanitizer does not see barriers of other processes");
  CHECK(run_processes(3, "without_table") == "");
}

TEST_CASE("Where one rank has no atomics all signals are counted, but for global atomics") {
  using enum Atomics;
  using Row = std::vector<bool>;
  CHECK(counted_peers(std::vector{own, global, own}, 1) == Row{false, false, false});
  const std::vector all{own, none, global, global, own};
  CHECK(counted_peers(all, 0) == Row{true, true, true, true, true});
  CHECK(counted_peers(all, 1) == Row{true, true, true, true, true});
  CHECK(counted_peers(all, 2) == Row{true, true, false, false, true});
  CHECK(counted_peers(all, 3) == Row{true, true, false, false, true});
  for (int x = 0; x < 5; ++x)
    for (int y = 0; y < 5; ++y)
      CHECK(counted_peers(all, x)[static_cast<std::size_t>(y)] ==
            counted_peers(all, y)[static_cast<std::size_t>(x)]);
}

TEST_CASE("A rank without atomics is signalled by sums, and so is everybody") {
  NEEDS(kSeesBarriers, "the thread sanitizer does not see barriers of other processes");
  CHECK(run_processes(3, "one_without_atomics") == "");
}

TEST_CASE("CQs asked for in GPU memory lie in the host's where a CPU plays the GPU") {
  NEEDS(!on_adapters(), "modes other than proxy are the soft HCA's");
  CHECK(run_threads(3, gpu_cqs) == "");
}
