// Mode gda-cpu between host memories: what one queue copies holds up no other for long.
#include <atomic>
#include <cstdint>
#include <cstring>
#include <string>

#include "test/gda/gin_ranks.h"
#include "test/support/catch.h"

using namespace twinpath;
using namespace twinpath::gda;
using namespace twinpath::test;

namespace {

constexpr std::size_t kLarge = 64 << 20;

// To itself: the queue that is looked at first.  At the end of a small put, rung for later, is the
// large one still under way?
std::string small_beside_large(Rank& r) {
  EXPECT_GIN(set_modes(r, ModeChoice::gda_cpu, ""));
  Member member = join(r);
  EXPECT_GIN(member.context);
  WindowMemory from(*member.comm, kLarge), to(*member.comm, kLarge);
  EXPECT_GIN(from && to);
  int ahead = 0;
  if (r.rank == 0) {
    auto kernel = member.kernel();
    from.fill(1, 0, kLarge);
    // What the soft HCA stores last of a write (ordered_write.h).
    constexpr std::size_t kLast = kLarge - sizeof(std::uint32_t);
    const std::atomic_ref<std::uint32_t> last(*reinterpret_cast<std::uint32_t*>(to.data() + kLast));
    for (std::uint32_t round = 1; round <= 6; ++round) {
      std::memcpy(from.data() + kLast, &round, sizeof round);
      TRY_GIN(kernel.put(0, to.handle(), 0, from.handle(), 0, kLarge, {}));
      TRY_GIN(kernel.put(1, to.handle(), 0, from.handle(), 0, 64, {}));
      TRY_GIN(kernel.flush(1));
      ahead += last.load(std::memory_order_acquire) != round ? 1 : 0;
      TRY_GIN(kernel.flush(0));
      EXPECT_GIN(last.load(std::memory_order_acquire) == round, round);
    }
    EXPECT_GIN(to.mismatch(1, 0, kLast) == -1);
  }
  r.meeting->barrier();
  EXPECT_GIN(!member.context->failed());
  // One round in which nothing took our core away is enough: without slices there is none.
  return r.rank == 0 && ahead == 0 ? "a small put never ended before a large one of another queue"
                                   : "";
}

// Whole, in order with its signal, in both directions at once; and destroyed on the way.
std::string large_between(Rank& r) {
  EXPECT_GIN(set_modes(r, ModeChoice::gda_cpu, ""));
  auto comm = r.connect();
  EXPECT_GIN(comm != nullptr);
  constexpr std::size_t kBytes = (7 << 20) + 12345;
  WindowMemory from(*comm, kBytes), to(*comm, kBytes);
  EXPECT_GIN(from && to);
  const int peer = 1 - r.rank;
  for (const bool whole : {true, false}) {
    auto context = comm->create_context(settings28());
    EXPECT_GIN(context);
    GinKernel28 kernel((*context)->device_handle(), r.rank, kLimit);
    from.fill(static_cast<unsigned>(r.rank), 0, kBytes);
    PutExtras extras;
    extras.signal = 0;
    for (int i = 0; i < 3; ++i)
      TRY_GIN(kernel.put(peer, to.handle(), 0, from.handle(), 0, kBytes, extras));
    if (whole) {
      TRY_GIN(kernel.wait_signal(0, 3));
      EXPECT_GIN(to.mismatch(static_cast<unsigned>(peer), 0, kBytes) == -1);
      TRY_GIN(kernel.flush(peer));
      EXPECT_GIN(!(*context)->failed());
    }
    r.meeting->barrier();
  }
  return {};
}
const NamedScenario large_between_name("large_between", large_between);

}  // namespace

TEST_CASE("A large put of one queue does not hold up a small one of another") {
  CHECK(run_threads(2, small_beside_large) == "");
}

TEST_CASE("Large puts in slices arrive whole before their signals, or are given up") {
  SECTION("between threads") { CHECK(run_threads(2, large_between) == ""); }
  SECTION("between processes") { CHECK(run_processes(2, "large_between") == ""); }
}
