// Which HCA serves which GPU.
#include "topology/decide/hca_order.h"

#include <algorithm>

#include "test/support/catch.h"

namespace twinpath {
namespace {

HcaCandidate hca(int index, Distance d, double port = 400, double pcie = 63) {
  HcaCandidate c;
  c.hca = index;
  c.distance = d;
  c.port_gbps = port;
  c.pcie_gbs = pcie;
  c.bus = static_cast<std::uint64_t>(index);
  return c;
}

std::vector<int> order(const std::vector<HcaCandidate>& candidates,
                       std::optional<int> rail = std::nullopt) {
  std::vector<int> out;
  for (const HcaChoice& c : order_hcas(candidates, rail)) {
    if (c.refused == Reason::none) out.push_back(c.hca);
  }
  return out;
}

}  // namespace

TEST_CASE("HCAs are ranked by rail, distance, bandwidth, load and bus") {
  CHECK(order({hca(0, Distance::sys), hca(1, Distance::pix), hca(2, Distance::phb)}) ==
        std::vector{1, 2, 0});
  CHECK(order({hca(0, Distance::pix, 200), hca(1, Distance::pix, 400)}) == std::vector{1, 0});
  // 400 Gb/s behind a half-width link are no more than 200.
  CHECK(order({hca(0, Distance::pix, 400, 15), hca(1, Distance::pix, 200, 31)}) ==
        std::vector{1, 0});
  // Not known is no reason to be passed over.
  CHECK(order({hca(0, Distance::pix, 400), hca(1, Distance::pix, 0, 0)}) == std::vector{1, 0});
  auto loaded = hca(0, Distance::pix);
  loaded.load = 1;
  CHECK(order({loaded, hca(1, Distance::pix)}) == std::vector{1, 0});
  CHECK(order({hca(1, Distance::pix), hca(0, Distance::pix)}) == std::vector{0, 1});
  auto far_rail = hca(0, Distance::node), near_rail = hca(1, Distance::pix);
  far_rail.rail = 4;
  near_rail.rail = 5;
  CHECK(order({far_rail, near_rail}, 4) == std::vector{0, 1});
  CHECK(order({far_rail, near_rail}, 6) == std::vector{1, 0});
  CHECK(order({far_rail, near_rail}) == std::vector{1, 0});
}

TEST_CASE("HCAs that must not be used come last, each with its reason") {
  auto down = hca(0, Distance::pix), storage = hca(1, Distance::pix),
       excluded = hca(2, Distance::pix);
  down.active = false;
  storage.management = true;
  excluded.excluded = true;
  const auto thin = hca(3, Distance::pix, 400, 3.9);  // the two lanes of an NVLink switch's own HCA
  const auto fine = hca(4, Distance::sys);
  const std::vector<HcaCandidate> all{down, storage, excluded, thin, fine};
  CHECK(order_hcas(all) == std::vector<HcaChoice>{{4, Reason::none},
                                                  {0, Reason::port_down},
                                                  {1, Reason::mgmt_nic},
                                                  {2, Reason::hca_excluded},
                                                  {3, Reason::mgmt_nic}});
  CHECK(order_hcas({}).empty());
}

TEST_CASE("a quarter of the port's rate is the bound for management") {
  CHECK(looks_like_management(400, 3.9));
  CHECK_FALSE(looks_like_management(100, 3.9));
  CHECK_FALSE(looks_like_management(400, 12.5));
  CHECK(looks_like_management(400, 12.4));
  CHECK_FALSE(looks_like_management(0, 3.9));
  CHECK_FALSE(looks_like_management(400, 0));
}

TEST_CASE("GPUs with the same choices share them out") {
  // Two GPUs and two HCAs below each of two switches.
  const std::vector<HcaCandidate> left{hca(0, Distance::pix), hca(1, Distance::pix),
                                       hca(2, Distance::sys), hca(3, Distance::sys)};
  const std::vector<HcaCandidate> right{hca(0, Distance::sys), hca(1, Distance::sys),
                                        hca(2, Distance::pix), hca(3, Distance::pix)};
  CHECK(assign_hcas({left, left, right, right}) == std::vector{0, 1, 2, 3});
  CHECK(assign_hcas({left, left, left, left}) == std::vector{0, 1, 0, 1});
  CHECK(assign_hcas({}).empty());
  CHECK(assign_hcas({{}, {}}) == std::vector{-1, -1});
  auto down = hca(0, Distance::pix);
  down.active = false;
  CHECK(assign_hcas({{down}}) == std::vector{-1});
}

TEST_CASE("the order does not depend on the order of the candidates") {
  std::vector<HcaCandidate> all;
  for (int i = 0; i < 6; ++i)
    all.push_back(hca(i, static_cast<Distance>(i % 3), i % 2 == 0 ? 200 : 400));
  const std::vector<int> first = order(all);
  CHECK(first.size() == 6);
  for (int turn = 0; turn < 50; ++turn) {
    std::next_permutation(all.begin(), all.end(), [](const HcaCandidate& a, const HcaCandidate& b) {
      return a.hca < b.hca;
    });
    REQUIRE(order(all) == first);
  }
}

}  // namespace twinpath
