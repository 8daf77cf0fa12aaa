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
  Function function{1, 18, events};
  std::vector<std::uint8_t> out;

  struct Value {
    mlx5::Field field;
    std::uint64_t value;
  };
  Refusal run(Opcode opcode, std::initializer_list<Value> values = {}, std::size_t answer = 4112) {
    const Layout* const layout = layout_of(opcode);
    std::vector<std::uint8_t> in(layout == nullptr ? 16 : layout->bytes + 16);
    if (layout != nullptr && layout->list_at == 0) in.resize(layout->bytes);
    mlx5::set(in, mlx5::kOpcode, static_cast<std::uint64_t>(opcode));
    for (const Value& v : values) mlx5::set(in, v.field, v.value);
    out.assign(answer, 0xff);
    return function.execute(in, out).refusal;
  }
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
  REQUIRE(w.run(Opcode::alloc_uar) == Refusal::none);
  const std::uint64_t uar = w.number();
  CHECK(uar == kFirstDoorbellPage);
  REQUIRE(w.run(Opcode::create_eq, {{{232, 24}, uar}, {{2176, 64}, 0x3000}}) == Refusal::none);
  const std::uint64_t eqn = mlx5::get(w.out, {88, 8});
  CHECK(w.run(Opcode::create_cq, {{mlx5::cq::kUarPage, uar + 1}, {mlx5::cq::kEqn, eqn}}) ==
        Refusal::no_uar);
  CHECK(w.run(Opcode::create_cq, {{mlx5::cq::kUarPage, uar}, {mlx5::cq::kEqn, eqn + 1}}) ==
        Refusal::no_eqn);
  REQUIRE(w.run(Opcode::create_cq, {{mlx5::cq::kUarPage, uar}, {mlx5::cq::kEqn, eqn}}) ==
          Refusal::none);
  const std::uint64_t cqn = w.number();
  CHECK(w.run(Opcode::destroy_eq, {{{88, 8}, eqn}}) == Refusal::in_use);
  CHECK(w.out[0] == 0x06);
  CHECK(w.run(Opcode::dealloc_uar, {{mlx5::kNumber, uar}}) == Refusal::in_use);
  REQUIRE(w.run(Opcode::destroy_cq, {{mlx5::kNumber, cqn}}) == Refusal::none);
  CHECK(w.run(Opcode::destroy_cq, {{mlx5::kNumber, cqn}}) == Refusal::no_object);
  CHECK(w.run(Opcode::destroy_eq, {{{88, 8}, eqn}}) == Refusal::none);
  CHECK(w.run(Opcode::dealloc_uar, {{mlx5::kNumber, uar}}) == Refusal::none);
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
  CHECK(mlx5::get(w.out, mlx5::vport::kLid) == 2);
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
  World w;
  REQUIRE(w.run(Opcode::alloc_uar) == Refusal::none);
  const std::uint64_t uar = w.number();
  CHECK(w.run(Opcode::create_qp, {{mlx5::qp::kUarPage, uar}}) == Refusal::no_pd);
  REQUIRE(w.run(Opcode::alloc_pd) == Refusal::none);
  REQUIRE(w.run(Opcode::create_qp, {{mlx5::qp::kUarPage, uar}, {mlx5::qp::kPd, w.number()}}) ==
          Refusal::none);
  const World::Value qpn{mlx5::kNumber, w.number()};
  CHECK(w.number() > 1);
  CHECK(w.run(Opcode::init2rtr_qp, {qpn}) == Refusal::state);
  CHECK(w.run(Opcode::rst2init_qp, {qpn}) == Refusal::none);
  CHECK(w.run(Opcode::init2rtr_qp, {qpn}) == Refusal::none);
  CHECK(w.run(Opcode::rtr2rts_qp, {qpn}) == Refusal::none);
  REQUIRE(w.run(Opcode::query_qp, {qpn}) == Refusal::none);
  CHECK(mlx5::get(w.out, mlx5::qp::kState) == 3);
  CHECK(w.run(Opcode::qp_2err, {qpn}) == Refusal::none);
  CHECK(w.run(Opcode::rst2init_qp, {qpn}) == Refusal::state);
  CHECK(w.run(Opcode::qp_2rst, {qpn}) == Refusal::none);
  CHECK(w.run(Opcode::destroy_qp, {qpn}) == Refusal::none);
  CHECK(w.run(Opcode::query_qp, {qpn}) == Refusal::no_object);
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
