// The device model: fields, states of queue pairs, what lives how long.

#include <algorithm>

#include "test/soft/mlx5/world.h"
#include "test/support/catch.h"

using namespace twinpath::soft::mlx5;
using twinpath::softhca::modify_qp;

TEST_CASE("a field of bytes is written and read wherever it lies, and nothing beside it") {
  for (std::uint32_t width : {1u, 3u, 8u, 24u, 32u, 48u, 64u}) {
    for (std::uint32_t bit = 0; bit + width <= 96; ++bit) {
      CAPTURE(bit, width);
      std::vector<std::uint8_t> bytes(12, 0xff);
      const std::uint64_t most = width == 64 ? ~std::uint64_t{0} : (std::uint64_t{1} << width) - 1;
      const std::uint64_t value = 0x123456789abcdef1 & most;
      set(bytes, {bit, width}, 0);
      int ones = 0;
      for (std::uint32_t i = 0; i < 96; ++i) ones += static_cast<int>(get(bytes, {i, 1}));
      CHECK(ones == 96 - static_cast<int>(width));
      set(bytes, {bit, width}, value);
      CHECK(get(bytes, {bit, width}) == value);
    }
  }
  std::vector<std::uint8_t> short_one(2, 0);
  set(short_one, {8, 32}, 0xffffffff);  // what does not fit is left out
  CHECK(short_one[0] == 0);
  CHECK(short_one[1] == 0xff);
  CHECK(get(short_one, {8, 32}) == 0xff000000);
  CHECK(get(short_one, {100, 8}) == 0);
}

TEST_CASE("each transition leads from its own states only") {
  struct Step {
    std::uint32_t opcode;
    std::vector<State> from;
    State to;
  };
  const State all[] = {State::reset, State::init, State::ready_to_receive, State::ready_to_send,
                       State::error};
  const Step steps[] = {
      {0x502, {State::reset}, State::init},
      {0x50e, {State::init}, State::init},
      {0x503, {State::init}, State::ready_to_receive},
      {0x504, {State::ready_to_receive}, State::ready_to_send},
      {0x505, {State::ready_to_send}, State::ready_to_send},
      {0x507, {std::begin(all), std::end(all)}, State::error},
      {0x50a, {std::begin(all), std::end(all)}, State::reset},
  };
  for (const Step& step : steps) {
    for (const State from : all) {
      CAPTURE(step.opcode, static_cast<int>(from));
      World w;
      w.make_qp(from);
      REQUIRE(w.state() == from);
      const Bytes in = step.opcode == 0x502   ? w.init()
                       : step.opcode == 0x503 ? w.receive()
                       : step.opcode == 0x504 ? w.send()
                                              : modify_qp(step.opcode, w.qpn);
      const bool allowed = std::count(step.from.begin(), step.from.end(), from) != 0;
      const Answered a = w.run(in);
      CHECK(a.refusal == (allowed ? Refusal::none : Refusal::state));
      CHECK(a.status() == (allowed ? 0 : 0x10));
      CHECK(w.state() == (allowed ? step.to : from));
    }
  }
}

TEST_CASE("rights are set on the way to INIT, and later by the mask only") {
  constexpr std::size_t kRights = 0x18 + 0x90;
  constexpr std::uint32_t kRre = 4, kRwe = 2, kRae = 1, kAll = 7;
  const auto rights = [&](World& w) { return w.run(w.query(), 272).out.get(kRights, 15, 13); };
  World w;
  w.make_qp();
  CHECK(rights(w) == 0);
  CHECK(w.run(w.init()).refusal == Refusal::none);  // its mask is 0
  CHECK(rights(w) == kAll);
  // NCCL's next step carries writes and atomics, and no reads, beside a mask without rights.
  CHECK(w.run(w.receive().put(kRights, 15, 13, kRwe | kRae)).refusal == Refusal::none);
  CHECK(rights(w) == kAll);
  CHECK(w.run(w.send()).refusal == Refusal::none);
  CHECK(rights(w) == kAll);
  const Bytes none = modify_qp(0x505, w.qpn);
  const auto masked = [&](std::uint32_t mask) { return Bytes(none).put(0x10, 31, 0, mask); };
  CHECK(w.run(masked(1u << 1)).refusal == Refusal::none);
  CHECK(rights(w) == (kRwe | kRae));
  CHECK(w.run(masked(1u << 3)).refusal == Refusal::none);
  CHECK(rights(w) == kRae);
  CHECK(w.run(masked(1u << 2)).refusal == Refusal::none);
  CHECK(rights(w) == 0);
  CHECK(w.run(masked(1u << 1).put(kRights, 15, 13, kAll)).refusal == Refusal::none);
  CHECK(rights(w) == kRre);
}

TEST_CASE("a queue pair says at once an MTU that is one") {
  World w;
  w.make_qp();
  // NCCL 2.30.7 asks before it has told any, and gives up at 0.
  CHECK(w.run(w.query(), 272).out.get(0x18 + 0x8, 31, 29) == 1);
}

TEST_CASE("a dynamic queue pair gets ready without an address") {
  World w;
  w.make_cq();
  w.qpn = w.run(w.qp().put(0x18, 23, 16, 5)).number();
  REQUIRE(w.qpn != 0);
  CHECK(w.run(w.init()).refusal == Refusal::none);
  Bytes in = modify_qp(0x503, w.qpn).put(0x18 + 0x08, 31, 29, 3);
  CHECK(w.run(in).refusal == Refusal::none);
}

TEST_CASE("collapsed completion queues need room for one entry") {
  World w;
  constexpr std::size_t kContext = 0x10;
  Bytes cq = w.cq().put(0x54, 31, 0, World::kQueueBytes - 64).put(kContext, 20, 20, 1);
  CHECK(w.run(cq).refusal == Refusal::none);
  CHECK(w.run(cq.put(kContext, 23, 21, 1)).refusal == Refusal::queue_end);  // of 128 bytes
  // A larger page wants its 64ths.
  const std::uint32_t huge = w.device.add_umem({0, 1 << 20, 65536});
  CHECK(w.run(w.cq().put(0x58, 31, 0, huge).put(0x54, 31, 0, 1024)).refusal == Refusal::none);
  CHECK(w.run(w.cq().put(0x58, 31, 0, huge).put(0x54, 31, 0, 64)).refusal ==
        Refusal::queue_alignment);
}

TEST_CASE("what is in use stays, and goes in the right order") {
  World w;
  w.make_qp();
  const auto remove = [&](Kind kind, std::uint32_t number) {
    return w.device.remove({kind, number});
  };
  CHECK(remove(Kind::cq, w.cqn) == Refusal::in_use);
  for (const std::uint32_t umem :
       {w.parts.cq_umem, w.parts.cq_dbr_umem, w.parts.sq_umem, w.parts.dbr_umem})
    CHECK(remove(Kind::umem, umem) == Refusal::in_use);
  CHECK(w.run(w.query(), 272).refusal == Refusal::none);
  CHECK(remove(Kind::qp, w.qpn) == Refusal::none);
  CHECK(w.run(w.query(), 272).refusal == Refusal::no_object);
  CHECK(remove(Kind::qp, w.qpn) == Refusal::no_object);
  CHECK(remove(Kind::umem, w.parts.sq_umem) == Refusal::none);
  CHECK(remove(Kind::umem, w.parts.dbr_umem) == Refusal::none);
  CHECK(remove(Kind::umem, w.parts.cq_umem) == Refusal::in_use);
  CHECK(remove(Kind::cq, w.cqn) == Refusal::none);
  CHECK(remove(Kind::umem, w.parts.cq_umem) == Refusal::none);
}

TEST_CASE("numbers are never given twice, on any device of the process") {
  World w;
  std::atomic<std::uint32_t>& numbers = w.numbers;
  Device other(
      w.facts, [](unsigned, unsigned, auto&) { return false; }, numbers);
  const std::uint32_t a = w.device.add_uar(), b = other.add_uar(), c = w.device.add_uar();
  CHECK(a != b);
  CHECK(b != c);
  // One context's objects are nobody else's.
  w.parts.uar_page = b;
  CHECK(w.run(w.cq()).refusal == Refusal::no_uar);
}

TEST_CASE("random commands neither break the device nor write beyond the answer") {
  World w;
  w.make_qp();
  std::uint32_t seed = 1;
  const auto random = [&] { return seed = seed * 1664525u + 1013904223u; };
  const std::uint32_t opcodes[] = {0x100, 0x400, 0x500, 0x502, 0x503, 0x504, 0x505,
                                   0x507, 0x50a, 0x50b, 0x50e, 0x760, 0x762};
  for (int i = 0; i < 20000; ++i) {
    Bytes in = i % 3 == 0 ? w.cq() : i % 3 == 1 ? w.qp() : w.receive();
    for (std::uint32_t n = (random() >> 16) % 6; n > 0; --n)
      in.put(4 * ((random() >> 16) % 68), 31, 0, random());
    if (i % 2 == 0) in.put(0, 31, 16, opcodes[(random() >> 16) % std::size(opcodes)]);
    const std::size_t size = 16 + (random() >> 16) % (in.size() - 15);
    std::vector<std::uint8_t> out(600, 0xa5);
    const std::size_t answered = 16 + (random() >> 16) % 560;
    const Refusal refusal =
        w.device.execute({in.data(), size}, std::span(out).subspan(0, answered));
    REQUIRE(out[0] == static_cast<std::uint8_t>(status_of(refusal)));
    REQUIRE(std::all_of(out.begin() + static_cast<std::ptrdiff_t>(answered), out.end(),
                        [](std::uint8_t b) { return b == 0xa5; }));
  }
  CHECK(w.run(w.query(), 272).refusal == Refusal::none);
}
