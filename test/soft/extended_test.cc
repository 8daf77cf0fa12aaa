// What the mlx5 model asks of the software HCA beyond verbs: extended atomics, and queue pairs that
// carry those of its commands.
#include <array>

#include "plugin/fabric/soft/masked_atomic.h"
#include "plugin/fabric/soft/mlx5/carrier.h"
#include "plugin/fabric/soft/mlx5/layout.h"
#include "test/soft/pair.h"

using namespace twinpath;
using namespace twinpath::soft;
using namespace twinpath::test;

TEST_CASE("an extended atomic changes its bits of its word, and brings back what was there",
          "[soft]") {
  struct Case {
    std::uint32_t bytes, at;
    std::uint64_t before, after;
    bool compare;
    std::uint64_t value, mask, expected, compared;
  };
  constexpr std::uint64_t kAll = ~std::uint64_t{0};
  const Case cases[] = {
      {8, 0, 0xffffffff, 0x100000004, false, 5, 0, 0, 0},
      {8, 0, 0xffffffff, 4, false, 5, 0x80000000, 0, 0},  // of two fields
      {4, 0, 0x7ffffffff, 0x700000001, false, 2, 0, 0, 0},
      {4, 4, 0xffffffff00000001, 0x100000001, false, 2, 0, 0, 0},
      {8, 0, 0x1122, 0xaa22, true, 0xaa00, 0xff00, 0x22, 0xff},
      {8, 0, 0x1122, 0x1122, true, 0xaa00, 0xff00, 0x23, 0xff},
      {4, 4, 0x1100000022, 0x3300000022, true, 0x33, kAll, 0x11, kAll},
  };
  Pair p;
  for (const Case& c : cases) {
    INFO(c.bytes << " bytes at " << c.at << " of " << std::hex << c.before);
    std::memcpy(p.b.buffer.data(), &c.before, sizeof c.before);
    std::memset(p.a.buffer.data(), 0, sizeof c.before);
    MaskedAtomic atomic;
    atomic.flags = IBV_SEND_SIGNALED;
    atomic.remote_address = p.b.address(c.at);
    atomic.rkey = p.b.mr->rkey;
    atomic.to = {p.a.address(), c.bytes, p.a.mr->lkey};
    atomic.compare = c.compare;
    atomic.add_or_swap = c.value;
    atomic.mask = c.mask;
    atomic.compare_with = c.expected;
    atomic.compare_mask = c.compared;
    REQUIRE(post_masked_atomic(p.a.qp, atomic) == 0);
    REQUIRE(p.wait(p.a).status == IBV_WC_SUCCESS);
    std::uint64_t now = 0;
    std::memcpy(&now, p.b.buffer.data(), sizeof now);
    CHECK(now == c.after);
    CHECK(std::memcmp(p.a.buffer.data(), reinterpret_cast<const char*>(&c.before) + c.at,
                      c.bytes) == 0);
  }
}

TEST_CASE("a queue pair that carries another's work takes new rights where it sends already",
          "[soft]") {
  Side s{Options{}};
  mlx5::Surroundings around;
  around.verbs = s.verbs;
  mlx5::Carrier carrier(around, s.pd, nullptr, 0, {});
  REQUIRE(carrier.number() != 0);
  std::array<std::uint8_t, 512> context{};
  mlx5::set(context, mlx5::qp::kPort, 1);
  mlx5::set(context, mlx5::qp::kMtu, IBV_MTU_1024);
  mlx5::set(context, mlx5::qp::kRemoteQpn, carrier.number());
  mlx5::set(context, mlx5::qp::kGidIndex, 1);
  std::memcpy(&context[mlx5::qp::kRemoteGidHigh.bit / 8], s.gid.raw, sizeof s.gid.raw);
  using enum mlx5::State;
  for (const auto state : {init, ready_to_receive, ready_to_send, ready_to_send})
    REQUIRE(carrier.change(state, context) == 0);
  CHECK_FALSE(carrier.in_error());
  CHECK(carrier.change(error, context) == 0);
  CHECK(carrier.in_error());
}
