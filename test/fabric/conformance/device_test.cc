// Devices, ports, GIDs and P_Keys: what an adapter says about itself.
#include <cerrno>
#include <cstring>
#include <set>

#include "test/fabric/conformance/endpoint.h"

using namespace twinpath::conformance;

namespace {

ibv_device_attr attributes(ibv_context* context) {
  ibv_device_attr a{};
  REQUIRE(ibv_query_device(context, &a) == 0);
  return a;
}

}  // namespace

TEST_CASE("the device list ends with null after as many devices as it counts", "[device]") {
  int n = -1;
  ibv_device** list = ibv_get_device_list(&n);
  REQUIRE(list != nullptr);
  CHECK(n >= 2);
  std::set<std::string> names;
  int seen = 0;
  for (; list[seen] != nullptr; ++seen) names.insert(ibv_get_device_name(list[seen]));
  CHECK(seen == n);
  CHECK(names.size() == static_cast<std::size_t>(n));
  ibv_free_device_list(list);
}

TEST_CASE("a device stays usable after its list has been freed", "[device]") {
  const Context c = open_device(0);  // frees the list
  CHECK(ibv_get_device_name(c->device) == device_name(0));
  CHECK(attributes(c.get()).phys_port_cnt >= 1);
}

TEST_CASE("the GUID of the device list is the node GUID of the opened device", "[device]") {
  const Context c = open_device(0);
  CHECK(attributes(c.get()).node_guid == ibv_get_device_guid(c->device));
}

TEST_CASE("two devices have different GUIDs and different GIDs", "[device]") {
  const Context c = open_device(0), d = open_device(1);
  CHECK(ibv_get_device_guid(c->device) != ibv_get_device_guid(d->device));
  ibv_gid g{}, h{};
  REQUIRE(ibv_query_gid(c.get(), kPort, gid_index(c.get()), &g) == 0);
  REQUIRE(ibv_query_gid(d.get(), kPort, gid_index(d.get()), &h) == 0);
  CHECK(std::memcmp(g.raw, h.raw, sizeof g.raw) != 0);
}

TEST_CASE("a device reports limits that a program can live with", "[device]") {
  const Context c = open_device(0);
  const ibv_device_attr a = attributes(c.get());
  CHECK(a.max_qp >= 64);
  CHECK(a.max_cq >= 64);
  CHECK(a.max_mr >= 64);
  CHECK(a.max_pd >= 1);
  CHECK(a.max_qp_wr >= 256);
  CHECK(a.max_cqe >= 256);
  CHECK(a.max_sge >= 1);
  CHECK(a.max_mr_size >= 1u << 30);
  CHECK(a.max_qp_rd_atom >= 1);
  CHECK((a.page_size_cap & 4096) != 0);
}

TEST_CASE("a device names the atomicity that it offers", "[device]") {
  const Context c = open_device(0);
  const ibv_atomic_cap cap = attributes(c.get()).atomic_cap;
  CHECK((cap == IBV_ATOMIC_NONE || cap == IBV_ATOMIC_HCA || cap == IBV_ATOMIC_GLOB));
}

TEST_CASE("the extended device query agrees with the plain one", "[device]") {
  const Context c = open_device(0);
  const ibv_device_attr a = attributes(c.get());
  ibv_device_attr_ex x{};
  REQUIRE(ibv_query_device_ex(c.get(), nullptr, &x) == 0);
  CHECK(x.orig_attr.node_guid == a.node_guid);
  CHECK(x.orig_attr.max_qp == a.max_qp);
  CHECK(x.orig_attr.max_cqe == a.max_cqe);
  CHECK(x.orig_attr.phys_port_cnt == a.phys_port_cnt);
}

TEST_CASE("two contexts of one device live and die on their own", "[device]") {
  Context c = open_device(0), d = open_device(0);
  Pd pd(ibv_alloc_pd(d.get()));
  c.reset();
  CHECK(pd != nullptr);
  CHECK(attributes(d.get()).phys_port_cnt >= 1);
  CHECK(ibv_dealloc_pd(pd.release()) == 0);
}

TEST_CASE("the port is active with an MTU within its maximum", "[device]") {
  const Context c = open_device(0);
  ibv_port_attr p{};
  REQUIRE(ibv_query_port(c.get(), kPort, &p) == 0);
  CHECK(p.state == IBV_PORT_ACTIVE);
  CHECK(p.phys_state == 5);  // LinkUp
  CHECK((p.link_layer == IBV_LINK_LAYER_ETHERNET || p.link_layer == IBV_LINK_LAYER_INFINIBAND));
  CHECK((p.lid != 0) == (p.link_layer == IBV_LINK_LAYER_INFINIBAND || deviates("lid-on-ethernet")));
  CHECK(p.active_mtu >= IBV_MTU_256);
  CHECK(p.active_mtu <= p.max_mtu);
  if (deviates("no-message-size")) {
    CHECK(p.max_msg_sz == 0);
  } else {
    CHECK(p.max_msg_sz >= 1u << 20);
  }
  CHECK(p.gid_tbl_len > gid_index(c.get()));
  CHECK(p.pkey_tbl_len >= 1);
}

TEST_CASE("the port reports a speed and a width of the specification's codes", "[device]") {
  const Context c = open_device(0);
  ibv_port_attr p{};
  REQUIRE(ibv_query_port(c.get(), kPort, &p) == 0);
  const std::set<int> widths{1, 2, 4, 8, 16}, speeds{1, 2, 4, 8, 16, 32, 64, 128};
  CHECK(widths.count(p.active_width) == 1);
  CHECK(speeds.count(p.active_speed) == 1);
}

TEST_CASE("port 0 is refused", "[device]") {
  const Context c = open_device(0);
  ibv_port_attr p{};
  CHECK(ibv_query_port(c.get(), 0, &p) == EINVAL);
}

TEST_CASE("a port after the last is refused", "[device]") {
  const Context c = open_device(0);
  ibv_port_attr p{};
  const int after = attributes(c.get()).phys_port_cnt + 1;
  CHECK(ibv_query_port(c.get(), static_cast<std::uint8_t>(after), &p) == EINVAL);
}

TEST_CASE("GID 0 is a link-local IPv6 address", "[device]") {
  const Context c = open_device(0);
  ibv_gid g{};
  REQUIRE(ibv_query_gid(c.get(), kPort, 0, &g) == 0);
  CHECK(int{g.raw[0]} == 0xfe);
  CHECK(int{g.raw[1]} == 0x80);
}

TEST_CASE("the extended GID query says of which kind a GID is, and gives the same one",
          "[device]") {
  const Context c = open_device(0);
  ibv_gid g{};
  ibv_gid_entry e{};
  const int index = gid_index(c.get());  // on Ethernet RoCE v2 with an IPv4-mapped address
  REQUIRE(ibv_query_gid(c.get(), kPort, index, &g) == 0);
  REQUIRE(ibv_query_gid_ex(c.get(), kPort, static_cast<std::uint32_t>(index), &e, 0) == 0);
  CHECK((e.gid_type == IBV_GID_TYPE_IB) == is_infiniband(c.get()));
  CHECK(e.gid_index == static_cast<std::uint32_t>(index));
  CHECK(std::memcmp(e.gid.raw, g.raw, sizeof g.raw) == 0);
}

TEST_CASE("a GID beyond the table is refused", "[device]") {
  const Context c = open_device(0);
  ibv_port_attr p{};
  ibv_gid g{};
  REQUIRE(ibv_query_port(c.get(), kPort, &p) == 0);
  CHECK(ibv_query_gid(c.get(), kPort, p.gid_tbl_len, &g) != 0);
  ibv_gid_entry e{};
  CHECK(ibv_query_gid_ex(c.get(), kPort, static_cast<std::uint32_t>(p.gid_tbl_len), &e, 0) != 0);
}

TEST_CASE("a GID of a port that is not there is refused", "[device]") {
  const Context c = open_device(0);
  ibv_gid g{};
  CHECK(ibv_query_gid(c.get(), 9, 0, &g) != 0);
  ibv_gid_entry e{};
  CHECK(ibv_query_gid_ex(c.get(), 9, 0, &e, 0) != 0);
}

TEST_CASE("P_Key 0 is the default partition, full membership", "[device]") {
  const Context c = open_device(0);
  __be16 key = 0;
  REQUIRE(ibv_query_pkey(c.get(), kPort, 0, &key) == 0);
  CHECK(int{key} == 0xffff);
}

TEST_CASE("a P_Key beyond the table is refused", "[device]") {
  const Context c = open_device(0);
  ibv_port_attr p{};
  REQUIRE(ibv_query_port(c.get(), kPort, &p) == 0);
  __be16 key = 0;
  CHECK(ibv_query_pkey(c.get(), kPort, p.pkey_tbl_len, &key) != 0);
  CHECK(ibv_query_pkey(c.get(), 9, 0, &key) != 0);
}

TEST_CASE("a fresh context has no asynchronous event", "[device]") {
  const Context c = open_device(0);
  CHECK(c->async_fd >= 0);
  CHECK_FALSE(readable(c->async_fd, kQuiet));
}
