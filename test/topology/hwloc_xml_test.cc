// Files of hwloc with values that are none, and what they are read by.
#include "topology/read/hwloc_xml.h"

#include "test/topology/refusal.h"
#include "topology/read/cpu_mask.h"

using namespace twinpath;
using namespace twinpath::test;

TEST_CASE("XML of hwloc 3 and cut files of hwloc are refused in plain words") {
  const std::string xml = slurp(own_topologies() + "/two-sockets.hwloc.xml");
  REQUIRE(xml.size() > 1000);
  std::string third = xml;
  third.replace(third.find("version=\"2.0\""), 13, "version=\"3.0\"");
  CHECK(contains(refusal(third), "version '3.0'"));
  CHECK(contains(refusal(xml.substr(0, xml.size() / 2)), "cut off"));
}

TEST_CASE("a file of hwloc whose values are none is refused with the value") {
  const std::string xml = slurp(own_topologies() + "/two-sockets.hwloc.xml");
  struct Case {
    std::string from, to, told;
  };
  const Case cases[] = {
      {"type=\"Package\"", "type=\"Nonsense\"", "'Nonsense' is no type"},
      {"type=\"NUMANode\" os_index=\"0\"", "type=\"NUMANode\" os_index=\"-1\"", "os_index '-1'"},
      {"type=\"NUMANode\" os_index=\"0\"", "type=\"NUMANode\" os_index=\"1\"", "stands twice"},
      {"<object type=\"Machine\"", "<thing type=\"Machine\"", "line "},
      {"bridge_type=\"0-1\"", "bridge_type=\"7-1\"", "bridge_type '7-1'"},
      {"bridge_pci=\"0000:[", "bridge_pci=\"0000 [", "bridge_pci '0000 ["},
      {"pci_busid=\"0000:11:00.0", "pci_busid=\"0000:11:\x1b.0", "pci_busid '0000:11:?.0'"},
      {"pci_type=\"0302 [", "pci_type=\"0302 (", "pci_type '0302 ("},
      {"pci_link_speed=\"", "pci_link_speed=\"x", "pci_link_speed 'x"},
      {"name=\"mlx5_0\"", "nam=\"mlx5_0\"", "name ''"},
      // An entity is nothing that we follow; what it would have said is missing.
      {"<!DOCTYPE topology SYSTEM", "<!DOCTYPE topology [<!ENTITY a 'b'>] SYSTEM", "declarations"}};
  for (const Case& c : cases) {
    INFO(c.to);
    std::string broken = xml;
    REQUIRE(broken.find(c.from) != std::string::npos);
    broken.replace(broken.find(c.from), c.from.size(), c.to);
    CHECK(contains(refusal(broken), c.told.c_str()));
  }
  // A cpuset that nothing depends on may be damaged; one that places something may not.
  for (const char* type : {"NUMANode", "Package"}) {
    std::string broken = xml;
    const std::size_t at = broken.find(std::string("type=\"") + type);
    broken.replace(broken.find(" cpuset=", at), 8, " cpusex=");
    CHECK(contains(refusal(broken), "no set of CPUs"));
  }
}

TEST_CASE("what a file of hwloc says of its host is read by name") {
  std::string xml = slurp(own_topologies() + "/two-sockets.hwloc.xml");
  const std::string arch = "<info name=\"Architecture\" value=\"x86_64\"/>";
  REQUIRE(xml.find(arch) != std::string::npos);
  xml.insert(xml.find(arch), R"(<info name="HostName" value="node01"/>
    <info name="OSRelease" value="6.1.0"/> <info name="DMIProductName" value="a product"/>
    <info name="DMISysVendor" value="a vendor"/> )");
  std::string why;
  const auto m = parse_hwloc_xml(xml, why);
  REQUIRE(m);
  CHECK(m->host.hostname == "node01");
  CHECK(m->host.kernel == "6.1.0");
  CHECK(m->host.product == "a product");
  CHECK(m->host.vendor == "a vendor");
  CHECK(m->host.cpu.arch == "x86_64");
}

TEST_CASE("sets of CPUs are read as hwloc writes them") {
  auto mask = [](const char* text) {
    const auto m = CpuMask::parse(text);
    REQUIRE(m);
    return *m;
  };
  CHECK(mask("0x0").empty());
  CHECK(mask("0x00000000,,0x0").empty());
  CHECK_FALSE(mask("0x1,,0x0").empty());
  CHECK(mask("0x1,,0x0").within(mask("0x3,0x1,0x1")));
  CHECK_FALSE(mask("0x1,,0x0").within(mask("0xffffffff,0xffffffff")));
  CHECK(mask("0x1,,0x0").within(mask("0xf...f,0x0")));
  CHECK_FALSE(mask("0xf...f,0x0").within(mask("0xffffffff,0xffffffff")));
  for (const char* bad : {"", "x", "0x", "1", "0x1 ", "0x1,0xf...f", "0x123456789", "0x1,-"})
    CHECK_FALSE(CpuMask::parse(bad));
  std::string long_one = "0x1";
  for (int i = 0; i < 5000; ++i) long_one += ',';
  CHECK_FALSE(CpuMask::parse(long_one));
}

TEST_CASE("a file with more devices than a host has is refused before pairs are made") {
  std::string nccl = "<system><cpu numaid='0'>",
              hwloc = "<topology version='2.0'><object type='Machine' cpuset='0x1'>";
  for (int i = 0; i < 2000; ++i) {
    char bus[32];
    std::snprintf(bus, sizeof bus, "%04x:%02x:00.0", i >> 8, i & 0xff);
    nccl += std::string("<pci busid='") + bus + "' class='0x030200'/>";
    hwloc += std::string("<object type='PCIDev' pci_busid='") + bus +
             "' pci_type='0302 [10de:2330] [0000:0000] 00'/>";
  }
  CHECK(contains(refusal(nccl + "</cpu></system>"), "more than 1024"));
  CHECK(contains(refusal(hwloc + "</object></topology>"), "more than 1024"));
}
