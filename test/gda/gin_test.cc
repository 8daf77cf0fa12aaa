// GIN from end to end without a GPU: CPU threads do what NCCL's kernels do (gda/abi/gin_kernel.h)
// on the device structures of real contexts, between ranks that are threads or processes.
#include <cstring>
#include <set>
#include <thread>

#include "test/gda/gin_ranks.h"
#include "test/support/catch.h"
#include "test/support/needs.h"

using namespace twinpath;
using namespace twinpath::gda;
using namespace twinpath::test;

namespace {

// Every rank puts to every rank, itself included, in all sizes; the signal says that the data is
// there, the counter that the source may be changed.
std::string all_to_all(Rank& r) {
  Member member = join(r);
  EXPECT_GIN(member.context);
  const std::size_t most = on_adapters() ? std::size_t{1} << 20 : std::size_t{8} << 20;
  const auto n = static_cast<std::size_t>(r.ranks);
  WindowMemory from(*member.comm, most * n), to(*member.comm, most * n);
  EXPECT_GIN(from && to);
  auto kernel = member.kernel();
  std::uint64_t round = 0;
  for (const std::size_t bytes :
       {std::size_t{0}, std::size_t{1}, std::size_t{7}, std::size_t{8}, std::size_t{4096},
        std::size_t{65536 + 4}, std::size_t{1 << 20}, most}) {
    ++round;
    for (int p = 0; p < r.ranks; ++p) {
      const auto peer = static_cast<std::size_t>(p);
      from.fill(static_cast<unsigned>(r.rank * 16 + p) + static_cast<unsigned>(round * 5),
                peer * most, bytes);
      PutExtras extras;
      extras.signal = r.rank;
      extras.counter = p;
      TRY_GIN(kernel.put(p, to.handle(), static_cast<std::size_t>(r.rank) * most, from.handle(),
                         peer * most, bytes, extras));
    }
    for (int p = 0; p < r.ranks; ++p) {
      TRY_GIN(kernel.wait_signal(static_cast<std::uint64_t>(p), round));
      const std::int64_t bad =
          to.mismatch(static_cast<unsigned>(p * 16 + r.rank) + static_cast<unsigned>(round * 5),
                      static_cast<std::size_t>(p) * most, bytes);
      EXPECT_GIN(bad == -1, bad, p, static_cast<std::int64_t>(bytes));
      TRY_GIN(kernel.wait_counter(static_cast<std::uint64_t>(p), round));
    }
    for (int p = 0; p < r.ranks; ++p) TRY_GIN(kernel.flush(p));
    r.meeting->barrier();
  }
  EXPECT_GIN(!member.context->failed());
  return {};
}
const NamedScenario all_to_all_name("all_to_all", all_to_all);

// The signal never comes before the data: each round's data differs, many rounds, and the next
// round starts as soon as the signal is seen.
std::string signal_after_data(Rank& r) {
  Member member = join(r);
  EXPECT_GIN(member.context);
  constexpr std::size_t most = 128 << 10;
  WindowMemory from(*member.comm, most), to(*member.comm, most);
  EXPECT_GIN(from && to);
  auto kernel = member.kernel();
  const int next = (r.rank + 1) % r.ranks, previous = (r.rank + r.ranks - 1) % r.ranks;
  std::uint64_t expected = 0;
  for (unsigned round = 1; round <= scaled(1500u); ++round) {
    const std::size_t bytes = round % 10 == 0 ? most - round : 1 + round % 300;
    TRY_GIN(kernel.flush(next));  // the source may be reused
    from.fill(round + static_cast<unsigned>(r.rank), 0, bytes);
    PutExtras extras;
    extras.signal = 1;
    extras.add = round;
    TRY_GIN(kernel.put(next, to.handle(), 0, from.handle(), 0, bytes, extras));
    expected += round;
    TRY_GIN(kernel.wait_signal(1, expected));
    const std::int64_t bad = to.mismatch(round + static_cast<unsigned>(previous), 0, bytes);
    EXPECT_GIN(bad == -1, bad, round, static_cast<std::int64_t>(bytes));
    // "I have read it": the other way round.
    TRY_GIN(kernel.signal(previous, 2));
    TRY_GIN(kernel.wait_signal(2, round));
  }
  EXPECT_GIN(kernel.read_signal(1) == expected);
  r.meeting->barrier();  // the end of a context may overtake the last signal to the peer
  return {};
}
const NamedScenario signal_after_data_name("signal_after_data", signal_after_data);

std::string values_and_gets(Rank& r) {
  Member member = join(r, settings30());
  EXPECT_GIN(member.context);
  constexpr std::size_t kBytes = 3 << 20;
  WindowMemory mine(*member.comm, kBytes), theirs(*member.comm, kBytes);
  EXPECT_GIN(mine && theirs);
  auto kernel = member.kernel<GinKernel30>();
  mine.fill(static_cast<unsigned>(r.rank), 0, kBytes);
  std::memset(theirs.data(), 0, kBytes);
  r.meeting->barrier();
  for (int p = 0; p < r.ranks; ++p) {
    for (const std::size_t bytes : {std::size_t{1}, std::size_t{4097}, kBytes}) {
      TRY_GIN(kernel.get(p, mine.handle(), 0, theirs.handle(), 0, bytes));
      TRY_GIN(kernel.flush(p));
      const std::int64_t bad = theirs.mismatch(static_cast<unsigned>(p), 0, bytes);
      EXPECT_GIN(bad == -1, bad, p, static_cast<std::int64_t>(bytes));
      std::memset(theirs.data(), 0, kBytes);
    }
  }
  r.meeting->barrier();
  const std::uint64_t value = 0x8877665544332211u;
  for (int p = 0; p < r.ranks; ++p) {
    for (std::uint32_t bytes = 1; bytes <= 8; ++bytes) {
      PutExtras extras;
      extras.signal = 3;
      TRY_GIN(kernel.put_value(p, theirs.handle(),
                               static_cast<std::uint64_t>(r.rank) * 128 + bytes * 16, value, bytes,
                               extras));
    }
  }
  TRY_GIN(kernel.wait_signal(3, static_cast<std::uint64_t>(r.ranks) * 8));
  for (int p = 0; p < r.ranks; ++p) {
    for (std::uint32_t bytes = 1; bytes <= 8; ++bytes) {
      std::uint64_t got[2];
      std::memcpy(got, theirs.data() + p * 128 + static_cast<std::ptrdiff_t>(bytes) * 16,
                  sizeof got);
      const std::uint64_t mask =
          bytes == 8 ? ~std::uint64_t{0} : (std::uint64_t{1} << (bytes * 8)) - 1;
      EXPECT_GIN(got[0] == (value & mask), p, bytes);
      EXPECT_GIN(got[1] == 0, p, bytes);
    }
  }
  EXPECT_GIN(!member.context->failed());
  r.meeting->barrier();
  return {};
}
const NamedScenario values_and_gets_name("values_and_gets", values_and_gets);

// 16 producers on one queue that holds 16 work requests: slots are reused all the time.  Each waits
// for its turn, which on few processors beside busy programs takes a time slice of these: with 64 a
// step took half a second.
std::string many_producers(Rank& r) {
  ContextSettings settings = settings28();
  settings.queue_depth = 16;
  Member member = join(r, settings);
  EXPECT_GIN(member.context);
  constexpr int kProducers = 16;
  const int puts = on_adapters() ? 4 : 30;
  constexpr std::size_t kBytes = 512;
  WindowMemory from(*member.comm, kProducers * kBytes), to(*member.comm, kProducers * kBytes);
  EXPECT_GIN(from && to);
  auto kernel = member.kernel();
  const int next = (r.rank + 1) % r.ranks, previous = (r.rank + r.ranks - 1) % r.ranks;
  from.fill(static_cast<unsigned>(r.rank), 0, kProducers * kBytes);
  std::atomic<int> error{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < kProducers; ++t) {
    threads.emplace_back([&, t] {
      const auto at = static_cast<std::uint64_t>(t) * kBytes;
      // Those behind a producer that gave up would wait for its slots for ever.
      for (int i = 0; i < puts && error.load() == 0; ++i) {
        PutExtras extras;
        extras.signal = t % 4;
        extras.counter = i % 2 == 0 ? t % 4 : -1;
        if (int e = kernel.put(next, to.handle(), at, from.handle(), at, kBytes, extras); e != 0)
          error.store(e);
      }
    });
  }
  for (auto& t : threads) t.join();
  EXPECT_GIN(error.load() == 0, error.load());
  for (std::uint64_t s = 0; s < 4; ++s) {
    TRY_GIN(kernel.wait_signal(s, static_cast<std::uint64_t>(kProducers / 4 * puts)));
    TRY_GIN(kernel.wait_counter(s, static_cast<std::uint64_t>(kProducers / 4 * puts / 2)));
  }
  TRY_GIN(kernel.flush(next));
  EXPECT_GIN(to.mismatch(static_cast<unsigned>(previous), 0, kProducers * kBytes) == -1);
  r.meeting->barrier();
  for (std::uint64_t s = 0; s < 4; ++s)
    EXPECT_GIN(kernel.read_signal(s) == static_cast<std::uint64_t>(kProducers / 4 * puts));
  return {};
}
const NamedScenario many_producers_name("many_producers", many_producers);

// Any number of work requests may be asked for, and at least so many can be posted in a row.
std::string odd_depths(Rank& r) {
  auto comm = r.connect();
  EXPECT_GIN(comm != nullptr);
  struct Row {
    int asked;
    std::uint16_t holds;
  };
  // 193 is what NCCL EP's high-throughput mode asks for, beside as many queue sets as it has warps.
  for (const Row row : {Row{1, 16}, Row{17, 32}, Row{193, 256}, Row{256, 256}, Row{-1, 256}}) {
    ContextSettings settings = settings30(row.asked == 193 ? 48 : 1);
    settings.queue_depth = row.asked;
    auto context = comm->create_context(settings);
    EXPECT_GIN(context, row.asked);
    const auto& device = device::at<DeviceContext88>((*context)->device_handle());
    const auto& queue = device::at<DeviceQp30>(device.queues);
    EXPECT_GIN(device.reads_sink == 1);
    EXPECT_GIN(queue.depth == row.holds && queue.mask == row.holds - 1, row.asked, queue.depth);
    EXPECT_GIN(queue.cq.depth == row.holds, row.asked, queue.cq.depth);
    GinKernel30 kernel((*context)->device_handle(), r.rank, kLimit);
    const int next = (r.rank + 1) % r.ranks;
    for (int i = 0; i < 2 * row.holds; ++i) TRY_GIN(kernel.signal(next, 0));
    TRY_GIN(kernel.wait_signal(0, std::uint64_t{2} * row.holds));
    TRY_GIN(kernel.flush(next));
    r.meeting->barrier();
  }
  return {};
}
const NamedScenario odd_depths_name("odd_depths", odd_depths);

// Two communicators, one with two queue sets: signals and queues do not mix.
std::string several_contexts(Rank& r) {
  auto comm = r.connect(), other = r.connect();
  EXPECT_GIN(comm != nullptr && other != nullptr);
  auto context = comm->create_context(settings30(2));
  auto second = comm->create_context(settings28());
  auto third = other->create_context(settings28(8, 0));
  EXPECT_GIN(context && second && third);
  WindowMemory from(*comm, 4096), to(*comm, 4 * 4096);
  WindowMemory other_from(*other, 4096), other_to(*other, 4096);
  EXPECT_GIN(from && to && other_from && other_to);
  const int next = (r.rank + 1) % r.ranks, previous = (r.rank + r.ranks - 1) % r.ranks;
  from.fill(static_cast<unsigned>(r.rank), 0, 4096);
  other_from.fill(static_cast<unsigned>(r.rank) + 100, 0, 4096);
  PutExtras extras;
  extras.signal = 5;
  for (std::uint64_t i = 1; i <= 20; ++i) {
    GinKernel30 a((*context)->device_handle(), r.rank, kLimit);
    GinKernel30 b((*context)->device_handle() + sizeof(DeviceContext88), r.rank, kLimit);
    GinKernel28 c((*second)->device_handle(), r.rank, kLimit);
    GinKernel28 d((*third)->device_handle(), r.rank, kLimit);
    extras.add = 1;
    extras.counter = 2;
    TRY_GIN(a.put(next, to.handle(), 0, from.handle(), 0, 4096, extras));
    extras.add = 10;
    extras.counter = 3;
    TRY_GIN(b.put(next, to.handle(), 4096, from.handle(), 0, 4096, extras));
    extras.add = 100;
    TRY_GIN(c.put(next, to.handle(), 8192, from.handle(), 0, 4096, extras));
    extras.add = 1000;
    extras.counter = -1;
    TRY_GIN(d.put(next, other_to.handle(), 0, other_from.handle(), 0, 4096, extras));
    TRY_GIN(a.wait_signal(5, i));
    TRY_GIN(b.wait_signal(5, i * 10));
    TRY_GIN(c.wait_signal(5, i * 100));
    TRY_GIN(d.wait_signal(5, i * 1000));
    TRY_GIN(a.wait_counter(2, i));
    TRY_GIN(b.wait_counter(3, i));
    EXPECT_GIN(a.read_signal(5) == i && b.read_counter(2) == 0 && a.read_counter(3) == 0);
    for (const std::size_t at : {0u, 4096u, 8192u})
      EXPECT_GIN(to.mismatch(static_cast<unsigned>(previous), at, 4096) == -1);
    EXPECT_GIN(other_to.mismatch(static_cast<unsigned>(previous) + 100, 0, 4096) == -1);
    r.meeting->barrier();
  }
  return {};
}
const NamedScenario several_contexts_name("several_contexts", several_contexts);

// Windows come and go while other traffic goes on.
std::string windows_again(Rank& r) {
  Member member = join(r);
  EXPECT_GIN(member.context);
  auto kernel = member.kernel();
  const int next = (r.rank + 1) % r.ranks, previous = (r.rank + r.ranks - 1) % r.ranks;
  std::set<std::uint64_t> handles;
  for (unsigned i = 1; i <= 20; ++i) {
    WindowMemory from(*member.comm, 10000 + i), to(*member.comm, 20000 + i);
    EXPECT_GIN(from && to);
    // Closing a window frees nothing, as that could wait for kernels; the next has its handle.
    handles.insert({from.handle(), to.handle()});
    EXPECT_GIN(handles.size() == 2, i);
    from.fill(i + static_cast<unsigned>(r.rank), 0, 10000);
    PutExtras extras;
    extras.signal = 0;
    TRY_GIN(kernel.put(next, to.handle(), 3, from.handle(), 0, 10000, extras));
    TRY_GIN(kernel.wait_signal(0, i));
    EXPECT_GIN(to.mismatch(i + static_cast<unsigned>(previous), 3, 10000) == -1, i);
    TRY_GIN(kernel.flush(next));
    r.meeting->barrier();
  }
  EXPECT_GIN(!member.context->failed());
  return {};
}
const NamedScenario windows_again_name("windows_again", windows_again);

// Ranks of one rail only: those that are alike modulo the stride.
std::string rail_only(Rank& r) {
  ContextSettings settings = settings30();
  settings.rank_stride = 2;
  Member member = join(r, settings);
  EXPECT_GIN(member.context);
  constexpr std::size_t kBytes = 20000;
  const auto n = static_cast<std::size_t>(r.ranks);
  WindowMemory from(*member.comm, kBytes * n), to(*member.comm, kBytes * n);
  EXPECT_GIN(from && to);
  auto kernel = member.kernel<GinKernel30>();
  const auto seed = [](int source, int target, unsigned round) {
    return static_cast<unsigned>(source * 16 + target) + round * 5;
  };
  for (unsigned round = 1; round <= 5; ++round) {
    for (int p = r.rank % 2; p < r.ranks; p += 2) {
      const std::size_t at = static_cast<std::size_t>(p) * kBytes;
      from.fill(seed(r.rank, p, round), at, kBytes);
      TRY_GIN(kernel.put(p, to.handle(), static_cast<std::size_t>(r.rank) * kBytes, from.handle(),
                         at, kBytes, {.signal = r.rank, .add = 1}));
    }
    for (int p = r.rank % 2; p < r.ranks; p += 2) {
      TRY_GIN(kernel.wait_signal(static_cast<std::uint64_t>(p), round));
      const std::size_t at = static_cast<std::size_t>(p) * kBytes;
      EXPECT_GIN(to.mismatch(seed(p, r.rank, round), at, kBytes) == -1, p, round);
      TRY_GIN(kernel.flush(p));
    }
    r.meeting->barrier();
  }
  EXPECT_GIN(!member.context->failed());
  return {};
}

}  // namespace

TEST_CASE("Ranks connect along their rail only where that is asked for") {
  CHECK(run_threads(5, rail_only) == "");
}

TEST_CASE("Puts of all sizes arrive at all ranks with their signals and counters") {
  SECTION("between threads") { CHECK(run_threads(3, all_to_all) == ""); }
  SECTION("between processes") {
    NEEDS(kSeesBarriers, "the thread sanitizer does not see barriers of other processes");
    CHECK(run_processes(3, "all_to_all") == "");
  }
  SECTION("a team of one") { CHECK(run_threads(1, all_to_all) == ""); }
}

TEST_CASE("A signal is never seen before the data it follows") {
  SECTION("between threads") { CHECK(run_threads(2, signal_after_data) == ""); }
  SECTION("between processes") { CHECK(run_processes(2, "signal_after_data") == ""); }
}

TEST_CASE("Values travel inside work requests and gets bring data") {
  SECTION("between threads") { CHECK(run_threads(2, values_and_gets) == ""); }
  SECTION("between processes") {
    NEEDS(kSeesBarriers, "the thread sanitizer does not see barriers of other processes");
    CHECK(run_processes(3, "values_and_gets") == "");
  }
}

TEST_CASE("16 producers share a queue of 16 work requests") {
  SECTION("between threads") { CHECK(run_threads(2, many_producers) == ""); }
  SECTION("between processes") { CHECK(run_processes(2, "many_producers") == ""); }
}

TEST_CASE("A queue depth that is no power of two is rounded up") {
  SECTION("between threads") { CHECK(run_threads(2, odd_depths) == ""); }
  SECTION("between processes") { CHECK(run_processes(2, "odd_depths") == ""); }
}

TEST_CASE("Contexts and communicators do not mix") {
  SECTION("between threads") { CHECK(run_threads(2, several_contexts) == ""); }
  SECTION("between processes") {
    NEEDS(kSeesBarriers, "the thread sanitizer does not see barriers of other processes");
    CHECK(run_processes(4, "several_contexts") == "");
  }
}

TEST_CASE("Windows are registered again and again") {
  SECTION("between threads") { CHECK(run_threads(2, windows_again) == ""); }
  SECTION("between processes") { CHECK(run_processes(3, "windows_again") == ""); }
}
