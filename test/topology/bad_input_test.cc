// What people and machines give that is not what we expect.
#include <sys/stat.h>

#include <filesystem>

#include "test/support/catch.h"
#include "test/support/needs.h"
#include "test/topology/data.h"
#include "test/topology/fake_machine.h"
#include "test/topology/refusal.h"
#include "topology/model/distance_rule.h"
#include "topology/model/pci_ids.h"
#include "topology/read/config_space.h"
#include "topology/read/file_root.h"
#include "topology/read/hwloc_xml.h"
#include "topology/read/nccl_xml.h"
#include "topology/read/read_machine.h"
#include "topology/read/sysfs_reader.h"
#include "topology/read/xml_parser.h"

using namespace twinpath;
using namespace twinpath::test;

namespace {

const char* const kNccl =
    "<system version=\"1\">\n"
    "  <cpu numaid=\"0\">\n"
    "    <pci busid=\"0000:11:00.0\" class=\"0x060400\">\n"
    "      <pci busid=\"0000:12:00.0\" class=\"0x030200\"/>\n"
    "      <pci busid=\"0000:13:00.0\" class=\"0x020700\"/>\n"
    "    </pci>\n"
    "  </cpu>\n"
    "</system>\n";

FakeMachine small() {
  FakeMachine m;
  m.node(0, 0);
  m.node(1, 1);
  return m;
}

Machine read_fake(const FakeMachine& fake, const std::string& root) {
  fake.write(root);
  std::string why;
  const auto m = read_sysfs(root, why);
  REQUIRE(m);
  REQUIRE(check_machine(*m) == "");
  return *m;
}

}  // namespace

TEST_CASE("input that is no topology is refused with its name and the cause") {
  CHECK(contains(refusal("hello"), "neither a topology of hwloc"));
  CHECK(contains(refusal(""), "neither a topology of hwloc"));
  CHECK(contains(refusal("<html><body/></html>"), "neither a topology of hwloc"));
  std::string why;
  CHECK_FALSE(read_machine({.path = "/nonexistent/file"}, why));
  CHECK(why == "/nonexistent/file: no such file or folder");
  const TemporaryFolder empty;
  CHECK_FALSE(read_machine({.path = empty.path()}, why));
  CHECK(contains(why, "sys/devices"));
  CHECK_FALSE(parse_nccl_xml("<topology version=\"2.0\"/>", why));
  CHECK(contains(why, "looks like hwloc's"));
  CHECK_FALSE(parse_hwloc_xml(kNccl, why));
  CHECK(contains(why, "looks like NCCL's"));
}

TEST_CASE("a cut NCCL file is refused wherever it is cut") {
  const std::string whole = kNccl;
  std::string why;
  REQUIRE(parse_nccl_xml(whole, why));
  for (std::size_t n = 0; n < whole.find("</system>"); ++n) {
    INFO("first " << n << " bytes");
    why.clear();
    CHECK_FALSE(parse_nccl_xml(whole.substr(0, n), why));
    CHECK_FALSE(why.empty());
  }
  CHECK(contains(refusal(whole.substr(0, 120)), "line "));
}

TEST_CASE("NCCL files with bad values are refused") {
  std::string why;
  auto refused = [&](const char* text) {
    why.clear();
    return !parse_nccl_xml(text, why) && !why.empty();
  };
  CHECK(refused("<system/>"));
  CHECK(contains(why, "no <cpu>"));
  CHECK(refused("<system><cpu numaid='zero'/></system>"));
  CHECK(contains(why, "the numaid 'zero' of a <cpu> is no number"));
  CHECK(refused("<system><cpu numaid='0'><pci busid='zz' class='0x030000'/></cpu></system>"));
  CHECK(contains(why, "'zz' is not a PCI address"));
  CHECK(
      refused("<system><cpu numaid='0'><pci busid='1:00.0' class='0x030000'/>"
              "<pci busid='1:00.0' class='0x030000'/></cpu></system>"));
  CHECK(contains(why, "stands twice"));
  CHECK(refused("<!DOCTYPE x [<!ENTITY a 'b'>]><system/>"));
  CHECK(contains(why, "declarations"));
  std::string deep = "<system><cpu numaid='0'>";
  for (int i = 0; i < 100; ++i) deep += "<pci busid='0:00.0' class='0x060400'>";
  CHECK(refused(deep.c_str()));
  CHECK(contains(why, "too deeply"));
}

TEST_CASE("a machine without GPUs or without HCAs is a machine") {
  const TemporaryFolder a, b, c;
  FakeMachine no_gpu = small();
  no_gpu.hca("pci0000:00/0000:00:01.0/0000:01:00.0", 0, "mlx5_0", 1);
  CHECK(read_fake(no_gpu, a.path()).hcas.size() == 1);
  FakeMachine no_hca = small();
  no_hca.gpu("pci0000:00/0000:00:01.0/0000:01:00.0", 0);
  CHECK(read_fake(no_hca, b.path()).gpus.size() == 1);
  const Machine none = read_fake(small(), c.path());
  CHECK(none.gpus.empty());
  CHECK(none.hcas.empty());
  CHECK(none.numa_nodes.size() == 2);
  CHECK(contains(write_nccl_xml(none), "<system"));
}

TEST_CASE("a GPU without a parent is placed by its NUMA node only, and that is said") {
  FakeMachine fake = small();
  fake.hca("pci0000:00/0000:00:01.0/0000:01:00.0", 0, "mlx5_0", 1);
  const TemporaryFolder folder;
  fake.write(folder.path());
  // As some virtual machines have it: the function hangs on a platform device, not on a bridge.
  FakeMachine orphan = small();
  orphan.gpu("platform/0001:00:00.0", 0);
  orphan.write(folder.path());
  std::string why;
  const auto m = read_sysfs(folder.path(), why);
  REQUIRE(m);
  REQUIRE(m->gpus.size() == 1);
  CHECK_FALSE(m->gpus[0].pci.parent);
  CHECK(m->has_warning("GPU_NO_PARENT"));
  CHECK(gpu_to_hca(*m, m->gpus[0], m->hcas[0]).distance == Distance::node);
}

TEST_CASE("an adapter of another transport is known by its node type, else by its id") {
  FakeMachine fake = small();
  for (int i = 0; i < 4; ++i)
    fake.hca("pci0000:00/0000:00:0" + std::to_string(i + 1) + ".0/0000:0" + std::to_string(i + 1) +
                 ":00.0",
             0, "hca" + std::to_string(i), static_cast<std::uint64_t>(i) + 1);
  fake.at("0000:03:00.0").id = {kAmazon, 0xefa2, 0, 0, 0x020000};
  const TemporaryFolder folder;
  fake.write(folder.path());
  const std::string infiniband = folder.path() + "/sys/class/infiniband/";
  spill(infiniband + "hca0/node_type", "1: CA\n");
  spill(infiniband + "hca1/node_type", "4: RNIC\n");
  spill(infiniband + "hca3/node_type", "7: unspecified\n");
  std::string why;
  const auto m = read_sysfs(folder.path(), why);
  REQUIRE(m);
  CHECK(m->find_hca("hca0")->foreign.empty());
  CHECK(m->find_hca("hca1")->foreign == "iWARP");
  CHECK(m->find_hca("hca2")->foreign == "EFA");
  CHECK(m->find_hca("hca3")->foreign == "a transport of its own");
}

TEST_CASE("an adapter that a driver has taken is of its family, whatever its id") {
  const TemporaryFolder folder;
  FakeMachine fake;
  fake.node(0, 0);
  fake.hca("pci0000:10/0000:10:01.0/0000:11:00.0", 0, "mlx5_0", 0x11).id = {0x1af4, 0x1110, 0, 0,
                                                                            0x020700};
  fake.hca("pci0000:10/0000:10:02.0/0000:12:00.0", 0, "other", 0x12).id = {0x1af4, 0x1110, 0, 0,
                                                                           0x020700};
  fake.write(folder.path());
  std::filesystem::create_symlink(
      "../../../bus/pci/drivers/mlx5_core",
      folder.path() + "/sys/devices/pci0000:10/0000:10:01.0/0000:11:00.0/driver");
  std::string why;
  const auto m = read_sysfs(folder.path(), why);
  REQUIRE(m);
  REQUIRE(m->find_hca("mlx5_0") != nullptr);
  CHECK(m->find_hca("mlx5_0")->kind == HcaKind::mlx5);
  REQUIRE(m->find_hca("other") != nullptr);
  CHECK(m->find_hca("other")->kind == HcaKind::other);
}

TEST_CASE("a port has the whole Gb/s that its rate begins with, and none where that is no rate") {
  FakeMachine fake = small();
  const std::string path = "pci0000:00/0000:00:01.0/0000:01:00.0";
  fake.hca(path, 0, "mlx5_0", 5);
  struct Row {
    const char* rate;
    std::optional<int> gbps;
  };
  for (const Row& row : {Row{"2.5 Gb/sec (1X SDR)\n", 2}, Row{"1 Gb/sec\n", 1},
                         Row{"800 Gb/sec (4X XDR)\n", 800}, Row{"0 Gb/sec\n", {}},
                         Row{"-1 Gb/sec\n", {}}, Row{"400\n", {}}, Row{"fast Gb/sec\n", {}}}) {
    CAPTURE(row.rate);
    const TemporaryFolder folder;
    fake.write(folder.path());
    spill(folder.path() + "/sys/devices/" + path + "/infiniband/mlx5_0/ports/1/rate", row.rate);
    std::string why;
    const auto m = read_sysfs(folder.path(), why);
    REQUIRE(m);
    CHECK(m->hcas.at(0).ports.at(0).gbps == row.gbps);
  }
}

TEST_CASE("the limit of locked memory is the soft one, in bytes, or all ones") {
  struct Row {
    const char* soft;
    std::optional<std::uint64_t> bytes;
  };
  for (const Row& row :
       {Row{"unlimited", ~std::uint64_t{0}}, Row{"65536", 65536}, Row{"much", {}}}) {
    CAPTURE(row.soft);
    const TemporaryFolder folder;
    spill(folder.path() + "/proc/self/limits",
          std::string("Limit  Soft Limit  Hard Limit  Units\nMax locked memory         ") +
              row.soft + "   8192   bytes\n");
    CHECK(read_fake(small(), folder.path()).host.memlock == row.bytes);
  }
}

TEST_CASE("a bridge that only emulators have makes a virtual machine of a host without a name") {
  FakeMachine fake = small();
  fake.gpu("pci0000:00/0000:00:01.0/0000:01:00.0", 0);
  for (const bool emulated : {false, true}) {
    if (emulated) fake.at("0000:00:01.0").id = {0x1b36, 0x000c, 0, 0, 0x060400};
    std::string why;
    const auto m = parse_hwloc_xml(fake.hwloc_xml(), why);
    REQUIRE(m);
    CHECK((m->host.virtual_machine == true) == emulated);
  }
}

TEST_CASE("an adapter with half of the others' PCIe link is for data, with an eighth it is not") {
  for (const double gts : {16.0, 5.0}) {
    FakeMachine fake = small();
    fake.hca("pci0000:00/0000:00:01.0/0000:01:00.0", 0, "mlx5_0", 5);
    fake.hca("pci0000:00/0000:00:02.0/0000:02:00.0", 0, "mlx5_1", 6);
    fake.at("0000:01:00.0").gts = fake.at("0000:01:00.0").max_gts = gts;
    const TemporaryFolder folder;
    const Machine m = read_fake(fake, folder.path());
    CHECK(m.find_hca("mlx5_1")->role == HcaRole::data);
    CHECK((m.find_hca("mlx5_0")->role == HcaRole::management) == (gts < 8));
    CHECK((m.find_hca("mlx5_0")->role_reason.find("others have") != std::string::npos) ==
          (gts < 8));
    CHECK(m.has_warning("MGMT_NIC") == (gts < 8));
  }
}

TEST_CASE("two HCAs with one GUID are both there, and told") {
  FakeMachine fake = small();
  fake.hca("pci0000:00/0000:00:01.0/0000:01:00.0", 0, "mlx5_0", 0x77);
  fake.hca("pci0000:00/0000:00:02.0/0000:02:00.0", 0, "mlx5_1", 0x77);
  const TemporaryFolder folder;
  const Machine m = read_fake(fake, folder.path());
  CHECK(m.hcas.size() == 2);
  CHECK(m.has_warning("GUID_SHARED"));
  CHECK(m.hcas[0].sys_image_guid == m.hcas[1].sys_image_guid);
}

TEST_CASE("domains beyond 16 bits, which hwloc leaves out, are read from sysfs") {
  FakeMachine fake = small();
  fake.gpu("pci0000:00/0000:00:0e.0/pci10000:e0/10000:e0:01.0/10000:e1:00.0", 0);
  fake.hca("pci0000:00/0000:00:0e.0/pci10000:e0/10000:e0:02.0/10000:e2:00.0", 0, "mlx5_0", 5);
  const TemporaryFolder folder;
  fake.write(folder.path());
  std::string why;
  const auto m = read_machine({.path = folder.path()}, why);
  REQUIRE(m);
  REQUIRE(m->gpus.size() == 1);
  CHECK(m->gpus[0].pci.bus.text() == "10000:e1:00.0");
  CHECK(gpu_to_hca(*m, m->gpus[0], m->hcas[0]).distance == Distance::phb);
  CHECK_FALSE(m->has_warning("HWLOC_BLIND"));  // it cannot, so nothing is wrong
}

TEST_CASE("a host number that the file does not have is refused") {
  const TemporaryFolder folder;
  spill(folder.path() + "/x.xml", kNccl);
  std::string why;
  CHECK(read_machine({.path = folder.path() + "/x.xml", .host = 0}, why));
  CHECK_FALSE(read_machine({.path = folder.path() + "/x.xml", .host = 1}, why));
  CHECK(contains(why, "has 1 host(s)"));
}

TEST_CASE("a placement file that is unreadable or names other devices is a warning") {
  FakeMachine fake = small();
  fake.gpu("pci0000:00/0000:00:01.0/0000:01:00.0", 0);
  const TemporaryFolder folder;
  fake.write(folder.path());
  std::string why;
  const auto unreadable =
      read_machine({.path = folder.path(), .placement = "/nonexistent.xml"}, why);
  REQUIRE(unreadable);
  CHECK(unreadable->has_warning("PLACEMENT_UNREADABLE"));
  // What is no file, or has no end, costs neither time nor memory.
  const std::string fifo = folder.path() + "/fifo", hole = folder.path() + "/hole";
  REQUIRE(mkfifo(fifo.c_str(), 0600) == 0);
  spill(hole, "");
  std::filesystem::resize_file(hole, std::uintmax_t{1} << 40);
  for (const std::string& odd : {fifo, hole, std::string("/dev/zero")}) {
    CAPTURE(odd);
    const auto read = read_machine({.path = folder.path(), .placement = odd}, why);
    REQUIRE(read);
    CHECK(read->has_warning("PLACEMENT_UNREADABLE"));
    CHECK_FALSE(read_machine({.path = odd}, why));
    CHECK(why.starts_with(odd + ": "));
  }
  spill(folder.path() + "/other.xml", kNccl);
  const auto other =
      read_machine({.path = folder.path(), .placement = folder.path() + "/other.xml"}, why);
  REQUIRE(other);
  CHECK(other->has_warning("PLACEMENT_UNUSED"));
}

TEST_CASE("links that lead out of the root are not followed") {
  const TemporaryFolder inside, outside;
  spill(outside.path() + "/secret", "x");
  spill(inside.path() + "/file", " text \n");
  std::filesystem::create_symlink(outside.path() + "/secret", inside.path() + "/link");
  const FileRoot root(inside.path());
  CHECK(root.text("/file") == "text");
  CHECK_FALSE(root.text("/link"));
  CHECK_FALSE(
      root.text("/../" + std::filesystem::path(outside.path()).filename().string() + "/secret"));
  CHECK_FALSE(FileRoot("/nonexistent").exists());
}

TEST_CASE("configuration space is read within its bounds") {
  std::vector<std::uint8_t> config(4096, 0);
  CHECK(port_kind({}) == BridgeKind::unknown);
  CHECK_FALSE(acs_control({}));
  CHECK_FALSE(bus_numbers({}));
  config[0x06] = 0x10;
  config[0x34] = 0x40;
  config[0x40] = 0x01;
  config[0x41] = 0x40;  // a list that runs in a circle
  CHECK(port_kind(config) == BridgeKind::unknown);
  config[0x41] = 0x50;
  config[0x50] = 0x10;
  config[0x52] = 0x52;
  CHECK(port_kind(config) == BridgeKind::upstream);
  config[0x100] = 0x01;
  config[0x103] = 0x10;  // next is 0x100 again
  CHECK_FALSE(acs_control(config));
  config[0x103] = 0x20;  // next is 0x200
  config[0x200] = 0x0d;
  config[0x206] = 0x1d;
  REQUIRE(acs_control(config));
  CHECK(acs_control(config)->text() == "SV,RR,CR,UF");
  CHECK_FALSE(acs_control(std::span(config).first(0x204)));
  // All ones: a device that is gone.
  const std::vector<std::uint8_t> gone(4096, 0xff);
  CHECK(port_kind(gone) == BridgeKind::unknown);
  CHECK_FALSE(acs_control(gone));
  const std::uint8_t vpd[] = {0x90, 0x07, 0x00, 'V', '3', 4, 'a', 'b', 'c', 'd', 0x78};
  CHECK(vpd_keyword(vpd, "V3") == "abcd");
  CHECK_FALSE(vpd_keyword(vpd, "SN"));
  for (std::size_t n = 0; n < sizeof vpd - 1; ++n)
    CHECK_FALSE(vpd_keyword(std::span(vpd).first(n), "V3"));
}

TEST_CASE("bus ids, masks and speeds are parsed strictly") {
  CHECK(parse_bus_id("00000000:A1:00.0") == BusId{0, 0xa1, 0, 0});
  CHECK(parse_bus_id("a1:1f.7") == BusId{0, 0xa1, 0x1f, 7});
  CHECK(parse_bus_id("10000:e1:00.0") == BusId{0x10000, 0xe1, 0, 0});
  CHECK(parse_bus_id("10000:e1:00.0")->text() == "10000:e1:00.0");
  for (const char* bad : {"", ".", ":", "0000:a1:20.0", "0000:a1:00.8", "0000:a1:00", "a1:00.0x",
                          "g:00.0", "123456789:00:00.0", "::.", "0000:00:00.0 "})
    CHECK_FALSE(parse_bus_id(bad));
  CHECK(parse_cpu_list("0-2,8") == std::vector<int>{0, 1, 2, 8});
  CHECK(parse_cpu_list("") == std::vector<int>{});
  CHECK_FALSE(parse_cpu_list("3-1"));
  CHECK_FALSE(parse_cpu_list("0-99999999"));
  CHECK_FALSE(parse_cpu_list("x"));
  CHECK(parse_cpu_mask("1,00000003") == std::vector<int>{0, 1, 32});
  CHECK_FALSE(parse_cpu_mask("0xff"));
  CHECK(near(parse_link_speed("32.0 GT/s PCIe"), 32.0));
  CHECK(near(parse_link_speed("2.5 GT/s"), 2.5));
  CHECK_FALSE(parse_link_speed("Unknown"));
  CHECK_FALSE(parse_link_speed("GT/s"));
}

TEST_CASE("distance names read back and know NCCL's words") {
  for (int i = 0; i < kDistances; ++i) {
    const auto d = static_cast<Distance>(i);
    CHECK(parse_distance(name_of(d)) == d);
  }
  CHECK(parse_distance("pix") == Distance::pix);
  CHECK(parse_distance("LOC") == Distance::self);
  CHECK(parse_distance("p2c") == Distance::c2c);
  CHECK_FALSE(parse_distance("NVL"));
  CHECK_FALSE(parse_distance(""));
}
