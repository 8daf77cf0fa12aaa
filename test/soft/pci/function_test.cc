// The function's commands and objects.

#include "tools/softhca/pci/function.h"
#include "plugin/fabric/soft/mlx5/layout.h"
#include "test/soft/pci/guest.h"
#include "test/support/catch.h"

namespace twinpath::softhca::pci {
namespace {

using mlx5::Opcode;
using mlx5::Refusal;
using test::Guest;

struct World {
  Guest guest;
  EventQueues events{guest.memory, 8, [](unsigned) {}};
  Function function{1, 18, guest.memory, events};
  std::vector<std::uint8_t> out;

  struct Value {
    mlx5::Field field;
    std::uint64_t value;
  };
  Refusal run(Opcode opcode, std::initializer_list<Value> values = {}, std::size_t answer = 4112) {
    const Layout* const layout = layout_of(opcode);
    std::vector<std::uint8_t> in(layout == nullptr ? 16 : layout->bytes + 16);
    if (layout != nullptr && layout->list_at == 0) in.resize(layout->bytes);
    if (opcode == Opcode::set_hca_cap) in.resize(4112);
    mlx5::set(in, mlx5::kOpcode, static_cast<std::uint64_t>(opcode));
    for (const Value& v : values) mlx5::set(in, v.field, v.value);
    out.assign(answer, 0xff);
    return function.execute(in, out).refusal;
  }
  // A doorbell page, an event queue and a completion queue on pages of the guest.
  std::uint64_t uar = 0, eqn = 0, cqn = 0;
  Refusal make_cq() {
    if (run(Opcode::alloc_uar) != Refusal::none) return Refusal::no_uar;
    uar = number();
    if (run(Opcode::create_eq, {{{232, 24}, uar}, {{2176, 64}, 0x3000}}) != Refusal::none)
      return Refusal::no_eqn;
    eqn = mlx5::get(out, {88, 8});
    const Refusal refusal = run(
        Opcode::create_cq,
        {{mlx5::cq::kUarPage, uar}, {mlx5::cq::kEqn, eqn}, {kPage, 0x4000}, {kNextPage, 0x5000}});
    cqn = number();
    return refusal;
  }
  static constexpr mlx5::Field kPage{2176, 64}, kNextPage{2240, 64};

  std::uint64_t number() const { return mlx5::get(out, mlx5::kNumber); }
};

TEST_CASE("a command that there is not is a bad operation") {
  World w;
  CHECK(w.run(static_cast<Opcode>(0x110)) == Refusal::no_command);
  CHECK(w.out[0] == 0x02);
  CHECK(mlx5::get(w.out, mlx5::kSyndrome) == static_cast<std::uint64_t>(Refusal::no_command));
}

TEST_CASE("a reserved bit changes nothing") {
  World w;
  CHECK(w.run(Opcode::alloc_pd, {{{127, 1}, 1}}) == Refusal::reserved);
  CHECK(w.out[0] == 0x03);
  CHECK(w.run(Opcode::dealloc_pd, {{mlx5::kNumber, 1}}) == Refusal::no_object);
}

TEST_CASE("objects are made of others, which stay as long as they are used") {
  World w;
  REQUIRE(w.make_cq() == Refusal::none);
  CHECK(w.uar == kFirstDoorbellPage);
  CHECK(w.run(Opcode::create_cq, {{mlx5::cq::kUarPage, w.uar + 1}, {mlx5::cq::kEqn, w.eqn}}) ==
        Refusal::no_uar);
  CHECK(w.run(Opcode::create_cq, {{mlx5::cq::kUarPage, w.uar}, {mlx5::cq::kEqn, w.eqn + 1}}) ==
        Refusal::no_eqn);
  CHECK(w.run(Opcode::destroy_eq, {{{88, 8}, w.eqn}}) == Refusal::in_use);
  CHECK(w.out[0] == 0x06);
  CHECK(w.run(Opcode::dealloc_uar, {{mlx5::kNumber, w.uar}}) == Refusal::in_use);
  REQUIRE(w.run(Opcode::destroy_cq, {{mlx5::kNumber, w.cqn}}) == Refusal::none);
  CHECK(w.run(Opcode::destroy_cq, {{mlx5::kNumber, w.cqn}}) == Refusal::no_object);
  CHECK(w.run(Opcode::destroy_eq, {{{88, 8}, w.eqn}}) == Refusal::none);
  CHECK(w.run(Opcode::dealloc_uar, {{mlx5::kNumber, w.uar}}) == Refusal::none);
}

TEST_CASE("queues lie in pages of the guest, and end in them") {
  World w;
  REQUIRE(w.make_cq() == Refusal::none);
  using Values = std::initializer_list<World::Value>;
  const World::Value uar{mlx5::cq::kUarPage, w.uar}, eqn{mlx5::cq::kEqn, w.eqn};
  const World::Value page{World::kPage, 0x4000}, next{World::kNextPage, 0x5000};
  const World::Value outside{World::kNextPage, Guest::kBytes};
  const auto made = [&](Values values) { return w.run(Opcode::create_cq, values); };
  CHECK(made({uar, eqn, page, outside}) == Refusal::no_page);
  CHECK(made({uar, eqn, page, next, {mlx5::cq::kDbrAddress, Guest::kBytes}}) == Refusal::no_page);
  CHECK(made({uar, eqn, page, next, {mlx5::cq::kDbrAddress, 4}}) == Refusal::record_alignment);
  CHECK(made({uar, eqn, page, next, {mlx5::cq::kLogSize, 7}}) == Refusal::none);
  CHECK(made({uar, eqn, page, next, {mlx5::cq::kLogSize, 8}}) == Refusal::queue_end);
  CHECK(made({uar, eqn, page, next, {mlx5::cq::kLogSize, 7}, {mlx5::cq::kPageOffset, 1}}) ==
        Refusal::queue_end);
  // Pages of other sizes.
  CHECK(made({uar, eqn, page, next, {mlx5::cq::kLogPageSize, 9}}) == Refusal::no_page);
}

TEST_CASE("numbers end, and come back") {
  World w;  // of doorbell pages there are two
  REQUIRE(w.run(Opcode::alloc_uar) == Refusal::none);
  const std::uint64_t first = w.number();
  REQUIRE(w.run(Opcode::alloc_uar) == Refusal::none);
  CHECK(w.run(Opcode::alloc_uar) == Refusal::no_number);
  REQUIRE(w.run(Opcode::dealloc_uar, {{mlx5::kNumber, first}}) == Refusal::none);
  REQUIRE(w.run(Opcode::alloc_uar) == Refusal::none);
  CHECK(w.number() == first);
}

TEST_CASE("doorbell pages come by as many as lie in a page of the driver's") {
  // Of a driver with pages of 8 KiB, then of one with 256.
  constexpr mlx5::Field kLogPage{128 + 0x490, 16}, kPages{128 + 0x520, 32};
  World w;
  const auto told = [&] {
    REQUIRE(w.run(Opcode::query_hca_cap, {{mlx5::kOpMod, 1}}) == Refusal::none);
    return mlx5::get(w.out, kPages);
  };
  CHECK(told() == 1);
  CHECK(w.run(Opcode::set_hca_cap, {{kLogPage, 6}}) == Refusal::no_field);
  REQUIRE(w.run(Opcode::set_hca_cap, {{kLogPage, 1}}) == Refusal::none);
  CHECK(told() == 2);
  REQUIRE(w.make_cq() == Refusal::none);  // takes both
  CHECK(w.uar == kFirstDoorbellPage);
  CHECK(w.run(Opcode::alloc_uar) == Refusal::no_number);
  // Queues name any of them.
  const World::Value eqn{mlx5::cq::kEqn, w.eqn}, page{World::kPage, 0x4000};
  const World::Value next{World::kNextPage, 0x5000}, first{mlx5::kNumber, w.uar};
  REQUIRE(w.run(Opcode::create_cq, {{mlx5::cq::kUarPage, w.uar + 1}, eqn, page, next}) ==
          Refusal::none);
  const World::Value of_second{mlx5::kNumber, w.number()}, of_first{mlx5::kNumber, w.cqn};
  REQUIRE(w.run(Opcode::destroy_cq, {of_first}) == Refusal::none);
  REQUIRE(w.run(Opcode::destroy_eq, {{{88, 8}, w.eqn}}) == Refusal::in_use);
  CHECK(w.run(Opcode::dealloc_uar, {first}) == Refusal::in_use);
  REQUIRE(w.run(Opcode::destroy_cq, {of_second}) == Refusal::none);
  REQUIRE(w.run(Opcode::destroy_eq, {{{88, 8}, w.eqn}}) == Refusal::none);
  CHECK(w.run(Opcode::dealloc_uar, {{mlx5::kNumber, w.uar + 1}}) == Refusal::no_object);
  CHECK(w.run(Opcode::dealloc_uar, {first}) == Refusal::none);
  CHECK(w.run(Opcode::create_eq, {{{232, 24}, w.uar + 1}, {{2176, 64}, 0x3000}}) ==
        Refusal::no_uar);
  CHECK(w.run(Opcode::alloc_uar) == Refusal::none);
  REQUIRE(w.run(Opcode::disable_hca) == Refusal::none);
  CHECK(told() == 1);
}

TEST_CASE("pages are given and taken back") {
  World w;
  REQUIRE(w.run(Opcode::manage_pages,
                {{mlx5::kOpMod, 1}, {{96, 32}, 2}, {{128, 64}, 0x5000}, {{192, 64}, 0x6000}}) ==
          Refusal::none);
  CHECK(w.function.pages_held() == 2);
  CHECK(w.run(Opcode::manage_pages, {{mlx5::kOpMod, 1}, {{96, 32}, 0x7fffffff}}) ==
        Refusal::short_command);
  REQUIRE(w.run(Opcode::manage_pages, {{mlx5::kOpMod, 2}, {{96, 32}, 100}}, 40) == Refusal::none);
  CHECK(mlx5::get(w.out, {64, 32}) == 2);
  CHECK(mlx5::get(w.out, {128, 64}) == 0x6000);
  CHECK(w.function.pages_held() == 0);
}

TEST_CASE("a function that fails has no pages of the guest any more") {
  World w;
  const World::Value give{mlx5::kOpMod, 1}, take{mlx5::kOpMod, 2}, count{{96, 32}, 1};
  REQUIRE(w.run(Opcode::manage_pages, {give, count, {{128, 64}, 0x5000}}) == Refusal::none);
  REQUIRE(w.run(Opcode::teardown_hca) == Refusal::none);  // the driver takes them back afterwards
  CHECK(w.function.pages_held() == 1);
  w.function.fail();
  REQUIRE(w.run(Opcode::manage_pages, {give, count, {{128, 64}, 0x6000}}) == Refusal::none);
  REQUIRE(w.run(Opcode::manage_pages, {take, {{96, 32}, 100}}) == Refusal::none);
  CHECK(mlx5::get(w.out, {64, 32}) == 1);
  CHECK(mlx5::get(w.out, {128, 64}) == 0x6000);
}

TEST_CASE("the port tells its state, and a change of it is an event") {
  World w;
  REQUIRE(w.run(Opcode::create_eq, {{{232, 24}, 16}}) == Refusal::no_uar);
  REQUIRE(w.run(Opcode::alloc_uar) == Refusal::none);
  REQUIRE(
      w.run(Opcode::create_eq,
            {{{232, 24}, w.number()}, {{227, 5}, 1}, {{704, 64}, 1u << 9}, {{2176, 64}, 0x3000}}) ==
      Refusal::none);
  const auto state = [&] {
    REQUIRE(w.run(Opcode::query_hca_vport_context, {{mlx5::vport::kPort, 1}}) == Refusal::none);
    return mlx5::get(w.out, mlx5::vport::kPortState);
  };
  CHECK(state() == 4);
  CHECK(mlx5::get(w.out, mlx5::vport::kLid) == 1);
  w.function.set_link(false);
  CHECK(state() == 1);
  CHECK(w.guest.bytes[0x3001] == 9);
  CHECK(w.guest.bytes[0x3003] == 1);
  CHECK(w.guest.bytes[0x3000 + 40] == 0x10);
  w.function.set_link(false);  // nothing new
  CHECK(w.guest.bytes[0x3041] == 0);
  w.function.set_link(true);
  CHECK(w.guest.bytes[0x3043] == 4);
}

TEST_CASE("only the connection manager's bit of the port can be set") {
  World w;
  CHECK(w.run(Opcode::modify_hca_vport_context, {{{640, 32}, 1u << 16}, {{672, 32}, 1u << 16}}) ==
        Refusal::none);
  CHECK(w.run(Opcode::modify_hca_vport_context, {{{640, 32}, 1}, {{672, 32}, 1}}) ==
        Refusal::no_field);
  REQUIRE(w.run(Opcode::query_hca_vport_context) == Refusal::none);
  CHECK((mlx5::get(w.out, {640, 32}) & 1u << 16) != 0);
}

TEST_CASE("queue pairs go through their states in order") {
  // RC, and the management's own, of which less is asked.
  for (const std::uint64_t service : {0u, 8u}) {
    INFO(service);
    World w;
    REQUIRE(w.make_cq() == Refusal::none);
    const auto make = [&](std::uint64_t pd) {
      return w.run(Opcode::create_qp, {{mlx5::qp::kUarPage, w.uar},
                                       {mlx5::qp::kPd, pd},
                                       {mlx5::qp::kService, service},
                                       {mlx5::qp::kSendCq, w.cqn},
                                       {mlx5::qp::kReceiveCq, w.cqn},
                                       {World::kPage, 0x6000},
                                       {World::kNextPage, 0x7000}});
    };
    CHECK(make(0) == Refusal::no_pd);
    REQUIRE(w.run(Opcode::alloc_pd) == Refusal::none);
    REQUIRE(make(w.number()) == Refusal::none);
    const World::Value qpn{mlx5::kNumber, w.number()};
    CHECK(w.number() > 1);
    CHECK(w.run(Opcode::destroy_cq, {{mlx5::kNumber, w.cqn}}) == Refusal::in_use);
    CHECK(w.run(Opcode::init2rtr_qp, {qpn}) == Refusal::state);
    const World::Value port{mlx5::qp::kPort, service == 0 ? 1u : 0u};
    CHECK(w.run(Opcode::rst2init_qp, {qpn, port}) == Refusal::none);
    const World::Value mtu{mlx5::qp::kMtu, 5}, lid{mlx5::qp::kRemoteLid, 1};
    if (service == 0) CHECK(w.run(Opcode::init2rtr_qp, {qpn, mtu}) == Refusal::remote_lid);
    CHECK(w.run(Opcode::init2rtr_qp, {qpn, mtu, lid}) == Refusal::none);
    CHECK(w.run(Opcode::rtr2rts_qp, {qpn}) == Refusal::none);
    REQUIRE(w.run(Opcode::query_qp, {qpn}) == Refusal::none);
    CHECK(mlx5::get(w.out, mlx5::qp::kState) == 3);
    CHECK(w.run(Opcode::qp_2err, {qpn}) == Refusal::none);
    CHECK(w.run(Opcode::rst2init_qp, {qpn, port}) == Refusal::state);
    CHECK(w.run(Opcode::qp_2rst, {qpn}) == Refusal::none);
    CHECK(w.run(Opcode::destroy_qp, {qpn}) == Refusal::none);
    CHECK(w.run(Opcode::query_qp, {qpn}) == Refusal::no_object);
  }
}

TEST_CASE("the clock that queue pairs may ask for is told, from when a driver takes the function") {
  constexpr mlx5::Field kGeneralClocks{128 + 0x440, 2}, kRoce{128 + 0x21d, 1},
      kRoceClocks{128 + 0x01e, 2};
  constexpr std::uint64_t kGeneral = 0, kRoceKind = 4, kRealTime = 1, kBoth = 2;
  World w;
  const auto made = [&](std::uint64_t clock) {
    REQUIRE(w.make_cq() == Refusal::none);
    REQUIRE(w.run(Opcode::alloc_pd) == Refusal::none);
    return w.run(Opcode::create_qp, {{mlx5::qp::kUarPage, w.uar},
                                     {mlx5::qp::kPd, w.number()},
                                     {mlx5::qp::kSendCq, w.cqn},
                                     {mlx5::qp::kReceiveCq, w.cqn},
                                     {mlx5::qp::kClock, clock},
                                     {World::kPage, 0x6000},
                                     {World::kNextPage, 0x7000}});
  };
  const auto told = [&](std::uint64_t kind, mlx5::Field field) {
    REQUIRE(w.run(Opcode::query_hca_cap, {{mlx5::kOpMod, kind << 1 | 1}}) == Refusal::none);
    return mlx5::get(w.out, field);
  };
  const auto taken = [&] { REQUIRE(w.run(Opcode::enable_hca) == Refusal::none); };
  CHECK(told(kGeneral, kGeneralClocks) == kBoth);
  CHECK(told(kGeneral, kRoce) == 0);
  CHECK(made(0) == Refusal::none);
  w.function.offer({.free_running = false});
  taken();
  CHECK(told(kGeneral, kGeneralClocks) == kRealTime);
  CHECK(told(kGeneral, kRoce) == 1);
  CHECK(told(kRoceKind, kRoceClocks) == kRealTime);
  CHECK(made(0) == Refusal::clock);
  taken();
  CHECK(made(1) == Refusal::none);
}

TEST_CASE("a driver that lets go leaves nothing") {
  World w;
  REQUIRE(w.run(Opcode::enable_hca) == Refusal::none);
  CHECK(w.function.enabled());
  REQUIRE(w.run(Opcode::alloc_pd) == Refusal::none);
  const std::uint64_t pd = w.number();
  REQUIRE(w.run(Opcode::disable_hca) == Refusal::none);
  CHECK_FALSE(w.function.enabled());
  CHECK(w.run(Opcode::dealloc_pd, {{mlx5::kNumber, pd}}) == Refusal::no_object);
}

}  // namespace
}  // namespace twinpath::softhca::pci
