// What a sender knows of its messages, alone: which a completion ends, which are sent again, and
// what is told of them.
#include <array>
#include <memory>
#include <vector>

#include "proxy/send/replay.h"
#include "proxy/send/send_rules.h"
#include "proxy/send/send_trace.h"
#include "test/support/catch.h"
#include "test/support/log_capture.h"

namespace twinpath {
namespace {

constexpr std::uint64_t kFirstWrId = 0x300001;

struct Sender {
  SendRequests requests{nullptr, kFirstWrId};
  std::array<std::uint8_t, 64> bytes{};
  ProxyMemory memory;

  SendRequest& send(std::uint64_t cell, std::uint16_t before = SendRequest::kNone) {
    SendRequest& r = *requests.take();
    r.begin(bytes.data(), bytes.size(), &memory, cell, before);
    return r;
  }
};

TEST_CASE("A completion finds its message, and not a later one in the same slot") {
  Sender s;
  CHECK(s.requests.find(kFirstWrId) == nullptr);
  SendRequest& r = s.send(0);
  const std::uint64_t first = r.wr_id();
  CHECK(s.requests.find(first) == &r);
  CHECK(r.slot() == 0);
  r.set_pending(0);
  s.requests.give(r);
  SendRequest& again = s.send(1);
  CHECK(&again == &r);
  CHECK(again.wr_id() != first);
  CHECK(s.requests.find(first) == nullptr);
  CHECK(s.requests.find(again.wr_id()) == &again);
}

TEST_CASE("The last one's completion ends all of a batch, and no other message") {
  Sender s;
  SendRequest& alone = s.send(0);
  SendRequest& first = s.send(1);
  SendRequest& second = s.send(2, first.slot());
  SendRequest& last = s.send(3, second.slot());
  last.set_pending(0);
  s.requests.end_batch(last);
  CHECK(alone.pending() == 1);
  CHECK(first.pending() == 0);
  CHECK(second.pending() == 0);
  CHECK(last.before() == SendRequest::kNone);
}

TEST_CASE("At risk is what is under way, and each look has its number") {
  Sender s;
  const AtRisk none = s.requests.at_risk();
  CHECK_FALSE(none.any);
  SendRequest& a = s.send(0);
  s.send(1);
  const AtRisk both = s.requests.at_risk();
  CHECK(both.any);
  CHECK(both.bytes == 128);
  CHECK(both.mark != none.mark);
  a.set_pending(0);
  CHECK(s.requests.at_risk().bytes == 64);
}

TEST_CASE("Memory that goes is forgotten by what is under way out of it alone") {
  Sender s;
  ProxyMemory other;
  SendRequest& done = s.send(0);
  SendRequest& under_way = s.send(1);
  SendRequest& elsewhere = *s.requests.take();
  elsewhere.begin(s.bytes.data(), 8, &other, 2);
  SendRequest& empty = *s.requests.take();
  empty.begin(nullptr, 0, nullptr, 3);
  done.set_pending(0);
  CHECK(s.requests.forget(s.memory));
  CHECK_FALSE(done.forgotten());
  CHECK(under_way.forgotten());
  CHECK_FALSE(elsewhere.forgotten());
  CHECK_FALSE(empty.forgotten());
  CHECK_FALSE(s.requests.forget(s.memory));
}

// A pool of an adapter that is gone, for whose blocks nobody asks it.
std::unique_ptr<ParcelPool> parcel_pool() {
  static ibv_mr mr;
  Verbs verbs;
  verbs.reg_mr_iova2 = [](ibv_pd*, void*, std::size_t, std::uint64_t, unsigned) { return &mr; };
  verbs.dereg_mr = [](ibv_mr*) { return 0; };
  ibv_context context{};
  context.async_fd = -1;
  return ParcelPool::make(verbs, Adapter(verbs, &context, nullptr, "fake0"));
}

TEST_CASE("A block stays with the request whose completion frees it") {
  Sender s;
  const auto shared = parcel_pool();
  REQUIRE(shared != nullptr);
  ParcelBlocks blocks(2);
  blocks.serve(1, shared.get());
  SendRequest& r = s.send(0);
  CHECK(blocks.take(r, 0).data == nullptr);
  for (int round = 0; round < 3 * ParcelPool::kBlocks; ++round) {
    REQUIRE(blocks.take(r, 1).data != nullptr);
    blocks.give_back(r);
    blocks.give_back(r);
  }
  for (int i = 0; i < ParcelPool::kBlocks; ++i) CHECK(blocks.take(s.send(1), 1).data != nullptr);
  CHECK(blocks.take(r, 1).data == nullptr);
}

// Cells up to `seen` have come to a sender's ring.
struct SeenRing {
  explicit SeenRing(std::uint64_t seen) : ring(cells.data(), CtsLayout(1)) {
    for (std::uint64_t seq = 0; seq != seen; ++seq)
      ring.layout().fill(cells.data() + ring.layout().offset(seq), 0x1000, 64, 0, 0, seq,
                         [](int) { return 1u; });
    ring.see_all();
  }
  alignas(8) std::array<std::uint8_t, sizeof(NarrowCell) * kCtsCells> cells{};
  CtsRing ring;
};

TEST_CASE("Sent again is what the receiver awaits, the oldest first, each by itself") {
  Sender s;
  const SeenRing ring(8);
  const auto shared = parcel_pool();
  REQUIRE(shared != nullptr);
  ParcelBlocks blocks(1);
  blocks.serve(0, shared.get());
  SendRequest& young = s.send(6);
  SendRequest& has = s.send(4);
  SendRequest& old = s.send(5, has.slot());
  SendRequest& unnoted = s.send(1);
  SendRequest& held = s.send(7);
  unnoted.mark(SendRequest::kUnnoted);
  old.mark(SendRequest::kTimed);
  old.mark(SendRequest::kStaged);
  REQUIRE(blocks.take(old, 0).data != nullptr);
  const std::uint64_t before = old.wr_id(), waits = held.wr_id();
  HeldState theirs;
  theirs.begin = 4;
  theirs.end = 8;
  for (const std::uint64_t cell : {5, 6, 7}) theirs.set_open(cell);

  Replay replay;
  replay.leave_out(held.slot());
  REQUIRE(replay.choose(s.requests, ring.ring, theirs, blocks) == Replay::Verdict::right);
  const std::vector<std::uint16_t> want{unnoted.slot(), old.slot(), young.slot()};
  CHECK(std::vector<std::uint16_t>(replay.slots().begin(), replay.slots().end()) == want);
  CHECK(has.pending() == 0);
  CHECK(old.pending() == 1);
  CHECK(old.before() == SendRequest::kNone);
  CHECK(old.wr_id() != before);
  CHECK_FALSE(old.is(SendRequest::kTimed));
  CHECK(old.is(SendRequest::kStaged));
  CHECK(held.wr_id() == waits);
  // The block of its parcel is free again.
  for (int i = 0; i < ParcelPool::kBlocks; ++i) CHECK(blocks.take(s.send(9), 0).data != nullptr);
}

TEST_CASE("A receiver that never offered what was answered is found out") {
  Sender s;
  const SeenRing ring(8);
  ParcelBlocks blocks(1);
  s.send(5);
  HeldState theirs;
  theirs.begin = theirs.end = 5;
  Replay replay;
  CHECK(replay.choose(s.requests, ring.ring, theirs, blocks) == Replay::Verdict::never_offered);
  CHECK(replay.cell() == 5);
}

TEST_CASE("A message that has ended here and that the receiver awaits is lost") {
  Sender s;
  SeenRing ring(8);
  ParcelBlocks blocks(1);
  HeldState theirs;
  theirs.begin = 1;
  theirs.end = 8;
  for (std::uint64_t cell = 1; cell < 8; ++cell) theirs.set_open(cell);
  // 0, 1 and 2 are used in order and 5 ahead; 3, 4, 6 and 7 wait to be answered.
  for (const std::uint64_t cell : {0, 1, 2, 5}) ring.ring.use(cell);
  Replay replay;
  s.send(1);
  SECTION("in order") {
    s.send(5);
    CHECK(replay.choose(s.requests, ring.ring, theirs, blocks) == Replay::Verdict::lost);
    CHECK(replay.cell() == 2);
  }
  SECTION("ahead") {
    s.send(2);
    CHECK(replay.choose(s.requests, ring.ring, theirs, blocks) == Replay::Verdict::lost);
    CHECK(replay.cell() == 5);
  }
  SECTION("not what leaves later") {
    s.send(2);
    replay.leave_out(s.send(5).slot());
    CHECK(replay.choose(s.requests, ring.ring, theirs, blocks) == Replay::Verdict::right);
    CHECK(replay.slots().size() == 2);
  }
  SECTION("but for one without notice, whose cell's place is another's now") {
    s.send(2);
    s.send(5).mark(SendRequest::kUnnoted);
    CHECK(replay.choose(s.requests, ring.ring, theirs, blocks) == Replay::Verdict::lost);
    CHECK(replay.cell() == 5);
  }
}

TEST_CASE("Watched is one message, and its flight tells which rails are done with it") {
  std::array<counters::Rail, kMaxRails> rails;
  SendTrace trace(rails);
  Sender s;
  ibv_qp qp{};
  qp.qp_num = 17;
  const Lane lane{&qp, 1, 0, 0, 0, 0, nullptr};
  CHECK_FALSE(trace.watched());
  CHECK(trace.flight(0) == nullptr);
  trace.leaves(lane, 64);
  trace.watch_next();
  REQUIRE(trace.watched());
  CHECK_FALSE(trace.watched());
  SendRequest& r = s.send(0);
  trace.begin(r.slot());
  trace.cut(r);
  trace.leaves(lane, 64);
  trace.end();
  trace.leaves(lane, 32);
  const Flight& flight = *trace.flight(r.slot());
  REQUIRE(flight.count == 1);
  CHECK(flight.legs[0].queue == 17);
  CHECK(flight.legs[0].bytes == 64);
  CHECK(flight.left() == 1);
  trace.arrived(r, -1);
  CHECK(flight.left() == 1);
  trace.arrived(r, 1);
  CHECK(flight.left() == 0);
  SendRequest& other = s.send(1);
  trace.cut(other);
  CHECK_FALSE(other.marked());
}

TEST_CASE("A message in pieces is timed until its last one, each by its rail") {
  std::array<counters::Rail, kMaxRails> rails;
  SendTrace trace(rails);
  Sender s;
  SendRequest& r = s.send(0);
  SendRequest& second = s.send(1);
  trace.start(r);
  trace.start(second);
  CHECK(r.is(SendRequest::kTimed));
  CHECK_FALSE(second.marked());
  trace.arrived(r, 1);
  CHECK(r.is(SendRequest::kTimed));
  r.set_pending(0);
  trace.arrived(r, -1);
  CHECK_FALSE(r.marked());
  const auto timed = [&](std::size_t rail) {
    std::uint64_t n = 0;
    for (const auto& bucket : rails[rail].buckets) n += bucket.get();
    return n;
  };
  CHECK(timed(0) == 1);
  CHECK(timed(1) == 1);
  trace.start(second);
  CHECK(second.is(SendRequest::kTimed));
}

TEST_CASE("A sender takes what lies in a registration of its device, and is not too long") {
  std::array<char, 128> data{};
  ProxyMemory memory;
  memory.address = reinterpret_cast<std::uintptr_t>(data.data());
  memory.length = data.size();
  memory.device = 2;
  const struct {
    SendRules rules;
    std::size_t at, bytes;
    bool registered;
    const char* wrong;  // null: nothing
  } cases[] = {
      {{2, 64, {}}, 0, 64, true, nullptr},
      {{2, 64, {}}, 64, 64, true, nullptr},
      {{2, 64, {}}, 0, 0, false, nullptr},
      {{2, 64, {}}, 0, 65, true, "at most 64"},
      {{2, 64, {}}, 65, 64, true, "not inside its registration"},
      {{2, 64, {}}, 0, 1, false, "not inside its registration"},
      {{1, 64, {}}, 0, 1, true, "not inside its registration"},
  };
  for (const auto& c : cases) {
    CAPTURE(c.rules.device, c.at, c.bytes, c.registered);
    test::LogCapture log;
    bool stage = false;
    const Status s =
        c.rules.check(data.data() + c.at, c.bytes, c.registered ? &memory : nullptr, "peer", stage);
    CHECK((s == Status::ok) == (c.wrong == nullptr));
    if (c.wrong != nullptr) CHECK(log.has(c.wrong));
    CHECK_FALSE(stage);
  }
}

}  // namespace
}  // namespace twinpath
