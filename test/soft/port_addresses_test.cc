// Addresses of ports, and links that wait for whom they were offered to.
#include "plugin/fabric/soft/port_addresses.h"

#include <set>
#include <string>

#include "plugin/fabric/soft/offers.h"
#include "test/support/catch.h"

using namespace twinpath;
using namespace twinpath::soft;

namespace {

constexpr GidKind kPlain{true, false, 2}, kMapped{true, true, 2};

std::string text(const ibv_gid& gid) {
  return {reinterpret_cast<const char*>(gid.raw), sizeof gid.raw};
}

std::shared_ptr<Link> link() { return std::move(Link::create_local()).take(); }

}  // namespace

TEST_CASE("port addresses: no two ports of a job have the same", "[soft]") {
  const PortAddresses job(GENERATE(0u, 1u, 100u, 0xffffffffu, 0x12345678u));
  std::set<std::string> gids;
  std::set<unsigned> lids;
  for (int device = 0; device < 32; ++device) {
    for (int port = 1; port <= 8; ++port) {
      for (const GidKind& kind : {kPlain, kMapped}) gids.insert(text(job.gid(device, port, kind)));
      const std::uint16_t lid = job.lid(device, port);
      lids.insert(lid);
      CHECK((lid > 0 && lid < 0xc000));  // unicast
    }
  }
  CHECK(gids.size() == 2 * 32 * 8);
  CHECK(lids.size() == 32 * 8);
  CHECK((text(job.gid(0, 1, GidKind{})) == std::string(16, '\0')));
}

TEST_CASE("port addresses: another job's are told apart", "[soft]") {
  const PortAddresses one(0x00c0ffee), other(0x01c0ffee);
  const PortAddresses near(0x00c0ffee + 126 * 0x10000);  // the same class A network
  for (const GidKind& kind : {kPlain, kMapped}) {
    CHECK(one.is_own(one.gid(3, 1, kind), kind));
    CHECK(one.is_own(one.gid(9, 2, kind), kind));
    CHECK_FALSE(one.is_own(other.gid(3, 1, kind), kind));
    CHECK_FALSE(one.is_own(near.gid(3, 1, kind), kind));
  }
  CHECK(one.is_own(one.lid(31, 7)));
  CHECK_FALSE(PortAddresses(0).is_own(0));  // nobody's
  CHECK_FALSE(one.is_own(other.lid(31, 7)));
  for (std::uint32_t hash = 0; hash < 300; ++hash) {
    const ibv_gid gid = PortAddresses(hash).gid(0, 1, kMapped);
    CHECK((gid.raw[12] > 0 && gid.raw[12] < 127));
  }
}

TEST_CASE("offers: a link is for one queue pair from one other, once", "[soft]") {
  Offers offers;
  const auto a = link(), b = link();
  offers.add(16, 17, a);
  offers.add(17, 16, b);
  CHECK(offers.take(16, 18) == nullptr);
  CHECK(offers.take(16, 17) == a);
  CHECK(offers.take(16, 17) == nullptr);
  CHECK(a.use_count() == 1);
  offers.add(17, 16, a);  // instead of b
  CHECK(b.use_count() == 1);
  CHECK(offers.take(17, 16) == a);
}

TEST_CASE("offers: a queue pair that is no more has none", "[soft]") {
  Offers offers;
  const auto a = link(), b = link();
  offers.add(16, 17, a);
  offers.add(16, 18, a);
  offers.add(17, 16, b);
  offers.forget(16);
  CHECK(a.use_count() == 1);
  CHECK(offers.take(16, 17) == nullptr);
  CHECK(offers.take(17, 16) == b);
}

TEST_CASE("offers: there is an end to what others may leave here", "[soft]") {
  Offers offers;
  const auto a = link();
  for (std::uint32_t i = 0; i < 2 * kQpsPerProcess; ++i) {
    REQUIRE_FALSE(offers.is_full());
    offers.add(16 + i % 2, 100 + i, a);
  }
  CHECK(offers.is_full());
  CHECK(offers.take(16, 100) == a);
  CHECK_FALSE(offers.is_full());
}
