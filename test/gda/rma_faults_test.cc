// Host RMA when something goes wrong: wrong use, peers that end, transfers that fail, closing in
// the middle.
#include <chrono>
#include <thread>

#include "gda/memory/retired.h"
#include "plugin/fabric/soft/extended.h"
#include "test/gda/rma_ranks.h"
#include "test/support/catch.h"
#include "test/support/log_capture.h"
#include "test/support/needs.h"

using namespace twinpath;
using namespace twinpath::gda;
using namespace twinpath::test;

namespace {

std::string wrong_use(Rank& r) {
  RmaMember member = rma_join(r), other = rma_join(r);
  EXPECT_GIN(member.context && other.context);
  RmaContext& context = *member.context;
  RmaMemory memory(*member.comm, 4100), foreign(*other.comm, 4096);
  // Rank 1's is smaller: offsets are checked against the memory that is meant.
  RmaMemory uneven(*member.comm, r.rank == 1 ? 64 : 4096);
  EXPECT_GIN(memory && foreign && uneven);
  const int peer = 1 - r.rank;
  const RmaTransfer good{memory.at(0), memory.at(2048), 100};
  const RmaSignal signal{memory.at(4088), 1};
  const auto refused = [&](const Result<RmaRequest*>& result) {
    return !result && result.status() == Status::bad_argument;
  };
  for (const int rank : {-1, 2, 1000}) EXPECT_GIN(refused(context.put(0, rank, good, nullptr)));
  for (const int c : {-1, 1}) {
    EXPECT_GIN(refused(context.put(c, peer, good, nullptr)));
    EXPECT_GIN(refused(context.get(c, peer, good)));
    EXPECT_GIN(refused(context.flush(c, peer)));
  }
  for (const RmaTransfer& bad : {
           RmaTransfer{memory.at(4001), memory.at(0), 100},        // the local end
           RmaTransfer{memory.at(0), memory.at(4001), 100},        // the far end
           RmaTransfer{memory.at(0), memory.at(~0ull - 50), 100},  // round the end of 64 bits
           RmaTransfer{memory.at(0), memory.at(0), 4101},
           RmaTransfer{memory.at(0), memory.at(0), ~0ull},
           RmaTransfer{{}, memory.at(0), 8},
           RmaTransfer{memory.at(0), {}, 8},
           RmaTransfer{foreign.at(0), memory.at(0), 8},
           RmaTransfer{memory.at(0), foreign.at(0), 8},
       }) {
    EXPECT_GIN(refused(context.put(0, peer, bad, nullptr)));
    EXPECT_GIN(refused(context.put(0, peer, bad, &signal)));
    EXPECT_GIN(refused(context.get(0, peer, bad)));
  }
  for (const RmaSignal& bad :
       {RmaSignal{memory.at(4096), 1}, RmaSignal{memory.at(4), 1}, RmaSignal{{}, 1},
        RmaSignal{foreign.at(0), 1}, RmaSignal{memory.at(~0ull - 7), 1}}) {
    EXPECT_GIN(refused(context.put(0, peer, {}, &bad)));
    EXPECT_GIN(refused(context.put(0, peer, good, &bad)));
  }
  if (r.rank == 0)
    EXPECT_GIN(refused(context.put(0, 1, {memory.at(0), uneven.at(60), 5}, nullptr)));
  if (r.rank == 1) {
    auto put = context.put(0, 0, {memory.at(0), uneven.at(60), 5}, nullptr);
    EXPECT_GIN(put);
    EXPECT_RMA_OK(rma_wait(*put));
  }
  r.meeting->barrier();
  // Nothing of all that was posted.
  EXPECT_GIN(memory.word(4088) == 0 && memory.word(2048) == 0);
  EXPECT_GIN(!context.failed());
  r.meeting->barrier();
  auto put = context.put(0, peer, good, &signal);
  EXPECT_GIN(put);
  EXPECT_RMA_OK(rma_wait(*put));
  EXPECT_GIN(rma_await(context, memory, 4088, 1));
  EXPECT_GIN(member.comm->deregister_window(foreign.at(0).window) == Status::bad_argument);
  r.meeting->barrier();
  return {};
}

std::string closing(Rank& r) {
  for (int round = 0; round < 4; ++round) {
    RmaMember member = rma_join(r, {.contexts = 1 + round % 2});
    EXPECT_GIN(member.context);
    constexpr std::size_t kBytes = 1 << 20;
    RmaMemory from(*member.comm, kBytes), to(*member.comm, kBytes);
    EXPECT_GIN(from && to);
    r.meeting->barrier();
    const int peer = (r.rank + 1) % r.ranks;
    for (int i = 0; i < 500; ++i) {
      const RmaSignal signal{to.at(0), 1};
      // Peers may be closing already: then it fails, and must not hang.
      (void)member.context->put(0, peer, {from.at(0), to.at(4096), kBytes - 4096}, &signal);
    }
    const std::int64_t start = now_ns();
    member.context.reset();
    EXPECT_GIN(now_ns() - start < 2 * kSecond);
    EXPECT_GIN(Retired::of_process().kept() == 0);  // no GPU's kernel may use its memory
    if (round % 2 == 0) r.meeting->barrier();
    from.release();
    to.release();
    member.comm.reset();
    EXPECT_GIN(now_ns() - start < 4 * kSecond);
    r.meeting->barrier();
  }
  return {};
}

// Rank 1 gives its window back; what rank 0 puts there then ends in an error.
std::string refused_by_the_peer(Rank& r) {
  RmaMember member = rma_join(r);
  EXPECT_GIN(member.context);
  RmaContext& context = *member.context;
  RmaMemory memory(*member.comm, 4096), other(*member.comm, 4096);
  EXPECT_GIN(memory && other);
  if (r.rank == 1) memory.release();
  r.meeting->barrier();
  if (r.rank == 0) {
    std::vector<RmaRequest*> requests;
    for (int i = 0; i < 300; ++i) {
      auto put = context.put(0, 1, {memory.at(0), memory.at(0), 64}, nullptr);
      if (put) requests.push_back(*put);
    }
    EXPECT_GIN(!requests.empty());
    for (RmaRequest* request : requests)
      EXPECT_GIN(rma_wait(request, 10 * kSecond) == Status::remote);
    // It says so again, and all later is refused.
    bool done = true;
    EXPECT_GIN(requests[0]->test(done) == Status::remote && !done);
    EXPECT_GIN(context.put(0, 1, {memory.at(0), other.at(0), 8}, nullptr).status() ==
               Status::remote);
    EXPECT_GIN(context.failed());
    // The queue to itself works.
    auto put = context.put(0, 0, {memory.at(0), other.at(8), 8}, nullptr);
    EXPECT_GIN(put);
    EXPECT_RMA_OK(rma_wait(*put));
  }
  r.meeting->barrier();
  return {};
}

constexpr int kDying = 3;

// The last rank is killed while others put to it, and wait for it.
std::string dying(Rank& r) {
  RmaMember member = rma_join(r);
  EXPECT_GIN(member.context);
  RmaContext& context = *member.context;
  RmaMemory memory(*member.comm, 1 << 16);
  EXPECT_GIN(memory);
  r.meeting->barrier();
  if (r.rank == kDying - 1) {
    for (;;) ::usleep(10000);
  }
  if (r.rank == 0) r.meeting->barrier();  // the test kills now
  const std::int64_t killed = now_ns();
  Status status = Status::ok;
  // Rank 0 puts, until it hears of it from a put, and rank 1 waits for a signal that never comes.
  // What it puts is not where signals come.
  while (now_ns() < killed + 20 * kSecond && status == Status::ok &&
         (r.rank == 0 || !context.failed())) {
    (void)context.progress();
    if (r.rank == 1) continue;
    auto put = context.put(0, kDying - 1, {memory.at(4096), memory.at(4096), 60000}, nullptr);
    status = put ? rma_wait(*put, 20 * kSecond) : put.status();
  }
  EXPECT_GIN(r.rank == 1 || status == Status::remote);
  const std::int64_t end = now_ns() + 5 * kSecond;
  while (!context.failed() && now_ns() < end) (void)context.progress();
  EXPECT_GIN(context.failed());
  EXPECT_GIN(now_ns() - killed < 15 * kSecond, (now_ns() - killed) / kMillisecond);
  // Between those that live all goes on.
  const RmaSignal signal{memory.at(64), 1};
  auto put = context.put(0, 1 - r.rank, {}, &signal);
  EXPECT_GIN(put);
  EXPECT_RMA_OK(rma_wait(*put));
  EXPECT_GIN(rma_await(context, memory, 64, 1));
  // Both have seen it before one of them leaves.
  const RmaSignal last{memory.at(72), 1};
  put = context.put(0, 1 - r.rank, {}, &last);
  EXPECT_GIN(put && rma_await(context, memory, 72, 1));
  EXPECT_RMA_OK(rma_wait(*put));
  return {};
}
const NamedScenario dying_by_name("rma_dying", dying);

// One rank's registration cannot be made: it fails for all, at once, and the next works.
std::string failed_registration(Rank& r) {
  RmaMember member = rma_join(r);
  EXPECT_GIN(member.context);
  std::vector<std::uint64_t> words(512);
  const std::int64_t start = now_ns();
  auto window = member.comm->register_window(r.rank == 1 ? nullptr : words.data(), 4096,
                                             MemoryType::host, 0, -1, {});
  EXPECT_GIN(!window && window.status() == (r.rank == 1 ? Status::bad_argument : Status::remote));
  EXPECT_GIN(now_ns() - start < 5 * kSecond);
  RmaMemory memory(*member.comm, 4096);
  EXPECT_GIN(memory);
  const RmaSignal signal{memory.at(0), 7};
  auto put = member.context->put(0, (r.rank + 1) % r.ranks, {}, &signal);
  EXPECT_GIN(put);
  EXPECT_GIN(rma_await(*member.context, memory, 0, 7));
  EXPECT_RMA_OK(rma_wait(*put));
  r.meeting->barrier();
  return {};
}

// Rank 0's port goes down for a moment, which costs nothing, and then for good: requests of both
// ranks fail, also of the one that only waits.
std::string rma_port_lost(Rank& r) {
  RmaMember member = rma_join(r);
  EXPECT_GIN(member.context);
  RmaContext& context = *member.context;
  RmaMemory memory(*member.comm, 8192);
  EXPECT_GIN(memory);
  const Port& port = *r.devices->rails(0).front().port;
  const RmaSignal signal{memory.at(8), 1};
  r.meeting->barrier();
  if (r.rank == 0) {
    EXPECT_GIN(soft::set_port_state(port.context, port.number, false) == 0);
    auto put = context.put(0, 1, {memory.at(4096), memory.at(4096), 4096}, &signal);
    EXPECT_GIN(put);
    std::this_thread::sleep_for(std::chrono::milliseconds(60));
    EXPECT_GIN(soft::set_port_state(port.context, port.number, true) == 0);
    EXPECT_RMA_OK(rma_wait(*put));
    // On a busy machine it may be late to be seen that the port is back.
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
  } else {
    EXPECT_GIN(rma_await(context, memory, 8, 1));
  }
  r.meeting->barrier();
  const std::int64_t down = now_ns();  // at no rank after the port is down
  r.meeting->barrier();
  Status status = Status::ok;
  if (r.rank == 0) {
    EXPECT_GIN(soft::set_port_state(port.context, port.number, false) == 0);
    auto put = context.put(0, 1, {memory.at(4096), memory.at(4096), 4096}, &signal);
    EXPECT_GIN(put);
    status = rma_wait(*put, 10 * kSecond);
    EXPECT_GIN(status == Status::remote);
  }
  while (!context.failed() && now_ns() < down + 10 * kSecond) (void)context.progress();
  const std::int64_t after_ms = (now_ns() - down) / kMillisecond;
  r.meeting->barrier();
  if (r.rank == 0) (void)soft::set_port_state(port.context, port.number, true);
  EXPECT_GIN(context.failed());
  EXPECT_GIN(after_ms >= 250 && after_ms < 3000, after_ms);
  return {};
}

// Ranks that ask for different contexts hear of it.
std::string different_settings(Rank& r) {
  RmaMember member = rma_join(r, {.contexts = r.rank == 1 ? 3 : 2});
  EXPECT_GIN(member.comm != nullptr && member.context == nullptr);
  EXPECT_GIN(!member.comm->create_context({.contexts = 0}));
  EXPECT_GIN(member.comm->create_context({}));
  return {};
}

}  // namespace

TEST_CASE("Wrong use of RMA is refused where it is asked for, and nothing is posted") {
  LogCapture log;
  CHECK(run_threads(2, wrong_use) == "");
  CHECK(log.has(LogLevel::warn, "are outside the window of 4100 bytes of rank"));
  CHECK(log.has(LogLevel::warn, "are outside the window of 4100 bytes of this rank"));
  CHECK(log.has(LogLevel::warn, "a window of another communicator"));
  CHECK(log.has(LogLevel::warn, "is not that of an aligned word"));
  CHECK(log.has(LogLevel::warn, "rank 1000 of 2"));
}

TEST_CASE("RMA contexts end with requests under way, and wait for nobody") {
  CHECK(run_threads(3, closing) == "");
}

TEST_CASE("A transfer that fails fails its queue, and says so in time") {
  LogCapture log;
  CHECK(run_threads(2, refused_by_the_peer) == "");
  CHECK(log.has(LogLevel::warn, "RMA queue of rank 0 to rank 1 ("));
}

TEST_CASE("RMA requests to a rank that was killed fail, and others' do not") {
  RankProcesses processes(kDying, "rma_dying");
  REQUIRE(processes.serve());  // handles
  REQUIRE(processes.serve());  // all are ready
  REQUIRE(processes.serve_one(0));
  processes.kill(kDying - 1);
  CHECK(processes.finish() == "");
}

TEST_CASE("F13: RMA over a port that stays down fails at both ends, and in time") {
  NEEDS(!on_adapters(), "ports of the soft HCA can be told to go down");
  Config config = gin_config();
  config.soft_hcas = "soft0,soft1";
  config.standby_ports = 0;  // rma_crossed_test.cc has those that move
  config.failover_hold_ms = 300;
  config.ib_timeout = 20;  // the adapter's own patience is longer
  LogCapture log;
  CHECK(run_threads(2, rma_port_lost, config) == "");
  CHECK(log.has(LogLevel::warn, "the local port soft0:1 has been down for"));
  CHECK(log.has(LogLevel::warn, "or gave it up"));
}

TEST_CASE("A registration that one rank cannot make fails for all, once") {
  LogCapture log;
  CHECK(run_threads(3, failed_registration) == "");
  CHECK(log.has(LogLevel::warn, "registering a window failed at rank 1"));
}

TEST_CASE("Ranks that ask for different RMA contexts get none") {
  LogCapture log;
  CHECK(run_threads(2, different_settings) == "");
  CHECK(log.has(LogLevel::warn, "all ranks must ask for the same"));
}
