// What the adapter of a process is made of, each part by itself.
#include <deque>
#include <string>

#include "plugin/fabric/soft/device_list.h"
#include "plugin/fabric/soft/objects.h"
#include "plugin/fabric/soft/port_rate.h"
#include "plugin/fabric/soft/qp_table.h"
#include "test/support/catch.h"

using namespace twinpath;
using namespace twinpath::soft;

TEST_CASE("queue pairs: numbers are of the process and go round", "[soft]") {
  constexpr std::uint32_t kSlot = 5;
  QpTable table;
  SoftQp stays, comes, goes;
  REQUIRE(table.add(stays, kSlot));
  CHECK(stays.qp_num >> kSlotShift == kSlot);
  CHECK(table.find(stays.qp_num) == &stays);
  CHECK(table.by_index()[stays.qp_num % kQpsPerProcess] == &stays);
  // A number that was given back is the last to be used again.
  REQUIRE(table.add(goes, kSlot));
  const std::uint32_t gone = goes.qp_num;
  table.remove(goes);
  CHECK(table.find(gone) == nullptr);
  CHECK(table.live() == std::vector<SoftQp*>{&stays});
  std::uint32_t others = 0;
  for (bool again = false; !again; ++others) {
    REQUIRE(table.add(comes, kSlot));
    again = comes.qp_num == gone;
    table.remove(comes);
    REQUIRE(others < kQpsPerProcess);
  }
  CHECK(others == kQpsPerProcess - 1);  // all but that of `stays`
}

TEST_CASE("queue pairs: another process's numbers name none of ours", "[soft]") {
  QpTable table;
  SoftQp qp;
  REQUIRE(table.add(qp, 5));
  CHECK(table.find(qp.qp_num + (1u << kSlotShift)) == nullptr);
  CHECK(table.find(qp.qp_num + 1) == nullptr);
}

TEST_CASE("queue pairs: there are as many as there are numbers", "[soft]") {
  const std::uint32_t slot = GENERATE(0u, kSlots - 1);
  const std::uint32_t management = slot == 0 ? 16 : 0;  // numbers that are not given
  QpTable table;
  std::deque<SoftQp> all(kQpsPerProcess - management);
  for (SoftQp& qp : all) {
    REQUIRE(table.add(qp, slot));
    REQUIRE(qp.qp_num >= 16);
  }
  CHECK(table.live().size() == all.size());
  SoftQp more;
  CHECK_FALSE(table.add(more, slot));
  table.remove(all[100]);
  REQUIRE(table.add(more, slot));
  CHECK(more.qp_num == all[100].qp_num);
}

TEST_CASE("devices: one that is asked for again is the same, and none goes", "[soft]") {
  const auto specs = [](const char* text) {
    std::string why;
    auto parsed = parse_device_specs(text, why);
    REQUIRE(parsed);
    return *parsed;
  };
  DeviceList list;
  list.show(specs("a,b,state=down,pci=/sys/none/1"), nullptr);
  REQUIRE(list.shown().size() == 2);
  SoftDevice *a = list.shown()[0], *b = list.shown()[1];
  CHECK(std::string(a->name) == "a");
  CHECK(std::string(b->dev_name) == "uverbs-b");
  CHECK(std::string(b->ibdev_path) == "/sys/none/1");
  CHECK(b->index == 1);
  CHECK(b->node_type == IBV_NODE_CA);
  CHECK_FALSE(b->port_up(1));

  list.show(specs("a,speed=100"), nullptr);  // another one of that name
  REQUIRE(list.shown().size() == 1);
  CHECK(list.shown()[0] != a);
  CHECK(list.shown()[0]->port_up(1));
  list.show(specs("b,state=down,pci=/sys/none/1,a"), nullptr);  // other places
  CHECK(list.shown()[0] != b);
  CHECK(list.shown()[1] != a);
  a->ports_down = ~0u;
  list.show(specs("a,b,state=down,pci=/sys/none/1"), nullptr);
  CHECK(list.shown() == std::vector{a, b});
  CHECK_FALSE(a->port_up(1));  // what it was is not forgotten
}

TEST_CASE("port rate: what is posted leaves behind what was posted before", "[soft]") {
  PortRate rate;
  CHECK(rate.left_at(1'000'000, 5) == 0);  // none is set
  rate.set(8000);                          // a byte each nanosecond
  CHECK(rate.left_at(1000, 10'000) == 11'000);
  CHECK(rate.left_at(500, 10'100) == 11'500);
  CHECK(rate.left_at(1, 20'000) == 20'001);  // the port was idle meanwhile
  rate.set(80);
  CHECK(rate.left_at(1, 20'000) == 20'100);
  rate.set(0);
  CHECK(rate.left_at(1, 20'000) == 0);
}

TEST_CASE("bells: the far one is rung for what is new, and once", "[soft]") {
  SoftQp qp;
  qp.link.join(std::move(Link::create_local()).take(), 0, 1);
  // Of a process that is dead, nobody is woken.
  qp.link.peer = std::make_shared<Peer>(1u, 2u, UniqueFd(), -1, SharedMemory());
  qp.link.peer->dead = true;
  std::atomic<std::uint32_t>& wanted = qp.link.their_bell->wanted;
  const auto takes = [&] {
    wanted = kBellWake;
    ring_far_bell(qp);
    return wanted == 0;
  };
  CHECK_FALSE(takes());
  qp.link.mine->produced = 1;
  CHECK(takes());
  CHECK_FALSE(takes());
  qp.link.mine->consumed = 1;
  CHECK(takes());
  CHECK_FALSE(takes());
}
