// Host RMA on adapters that place data in GPU memory late (late_adapter.h): a signal never
// overtakes its data, and what is said to be visible is.
#include "gda/team/second_port.h"
#include "test/gda/gpu_window.h"
#include "test/gda/late_adapter.h"
#include "test/gda/late_completions.h"
#include "test/gda/rma_ranks.h"
#include "test/support/catch.h"
#include "test/support/log_capture.h"
#include "test/support/needs.h"

using namespace twinpath;
using namespace twinpath::gda;
using namespace twinpath::test;

namespace {

constexpr std::size_t kRmaPiece = 12000;

// All to all; who sees the signal sees the data, at once.
template <class Signals>
std::string signalled_rma_puts(Rank& r) {
  RmaMember member = rma_join(r);
  EXPECT_GIN(member.context);
  RmaContext& context = *member.context;
  const auto n = static_cast<std::size_t>(r.ranks), mine = static_cast<std::size_t>(r.rank);
  RmaGpuMemory from(*member.comm, kRmaPiece * n), to(*member.comm, kRmaPiece * n);
  Signals signals(*member.comm, 4096);
  EXPECT_GIN(from && to && signals);
  for (int round = 1; round <= 8; ++round) {
    const std::size_t bytes = round % 2 != 0 ? kRmaPiece : 8;
    std::vector<RmaRequest*> requests;
    for (std::size_t p = 0; p < n; ++p) {
      for (std::size_t i = 0; i < bytes; ++i)
        from.data()[p * kRmaPiece + i] = rma_byte(r.rank, static_cast<int>(p), round, i);
      const RmaSignal signal{signals.at(mine * 8), 1};
      auto put = context.put(0, static_cast<int>(p),
                             {from.at(p * kRmaPiece), to.at(mine * kRmaPiece), bytes}, &signal);
      EXPECT_GIN(put);
      requests.push_back(*put);
    }
    for (std::size_t p = 0; p < n; ++p) {
      EXPECT_GIN(rma_await(context, signals, p * 8, static_cast<std::uint64_t>(round)), round);
      for (std::size_t i = 0; i < bytes; ++i)
        EXPECT_GIN(to.data()[p * kRmaPiece + i] == rma_byte(static_cast<int>(p), r.rank, round, i),
                   round, static_cast<std::int64_t>(p), static_cast<std::int64_t>(i));
    }
    for (RmaRequest* request : requests) EXPECT_RMA_OK(rma_wait(request));
    // Others still wait for what this rank adds to their words, if a CPU does.
    const RmaSignal last{signals.at(1024 + mine * 8), 1};
    for (std::size_t p = 0; p < n; ++p) {
      auto put = context.put(0, static_cast<int>(p), {}, &last);
      EXPECT_GIN(put);
      EXPECT_RMA_OK(rma_wait(*put));
    }
    for (std::size_t p = 0; p < n; ++p)
      EXPECT_GIN(rma_await(context, signals, 1024 + p * 8, static_cast<std::uint64_t>(round)));
    r.meeting->barrier();
  }
  EXPECT_GIN(!context.failed());
  return {};
}

std::string only_meets(Rank& r) {
  const RmaMember rma = rma_join(r);
  const Member gin = join(r);
  EXPECT_GIN(rma.context && gin.context);
  r.meeting->barrier();
  return {};
}

// An adapter's signal pushes what goes where it goes itself; which windows there are is not known
// when NCCL asks.
std::string nothing_promised(Rank& r) {
  RmaMember member = rma_join(r);
  EXPECT_GIN(member.context);
  EXPECT_GIN(!member.comm->any_signal_shows_all());
  return {};
}

// What NCCL does where it waits for signals in host memory: a put to itself makes the data visible.
std::string put_to_oneself(Rank& r) {
  RmaMember member = rma_join(r);
  EXPECT_GIN(member.context);
  RmaContext& context = *member.context;
  RmaGpuMemory from(*member.comm, kRmaPiece), to(*member.comm, kRmaPiece), flush(*member.comm, 64);
  RmaMemory signals(*member.comm, 64);
  EXPECT_GIN(from && to && flush && signals);
  const int peer = (r.rank + 1) % r.ranks, before = (r.rank + r.ranks - 1) % r.ranks;
  for (int round = 1; round <= 6; ++round) {
    for (std::size_t i = 0; i < kRmaPiece; ++i) from.data()[i] = rma_byte(r.rank, peer, round, i);
    const RmaSignal signal{signals.at(0), 1};
    auto put = context.put(0, peer, {from.at(0), to.at(0), kRmaPiece}, &signal);
    EXPECT_GIN(put);
    EXPECT_GIN(rma_await(context, signals, 0, static_cast<std::uint64_t>(round)));
    auto self = context.put(0, r.rank, {flush.at(8), flush.at(8), 8}, nullptr);
    EXPECT_GIN(self);
    EXPECT_RMA_OK(rma_wait(*self));
    for (std::size_t i = 0; i < kRmaPiece; ++i)
      EXPECT_GIN(to.data()[i] == rma_byte(before, r.rank, round, i), round,
                 static_cast<std::int64_t>(i));
    EXPECT_RMA_OK(rma_wait(*put));
    r.meeting->barrier();
  }
  return {};
}

std::string flushed_rma_gets(Rank& r) {
  RmaMember member = rma_join(r);
  EXPECT_GIN(member.context);
  RmaContext& context = *member.context;
  RmaGpuMemory from(*member.comm, kRmaPiece), to(*member.comm, kRmaPiece);
  EXPECT_GIN(from && to);
  const int peer = (r.rank + 1) % r.ranks;
  for (int round = 1; round <= 6; ++round) {
    for (std::size_t i = 0; i < kRmaPiece; ++i) from.data()[i] = rma_byte(r.rank, 0, round, i);
    r.meeting->barrier();
    std::vector<RmaRequest*> requests;
    for (std::size_t at = 0; at < kRmaPiece; at += kRmaPiece / 12) {
      auto get = context.get(0, peer, {to.at(at), from.at(at), kRmaPiece / 12});
      EXPECT_GIN(get);
      requests.push_back(*get);
    }
    auto flush = context.flush(0, peer);
    EXPECT_GIN(flush && *flush != nullptr);
    EXPECT_RMA_OK(rma_wait(*flush));
    for (std::size_t i = 0; i < kRmaPiece; ++i)
      EXPECT_GIN(to.data()[i] == rma_byte(peer, 0, round, i), round, static_cast<std::int64_t>(i));
    for (RmaRequest* request : requests) EXPECT_RMA_OK(rma_wait(request));
    r.meeting->barrier();
  }
  return {};
}

// All ranks add to the same words of all, over two contexts that two threads drive: nothing is
// lost.
std::string exact_sums(Rank& r) {
  RmaMember member = rma_join(r);
  EXPECT_GIN(member.context);
  auto second = member.comm->create_context({});
  EXPECT_GIN(second);
  RmaContext* contexts[2] = {member.context.get(), second->get()};
  RmaGpuMemory words(*member.comm, 4096);
  RmaMemory host(*member.comm, 4096);
  EXPECT_GIN(words && host);
  constexpr std::uint64_t kEach = 50;
  const std::uint64_t all = kEach * 2 * static_cast<std::uint64_t>(r.ranks);
  std::atomic<int> waiting{2};
  const auto drive = [&](int c) -> std::string {
    std::vector<RmaRequest*> requests;
    for (std::uint64_t i = 0; i < kEach; ++i)
      for (int p = 0; p < r.ranks; ++p) {
        const std::uint64_t at = i % 3 * 8;
        const RmaSignal one{i % 2 == 0 ? words.at(at) : host.at(at), 1};
        const RmaSignal two{i % 2 == 0 ? host.at(at) : words.at(at), 1};
        for (const RmaSignal* signal : {&one, &two}) {
          auto put = contexts[c]->put(0, p, {}, signal);
          EXPECT_GIN(put);
          requests.push_back(*put);
        }
      }
    for (RmaRequest* request : requests) EXPECT_RMA_OK(rma_wait(request));
    --waiting;
    const std::int64_t end = now_ns() + kLimit;
    const auto sum = [](auto& memory) { return memory.word(0) + memory.word(8) + memory.word(16); };
    // Goes on while the other's signals are not all added, and others' not.
    while (waiting != 0 || sum(words) < all || sum(host) < all) {
      (void)contexts[c]->progress();
      EXPECT_GIN(now_ns() < end, static_cast<std::int64_t>(sum(words)),
                 static_cast<std::int64_t>(sum(host)));
      sched_yield();
    }
    EXPECT_GIN(sum(words) == all && sum(host) == all);
    return {};
  };
  std::string wrong;
  std::thread other([&] { wrong = drive(1); });
  const std::string mine = drive(0);
  other.join();
  r.meeting->barrier();
  return mine + wrong;
}

std::atomic<bool> read_came{false};

// The last window in GPU memory goes while one flush reads it and another is asked for; nothing is
// under way when the next window goes.
std::string windows_go_in_turn(Rank& r) {
  read_came = false;
  LateCompletions::hold(r, [](const ibv_wc& wc) -> std::int64_t {
    if (wc.opcode != IBV_WC_RDMA_READ) return 0;
    read_came = true;
    return 50 * kMillisecond;
  });
  RmaMember member = rma_join(r, {.contexts = 2});
  EXPECT_GIN(member.context);
  RmaContext& context = *member.context;
  RmaGpuMemory data(*member.comm, 4096);
  RmaMemory host(*member.comm, 64);
  EXPECT_GIN(data && host);
  auto first = context.flush(0, r.rank);
  EXPECT_GIN(first);
  while (!read_came) EXPECT_RMA_OK(context.progress());
  auto second = context.flush(1, r.rank);
  EXPECT_GIN(second);
  data.release();
  const std::int64_t begin = now_ns();
  host.release();
  EXPECT_GIN(now_ns() - begin < 2 * kSecond);
  EXPECT_RMA_OK(rma_wait(*first));
  EXPECT_RMA_OK(rma_wait(*second));
  EXPECT_GIN(!context.failed());
  return {};
}

// A context whose adapter cannot read a word fails; the other context of the team goes on.
std::string word_that_cannot_be_read(Rank& r) {
  RmaMember member = rma_join(r);
  EXPECT_GIN(member.context);
  auto second = member.comm->create_context({});
  EXPECT_GIN(second);
  RmaGpuMemory words(*member.comm, 4096);
  EXPECT_GIN(words);
  const RmaSignal bad{words.at(0), 1}, good{words.at(64), 1};
  fake->bad_address = reinterpret_cast<std::uintptr_t>(words.data());
  auto put = member.context->put(0, 0, {}, &bad);
  EXPECT_GIN(put);
  const std::int64_t end = now_ns() + 10 * kSecond;
  while (!member.context->failed() && now_ns() < end) (void)member.context->progress();
  EXPECT_GIN(member.context->failed());
  EXPECT_GIN(!member.context->put(0, 0, {}, &good));
  fake->bad_address = 0;
  auto other = (*second)->put(0, 0, {}, &good);
  EXPECT_GIN(other);
  EXPECT_GIN(rma_await(**second, words, 64, 1));
  EXPECT_RMA_OK(rma_wait(*other));
  EXPECT_GIN(!(*second)->failed());
  return {};
}

}  // namespace

TEST_CASE("RMA does not say that any signal shows all puts, on late adapters") {
  NEEDS(use_gpu() && !on_adapters(), "the late adapter is the soft HCA");
  GpuWithMemory gpu;
  CHECK(run_threads(2, nothing_promised, ordering_config(true)) == "");
}

TEST_CASE(
    "Without its GPU's flush nothing moves on late adapters, and signals are counted if asked "
    "for") {
  NEEDS(use_gpu() && !on_adapters(), "the late adapter is the soft HCA");
  static_assert(settled_at_move({.ordered = true, .gpu = true}) == Settled::all);
  static_assert(settled_at_move({.ordered = false, .gpu = false}) == Settled::host);
  static_assert(settled_at_move({.ordered = false, .gpu = true}) == Settled::none);
  static_assert(settled_at_move({.gpu = true, .flushed = true}) == Settled::all);
  GpuWithMemory gpu;
  Config config = ordering_config(false);
  config.soft_hcas = "soft0,soft1";
  config.gin_atomics = GENERATE(AtomicsChoice::never, AtomicsChoice::automatic);
  const bool counted = config.gin_atomics == AtomicsChoice::never;
  const LogCapture log;
  CHECK(run_threads(2, only_meets, config) == "");
  CHECK(log.has(counted ? "signals without atomics" : "signals by the adapters' atomics"));
  for (const char* name : {"RMA of rank 0", "GIN of rank 1"})
    CHECK(log.has(LogLevel::info, std::string(name) + " does not move if soft") == counted);
  CHECK(!log.has(" moves from soft"));
}

TEST_CASE("An RMA window's end does not wait for reads of one that went before, on late adapters") {
  NEEDS(use_gpu() && !on_adapters(), "the late adapter is the soft HCA");
  GpuWithMemory gpu;
  CHECK(run_threads(1, windows_go_in_turn, ordering_config(false)) == "");
}

TEST_CASE("An RMA context that cannot add to a word fails, and does not keep others from it") {
  NEEDS(use_gpu() && !on_adapters(), "the made-up GPU is the soft HCA's");
  LogCapture log;
  GpuWithMemory gpu;
  CHECK(run_threads(1, word_that_cannot_be_read, ordering_config(false)) == "");
  CHECK(log.has(LogLevel::warn, "adding to a signal in GPU memory, by the adapter, fails"));
}

TEST_CASE("RMA signals in GPU memory come after their data, on late adapters") {
  NEEDS(use_gpu() && !on_adapters(), "the late adapter is the soft HCA");
  LogCapture log;
  GpuWithMemory gpu;
  gpu.slow = GENERATE(false, true);
  const bool atomics = GENERATE(false, true);
  CHECK(run_threads(gpu.slow ? 2 : 3, signalled_rma_puts<RmaGpuMemory>, ordering_config(atomics)) ==
        "");
  CHECK(log.warnings().empty());
}

TEST_CASE("RMA signals that a CPU adds in host memory come after data in GPU memory") {
  NEEDS(use_gpu() && !on_adapters(), "the late adapter is the soft HCA");
  LogCapture log;
  GpuWithMemory gpu;
  CHECK(run_threads(3, signalled_rma_puts<RmaMemory>, ordering_config(false)) == "");
  CHECK(log.warnings().empty());
}

TEST_CASE("An RMA put to the own rank makes visible what peers have put, on late adapters") {
  NEEDS(use_gpu() && !on_adapters(), "the late adapter is the soft HCA");
  LogCapture log;
  GpuWithMemory gpu;
  const bool atomics = GENERATE(false, true);
  CHECK(run_threads(2, put_to_oneself, ordering_config(atomics)) == "");
  CHECK(log.warnings().empty());
}

TEST_CASE("An RMA flush makes visible what gets have brought, on late adapters") {
  NEEDS(use_gpu() && !on_adapters(), "the late adapter is the soft HCA");
  LogCapture log;
  GpuWithMemory gpu;
  CHECK(run_threads(2, flushed_rma_gets, ordering_config(true)) == "");
  CHECK(log.warnings().empty());
}

TEST_CASE("RMA signals of many ranks and contexts to one word lose nothing to each other") {
  NEEDS(use_gpu() && !on_adapters(), "the late adapter is the soft HCA");
  LogCapture log;
  GpuWithMemory gpu;
  const bool atomics = GENERATE(false, true);
  CHECK(run_threads(3, exact_sums, ordering_config(atomics)) == "");
  CHECK(log.warnings().empty());
}
