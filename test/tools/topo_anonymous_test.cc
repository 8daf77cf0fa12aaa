// Archives for bug reports: what must not be left in them, and what must.
#include "test/support/catch.h"
#include "tools/topo/archive.h"

namespace twinpath::tools::topo {

TEST_CASE("addresses and names are replaced, what only looks like one is kept") {
  struct Case {
    const char *before, *after;
  };
  const Case cases[] = {
      {"node7 reaches node8.", "host-1 reaches host-2."},
      {"node7#1, node77, xnode7, node7-a", "host-1#1, node77, xnode7, node7-a"},
      {"node7.cluster.local: down", "host-3: down"},
      {"/home/bob/x.so", "/home/user-1/x.so"},
      {"GID index 3 is 10.1.2.3 (RoCE v2)", "GID index 3 is address-1 (RoCE v2)"},
      {"10.1.2.3/16; 10.1.2.3:29500, 10.1.2.4.", "address-1/16; address-1:29500, address-2."},
      {"fe80::1 and fd00:0:0:1::2.", "address-1 and address-2."},
      {"fe80:0000:0000:0000:0c42:a103:0000:0010", "address-1"},
      {"guid 0c42:a103:0000:0010, 0c42a10300000010", "guid address-1, address-2"},
      {"mac aa:bb:cc:dd:ee:ff", "mac address-1"},
      {"0000:a1:00.0 00000000:A1:00.0", "0000:a1:00.0 00000000:A1:00.0"},
      {"28.40.1000, 0.2.0 (0123456789ab), 580.95.05",
       "28.40.1000, 0.2.0 (0123456789ab), 580.95.05"},
      {"127.0.0.1 localhost ::1 0.0.0.0", "127.0.0.1 localhost ::1 0.0.0.0"},
      {"a: b: 12:30:00 dead beef mlx5_0:1", "a: b: 12:30:00 dead beef mlx5_0:1"},
      {"", ""}};
  for (const Case& c : cases) {
    INFO(c.before);
    Anonymous hide;
    hide.hide("host", "node7");
    hide.hide("host", "node8");
    hide.hide("host", "node7.cluster.local");
    hide.hide("host", "localhost");
    hide.hide("host", "");
    hide.hide("user", "bob");
    CHECK(hide(c.before) == c.after);
  }
}

TEST_CASE("one address has one word, in all texts") {
  Anonymous hide;
  CHECK(hide("10.0.0.1 10.0.0.2 10.0.0.1") == "address-1 address-2 address-1");
  CHECK(hide("10.0.0.2") == "address-2");
}

TEST_CASE("nothing of the facts is left in an anonymous archive") {
  HostCard c;
  c.name = "gpu12.lab.example";
  c.kernel = "6.1.0";
  RailFacts v4, v6;
  v4.name = "mlx5_0";
  v4.gid = "10.11.12.13";
  v4.network = parse_ip_range("10.11.12.13/24");
  v6.name = "mlx5_1";
  v6.gid = "fe80::e42:a1ff:fe03:10";
  v6.complaint = "mlx5_1:1: 3 is 2001:db8::77 (RoCE v2)";
  c.rails = {v4, v6};
  c.environment = {{"NCCL_COMM_ID", "10.11.12.13:29500"}, {"NCCL_TOPO_FILE", "/home/bob/topo.xml"}};
  c.found = {{"node", "x", {"gpu12 mlx5_0"}, Level::warn, "guid 0c42:a103:0000:0010", "none"}};
  const Findings findings{"gpu12.lab.example 10.11.12.13\n", card_json(c), {c}};
  Anonymous hide;
  hide_names(findings.cards, "bob", hide);
  const auto entries = archive_entries(findings, {{"sys", TarEntry::Kind::folder, {}, {}}}, &hide);
  REQUIRE(entries.size() == 4);
  std::string all;
  for (const TarEntry& e : entries) all += e.data;
  for (const char* secret :
       {"gpu12", "lab.example", "10.11.12", "e42:a1ff", "2001:db8", "bob", "0c42:a103"}) {
    INFO(secret);
    CHECK(all.find(secret) == std::string::npos);
  }
  for (const char* kept : {"mlx5_0", "host-1", "6.1.0", "29500", "topo.xml"}) {
    INFO(kept);
    CHECK(all.find(kept) != std::string::npos);
  }
  // And with names, where they are wanted.
  std::string plain;
  for (const TarEntry& e : archive_entries(findings, {}, nullptr)) plain += e.data;
  CHECK(plain.find("gpu12.lab.example") != std::string::npos);
}

}  // namespace twinpath::tools::topo
