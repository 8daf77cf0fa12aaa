// Host RMA as a team of threads or processes uses it: what arrives, in which order, and that
// nothing is refused for want of room.  gda/rma/README.md has the rules.
#include <algorithm>
#include <random>
#include <thread>

#include "test/gda/rma_ranks.h"
#include "test/support/catch.h"
#include "test/support/log_capture.h"
#include "test/support/needs.h"

using namespace twinpath;
using namespace twinpath::gda;
using namespace twinpath::test;

namespace {

constexpr std::size_t kSignals = 64 * 8;

// Everybody puts to everybody, itself included, a piece of each size with a signal behind it: who
// sees the signal looks at the bytes at once.
std::string all_sizes(Rank& r) {
  RmaMember member = rma_join(r);
  EXPECT_GIN(member.context);
  RmaContext& context = *member.context;
  constexpr std::size_t kPiece = (1 << 20) + 3;
  const auto ranks = static_cast<std::size_t>(r.ranks);
  const auto me = static_cast<std::size_t>(r.rank);
  RmaMemory from(*member.comm, kPiece * ranks), to(*member.comm, kPiece * ranks),
      signals(*member.comm, kSignals);
  EXPECT_GIN(from && to && signals);
  int round = 0;
  for (const std::size_t bytes : {0, 1, 7, 8, 63, 4096, 65537, 1 << 20, (1 << 20) + 3}) {
    ++round;
    std::vector<RmaRequest*> requests;
    for (std::size_t p = 0; p < ranks; ++p) {
      rma_bytes(r.rank, static_cast<int>(p), round).fill(from.data() + p * kPiece, bytes);
      const RmaSignal signal{signals.at(me * 8), 1};
      RmaTransfer transfer{from.at(p * kPiece), to.at(me * kPiece), bytes};
      if (bytes == 0) transfer = {};
      auto put = context.put(0, static_cast<int>(p), transfer, &signal);
      EXPECT_GIN(put && *put != nullptr, round);
      requests.push_back(*put);
    }
    for (std::size_t p = 0; p < ranks; ++p) {
      EXPECT_GIN(rma_await(context, signals, p * 8, static_cast<std::uint64_t>(round)), round);
      const std::size_t right =
          rma_bytes(static_cast<int>(p), r.rank, round).differs_at(to.data() + p * kPiece, bytes);
      EXPECT_GIN(right == bytes, round, static_cast<std::int64_t>(p),
                 static_cast<std::int64_t>(right));
    }
    for (RmaRequest* request : requests) EXPECT_RMA_OK(rma_wait(request));
    r.meeting->barrier();
  }
  // Nobody adds twice.
  for (std::size_t p = 0; p < ranks; ++p)
    EXPECT_GIN(signals.word(p * 8) == static_cast<std::uint64_t>(round));
  EXPECT_GIN(!context.failed());
  r.meeting->barrier();
  return {};
}
const NamedScenario all_sizes_by_name("rma_sizes", all_sizes);

// A signal comes behind all that was put before it, not only behind its own bytes; and sums are
// exact.
std::string strong_signals(Rank& r) {
  RmaMember member = rma_join(r);
  EXPECT_GIN(member.context);
  RmaContext& context = *member.context;
  constexpr std::size_t kPiece = 3000;
  constexpr int kPieces = 40;
  RmaMemory from(*member.comm, kPiece * kPieces), to(*member.comm, kPiece * kPieces),
      signals(*member.comm, kSignals);
  EXPECT_GIN(from && to && signals);
  const int next = (r.rank + 1) % r.ranks, before = (r.rank + r.ranks - 1) % r.ranks;
  std::uint64_t sum = 0;
  for (int round = 1; round <= 10; ++round) {
    rma_bytes(r.rank, next, round).fill(from.data(), kPiece * kPieces);
    std::vector<RmaRequest*> requests;
    for (std::size_t piece = 0; piece < kPieces; ++piece) {
      auto put =
          context.put(0, next, {from.at(piece * kPiece), to.at(piece * kPiece), kPiece}, nullptr);
      EXPECT_GIN(put);
      requests.push_back(*put);
    }
    const std::uint64_t add = round % 2 != 0 ? 1 : 0x100000001;
    const RmaSignal signal{signals.at(16), add};
    auto told = context.put(0, next, {}, &signal);
    EXPECT_GIN(told);
    requests.push_back(*told);
    sum += add;
    EXPECT_GIN(rma_await(context, signals, 16, sum), round);
    const std::size_t right =
        rma_bytes(before, r.rank, round).differs_at(to.data(), kPiece * kPieces);
    EXPECT_GIN(right == kPiece * kPieces, round, static_cast<std::int64_t>(right));
    // In any order of asking.
    std::shuffle(requests.begin(), requests.end(), std::minstd_rand(7));
    for (RmaRequest* request : requests) EXPECT_RMA_OK(rma_wait(request));
    r.meeting->barrier();
  }
  EXPECT_GIN(signals.word(16) == sum && signals.word(8) == 0 && signals.word(24) == 0);
  r.meeting->barrier();
  return {};
}
const NamedScenario strong_signals_by_name("rma_strong", strong_signals);

// Where a comm says so, a signal of any rank shows what any other has put before (two hosts of two
// ranks, as in ordering_test.cc).
std::string any_signal_of_four(Rank& r) {
  RmaMember member = rma_join(r);
  EXPECT_GIN(member.context);
  EXPECT_GIN(member.comm->any_signal_shows_all());
  RmaContext& context = *member.context;
  constexpr std::size_t kPiece = 300'000;
  RmaMemory from(*member.comm, kPiece), to(*member.comm, kPiece), signals(*member.comm, kSignals);
  EXPECT_GIN(from && to && signals);
  const int peer = (r.rank + 2) % 4, across = peer ^ 1;
  for (int round = 1; round <= 6; ++round) {
    rma_bytes(r.rank, across, round).fill(from.data(), kPiece);
    auto put = context.put(0, across, {from.at(0), to.at(0), kPiece}, nullptr);
    EXPECT_GIN(put);
    EXPECT_RMA_OK(rma_wait(*put));
    r.meeting->barrier();
    const RmaSignal signal{signals.at(0), 1};
    auto told = context.put(0, peer, {}, &signal);
    EXPECT_GIN(told);
    EXPECT_GIN(rma_await(context, signals, 0, static_cast<std::uint64_t>(round)));
    const std::size_t right = rma_bytes(across, r.rank, round).differs_at(to.data(), kPiece);
    EXPECT_GIN(right == kPiece, round, static_cast<std::int64_t>(right));
    EXPECT_RMA_OK(rma_wait(*told));
    r.meeting->barrier();
  }
  return {};
}

std::string gets(Rank& r) {
  RmaMember member = rma_join(r);
  EXPECT_GIN(member.context);
  RmaContext& context = *member.context;
  constexpr std::size_t kBytes = 70001;
  RmaMemory from(*member.comm, kBytes), to(*member.comm, kBytes);
  EXPECT_GIN(from && to);
  for (std::size_t i = 0; i < kBytes; ++i) from.data()[i] = rma_byte(r.rank, 0, 1, i);
  r.meeting->barrier();
  for (int p = 0; p < r.ranks; ++p) {
    for (const std::size_t bytes :
         {std::size_t{0}, std::size_t{1}, std::size_t{4097}, kBytes - 5}) {
      std::fill_n(to.data(), kBytes, std::uint8_t{0});
      auto get = context.get(0, p, {to.at(2), from.at(3), bytes});
      EXPECT_GIN(get);
      auto flush = context.flush(0, p);
      EXPECT_GIN(flush);
      EXPECT_RMA_OK(rma_wait(*flush));
      // Before the get itself was asked about: the flush is behind it.
      for (std::size_t i = 0; i < bytes; ++i)
        EXPECT_GIN(to.data()[2 + i] == rma_byte(p, 0, 1, 3 + i), p, static_cast<std::int64_t>(i));
      EXPECT_GIN(to.data()[1] == 0 && to.data()[2 + bytes] == 0);
      EXPECT_RMA_OK(rma_wait(*get));
    }
  }
  r.meeting->barrier();
  return {};
}
const NamedScenario gets_by_name("rma_gets", gets);

// More than any queue holds, and nobody asks about a request until all are given out.
std::string ten_thousand(Rank& r) {
  RmaMember member = rma_join(r);
  EXPECT_GIN(member.context);
  RmaContext& context = *member.context;
  constexpr std::size_t kCount = 10000;
  RmaMemory from(*member.comm, kCount * 8), to(*member.comm, kCount * 8),
      signals(*member.comm, kSignals);
  EXPECT_GIN(from && to && signals);
  const int peer = (r.rank + 1) % r.ranks;
  for (std::size_t i = 0; i < kCount * 8; ++i) from.data()[i] = rma_byte(r.rank, peer, 1, i);
  std::vector<RmaRequest*> requests;
  for (std::size_t i = 0; i < kCount; ++i) {
    const RmaSignal signal{signals.at(0), 1};
    auto put =
        context.put(0, peer, {from.at(i * 8), to.at(i * 8), 8}, i % 4 == 0 ? &signal : nullptr);
    EXPECT_GIN(put && *put != nullptr, static_cast<std::int64_t>(i));
    requests.push_back(*put);
  }
  std::sort(requests.begin(), requests.end());
  EXPECT_GIN(std::adjacent_find(requests.begin(), requests.end()) == requests.end());
  for (std::size_t i = kCount; i-- > 0;) EXPECT_RMA_OK(rma_wait(requests[i]));
  EXPECT_GIN(rma_await(context, signals, 0, kCount / 4));
  // The last put had no signal of its own behind it.
  r.meeting->barrier();
  const int before = (r.rank + r.ranks - 1) % r.ranks;
  for (std::size_t i = 0; i < kCount * 8; ++i)
    EXPECT_GIN(to.data()[i] == rma_byte(before, r.rank, 1, i), static_cast<std::int64_t>(i));
  r.meeting->barrier();
  return {};
}

// Two teams of one rank, each driven by a thread, as NCCL's RMA and GIN threads do; and windows
// come and go meanwhile.
std::string two_comms(Rank& r) {
  RmaMember members[2] = {rma_join(r), rma_join(r, {.contexts = 2})};
  EXPECT_GIN(members[0].context && members[1].context);
  constexpr int kRounds = 400;
  constexpr std::size_t kPiece = 2048;
  struct Memories {
    std::unique_ptr<RmaMemory> from, to, signals;
  } memories[2];
  for (int m = 0; m < 2; ++m) {
    RmaComm& comm = *members[m].comm;
    memories[m] = {std::make_unique<RmaMemory>(comm, kPiece * 4),
                   std::make_unique<RmaMemory>(comm, kPiece * 4),
                   std::make_unique<RmaMemory>(comm, kSignals)};
    EXPECT_GIN(*memories[m].from && *memories[m].to && *memories[m].signals);
  }
  const int peer = (r.rank + 1) % r.ranks, before = (r.rank + r.ranks - 1) % r.ranks;
  const auto drive = [&](int m) -> std::string {
    RmaContext& context = *members[m].context;
    auto& [from, to, signals] = memories[m];
    for (int round = 1; round <= kRounds; ++round) {
      rma_bytes(r.rank, peer, round + m).fill(from->data(), kPiece);
      const RmaSignal signal{signals->at(0), 1};
      auto put =
          context.put(m == 0 ? 0 : round % 2, peer, {from->at(0), to->at(0), kPiece}, &signal);
      EXPECT_GIN(put);
      EXPECT_GIN(rma_await(context, *signals, 0, static_cast<std::uint64_t>(round)), m, round);
      const KnownBytes want = rma_bytes(before, r.rank, round + m);
      EXPECT_GIN(want.differs_at(to->data(), kPiece) == kPiece, m, round);
      EXPECT_RMA_OK(rma_wait(*put));
      // The next may be overwritten only now.
      const RmaSignal back{signals->at(8), 1};
      auto ready = context.put(0, before, {}, &back);
      EXPECT_GIN(ready);
      EXPECT_GIN(rma_await(context, *signals, 8, static_cast<std::uint64_t>(round)), m, round);
      EXPECT_RMA_OK(rma_wait(*ready));
    }
    return {};
  };
  std::string wrong[2];
  std::thread gin([&] { wrong[1] = drive(1); });
  std::thread rma([&] { wrong[0] = drive(0); });
  std::string churn;
  for (int i = 0; i < 20 && churn.empty(); ++i) {
    RmaMemory extra(*members[i % 2].comm, 4096);
    if (!extra) churn = "a window beside traffic cannot be registered";
  }
  gin.join();
  rma.join();
  r.meeting->barrier();
  return churn + wrong[0] + wrong[1];
}

}  // namespace

TEST_CASE("RMA puts of all sizes arrive before their signals, between threads") {
  LogCapture log;
  for (const int ranks : {1, 2, 4}) CHECK(run_threads(ranks, all_sizes) == "");
  CHECK(log.warnings().empty());
}

TEST_CASE("RMA puts of all sizes arrive before their signals, between processes") {
  NEEDS(kSeesBarriers, "the sanitizer sees no barrier between processes");
  CHECK(run_processes(3, "rma_sizes") == "");
}

TEST_CASE("An RMA signal is behind all that was put before it") {
  LogCapture log;
  CHECK(run_threads(1, strong_signals) == "");
  CHECK(run_threads(3, strong_signals) == "");
  if (kSeesBarriers) CHECK(run_processes(2, "rma_strong") == "");
  CHECK(log.warnings().empty());
}

TEST_CASE("Any RMA signal shows what others have put before it, where a comm says so") {
  NEEDS(!on_adapters(), "adapters promise nothing of the kind");
  CHECK(run_threads(4, any_signal_of_four) == "");
}

TEST_CASE("RMA gets bring what a peer has, and a flush is behind them") {
  LogCapture log;
  CHECK(run_threads(3, gets) == "");
  if (kSeesBarriers) CHECK(run_processes(2, "rma_gets") == "");
  CHECK(log.warnings().empty());
}

TEST_CASE("10000 RMA requests are taken without one being asked about") {
  LogCapture log;
  CHECK(run_threads(2, ten_thousand) == "");
  CHECK(log.warnings().empty());
}

TEST_CASE("Two RMA comms are driven by two threads while windows come and go") {
  LogCapture log;
  CHECK(run_threads(2, two_comms) == "");
  CHECK(log.warnings().empty());
}
