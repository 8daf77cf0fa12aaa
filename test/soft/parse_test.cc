// TWINPATH_SOFT_HCAS and TWINPATH_SOFT_FAULTS: what is accepted and what is said of the rest.
#include "plugin/fabric/soft/device_spec.h"
#include "plugin/fabric/soft/faults.h"
#include "plugin/fabric/soft/objects.h"
#include "test/support/catch.h"

using namespace twinpath::soft;

TEST_CASE("device specifications name adapters and their properties", "[soft]") {
  std::string why;
  auto d = parse_device_specs(
      "soft0,speed=200,ports=2,pci=/sys/none/"
      "0000:17:00.0,left,mtu=1024,state=down,link=ib,ece=5,peermem=yes,pkeys=65535:0x8001,mlx5=no-"
      "cd:both-"
      "clocks",
      why);
  REQUIRE(d);
  REQUIRE(d->size() == 2);
  CHECK((*d)[0].name == "soft0");
  CHECK((*d)[0].speed_gbps == 200);
  CHECK((*d)[0].ports == 2);
  CHECK((*d)[0].pci_path == "/sys/none/0000:17:00.0");
  CHECK((*d)[0].up);
  CHECK((*d)[1].name == "left");
  CHECK((*d)[1].mtu == 1024);
  CHECK_FALSE((*d)[1].up);
  CHECK_FALSE((*d)[0].infiniband);
  CHECK((*d)[1].infiniband);
  CHECK((*d)[0].ece == 0);
  CHECK((*d)[1].ece == 5);
  CHECK_FALSE((*d)[0].peermem);
  CHECK((*d)[1].peermem);
  CHECK((*d)[0].pkeys == std::vector<std::uint16_t>{0xffff});
  CHECK((*d)[1].pkeys == std::vector<std::uint16_t>{0xffff, 0x8001});
  CHECK((*d)[0].mlx5 == mlx5::Variant{});
  CHECK((*d)[1].mlx5 == mlx5::Variant{.clocks = mlx5::Clocks::both, .waits = false});
  d = parse_device_specs("4", why);
  REQUIRE(d);
  CHECK(d->size() == 4);
  CHECK(d->back().name == "soft3");
}

TEST_CASE("an adapter like another has its name, its speed and its kind of port", "[soft][like]") {
  std::string why;
  auto d =
      parse_device_specs("soft0,like=mana,soft7,speed=200,like=mlx5-xdr,left,like=bnxt_re", why);
  REQUIRE(d);
  REQUIRE(d->size() == 3);
  CHECK((*d)[0].name == "mana_0");
  CHECK((*d)[0].speed_gbps == 100);
  CHECK((*d)[1].name == "mlx5_7");
  CHECK((*d)[1].speed_gbps == 200);
  CHECK((*d)[1].infiniband);
  CHECK((*d)[2].name == "left");
  CHECK((*d)[2].like == find_personality("bnxt_re"));
  d = parse_device_specs("2,mtu=1024,like=ionic,soft0,speed=25", why);
  REQUIRE(d);
  REQUIRE(d->size() == 3);
  CHECK((*d)[1].name == "ionic_1");
  CHECK((*d)[0].mtu == 1024);
  CHECK((*d)[1].mtu == 1024);
  CHECK((*d)[2].name == "soft0");
  CHECK((*d)[2].like == &own_personality());
  CHECK(parse_device_specs("soft0,speed=800,like=mana", why)->front().speed_gbps == 100);
}

TEST_CASE("a bad device specification is refused with the item quoted", "[soft]") {
  struct Case {
    const char* text;
    const char* said;
  };
  auto c = GENERATE(Case{"", "no adapter"}, Case{"speed=100", "before any adapter"},
                    Case{"soft0,speed=fast", "speed=fast"}, Case{"soft0,speed=0", "1 to 6400"},
                    Case{"soft0,ports=9", "1 to 8"}, Case{"soft0,colour=red", "colour"},
                    Case{"soft0,soft0", "twice"}, Case{"so ft", "not an adapter name"},
                    Case{"soft0,mtu=1500", "1024"}, Case{"soft0,state=maybe", "up or down"},
                    Case{"soft0,link=IB", "roce or ib"}, Case{"soft0,ece=0", "1 to 255"},
                    Case{"soft0,peermem=1", "yes or no"}, Case{"soft0,pkeys=", "1 to 32"},
                    Case{"soft0,pkeys=1:65536", "1 to 32"}, Case{"soft0,pkeys=1::2", "1 to 32"},
                    Case{"soft0,pkeys=0x", "1 to 32"}, Case{"soft0,like=mellanox", "bnxt_re"},
                    Case{"soft0,like=", "bnxt_re"}, Case{"soft0,like=mana,mana_0", "twice"},
                    Case{"soft0,link=ib,like=mana", "mana is Ethernet"},
                    Case{"soft0,like=mlx5-ib,link=roce", "mlx5-ib is InfiniBand"},
                    Case{"soft0,ece=3,like=ionic", "no such options"},
                    Case{"soft0,mlx5=", "shared-page"}, Case{"soft0,mlx5=no-cd:", "no-devx"},
                    Case{"soft0,mlx5=no-CD", "mlx5=no-CD"},
                    Case{"a,ports=8,b,ports=8,c,ports=8,d,ports=8,e", "32"});
  std::string why;
  CHECK_FALSE(parse_device_specs(c.text, why));
  CHECK(why.find(c.said) != std::string::npos);
}

TEST_CASE("a port fails at the times that its fault names, from the first look on", "[soft]") {
  std::string why;
  const auto up_at = [&](const char* text, std::vector<std::int64_t> ms) {
    Faults f;
    REQUIRE(f.set(text, why));
    std::string up;
    constexpr std::int64_t kFirst = 7'000'000'123;
    CHECK(f.is_failing_port_up(kFirst));
    for (std::int64_t m : ms) up += f.is_failing_port_up(kFirst + m * 1'000'000) ? "u" : "d";
    return up;
  };
  CHECK(up_at("down_device=1", {999, 1000, 100'000}) == "udd");
  CHECK(up_at("down_device=1,down_at_ms=10,down_ms=5", {9, 10, 14, 15, 100'000}) == "udduu");
  CHECK(up_at("down_device=1,down_at_ms=10,down_ms=5,down_every_ms=20",
              {9, 10, 14, 15, 29, 30, 34, 35, 50}) == "udduuddud");
}

TEST_CASE("one atomic at a time is split", "[soft]") {
  Faults f;
  SoftQp one, other;
  CHECK(f.begin_split(&one));
  CHECK_FALSE(f.begin_split(&other));
  CHECK_FALSE(f.begin_split(&one));
  f.end_split();
  CHECK(f.begin_split(&other));
}

TEST_CASE("fault lists are parsed whole or refused", "[soft]") {
  Faults f;
  std::string why;
  REQUIRE(f.set("fail_send=2,delay_us=10", why));
  CHECK(f.any());
  CHECK(f.delay_us() == 10);
  CHECK_FALSE(f.next_send_fails());
  CHECK(f.next_send_fails());
  CHECK_FALSE(f.next_send_fails());
  CHECK(f.late_us() == 0);
  Faults order;
  REQUIRE(order.set("late_us=7,split_us=8", why));
  CHECK(order.any());
  CHECK(order.late_us() == 7);
  CHECK(order.split_us() == 8);
  CHECK_FALSE(order.next_send_fails());
  for (const char* bad : {"fail_send", "fail_send=", "fail_send=x", "fail_send=0", "nothing=1"}) {
    Faults g;
    CHECK_FALSE(g.set(bad, why));
    CHECK_FALSE(g.any());
    CHECK(why.find("not a fault") != std::string::npos);
  }
  Faults moves;
  REQUIRE(moves.set("fail_rtr=2,fail_rts=1", why));
  CHECK(moves.any());
  CHECK_FALSE(moves.next_move_fails(IBV_QPS_INIT));
  CHECK(moves.next_move_fails(IBV_QPS_RTR));
  CHECK(moves.next_move_fails(IBV_QPS_RTR));
  CHECK_FALSE(moves.next_move_fails(IBV_QPS_RTR));
  CHECK(moves.next_move_fails(IBV_QPS_RTS));
  CHECK_FALSE(moves.next_move_fails(IBV_QPS_RTS));
  CHECK_FALSE(moves.next_move_fails(IBV_QPS_ERR));
  Faults none;
  REQUIRE(none.set("", why));
  CHECK_FALSE(none.any());
}
