// Our own machines, read in every way; then the same with parts of /sys missing.
#include <cstdlib>
#include <filesystem>

#include "test/support/catch.h"
#include "test/support/needs.h"
#include "test/topology/data.h"
#include "test/topology/fake_machine.h"
#include "topology/model/distance_rule.h"
#include "topology/read/cross_check.h"
#include "topology/read/hwloc_reader.h"
#include "topology/read/hwloc_xml.h"
#include "topology/read/nccl_xml.h"
#include "topology/read/read_machine.h"
#include "topology/read/sysfs_reader.h"

using namespace twinpath;
using namespace twinpath::test;

namespace {

FakeMachine own(const std::string& name) {
  for (NamedMachine& n : own_machines())
    if (n.name == name) return n.machine;
  FAIL("no machine " << name);
  return {};
}

Machine sysfs_of(const FakeMachine& fake, const std::string& root) {
  fake.write(root);
  std::string why;
  auto m = read_sysfs(root, why);
  INFO(why);
  REQUIRE(m);
  REQUIRE(check_machine(*m) == "");
  return *m;
}

// Classes without C2C and data direct, which hwloc cannot show.
std::string pcie_matrix(const Machine& m) {
  std::string out;
  for (const Gpu& g : m.gpus) {
    for (const Hca& h : m.hcas)
      out += g.pci.bus.text() + " " + h.name + " " +
             std::string(name_of(relate(m, g.pci, *h.pci).pcie)) + "\n";
  }
  return out;
}

// Compares with a file of test/golden/topology; UPDATE_GOLDEN=1 writes it.
void check_golden(const std::string& name, const std::string& text) {
  const std::string path = own_topologies() + "/" + name;
  if (std::getenv("UPDATE_GOLDEN") != nullptr) spill(path, text);
  INFO(path << " (UPDATE_GOLDEN=1 rewrites it)");
  CHECK(slurp(path) == text);
}

Distance between(const Machine& m, std::size_t gpu, const char* hca) {
  REQUIRE(gpu < m.gpus.size());
  const Hca* h = m.find_hca(hca);
  REQUIRE(h != nullptr);
  return gpu_to_hca(m, m.gpus[gpu], *h).distance;
}

// What read_machine does with the machine we run on.
std::optional<Machine> through_both(const std::string& root, std::string& why) {
  const auto sysfs = read_sysfs(root, why);
  const auto hwloc = read_hwloc_folder(root, why);
  if (!sysfs || !hwloc) return std::nullopt;
  return cross_checked(*sysfs, *hwloc);
}

}  // namespace

TEST_CASE("our machines are what their golden files say") {
  for (const NamedMachine& n : own_machines()) {
    const TemporaryFolder folder;
    const Machine m = sysfs_of(n.machine, folder.path());
    check_golden(n.name + ".classes.txt", matrix(m));
    check_golden(n.name + ".hwloc.xml", n.machine.hwloc_xml());
    check_golden(n.name + ".nccl.xml", write_nccl_xml(m));
  }
}

TEST_CASE("sysfs, hwloc on the same folder and hwloc's file show the same classes") {
  std::string why;
  NEEDS(hwloc_available(why), "libhwloc.so.15 is not installed");
  for (const NamedMachine& n : own_machines()) {
    INFO(n.name);
    const TemporaryFolder folder;
    const Machine m = sysfs_of(n.machine, folder.path());
    const auto live = read_hwloc_folder(folder.path(), why);
    REQUIRE(live);
    const auto file = parse_hwloc_xml(n.machine.hwloc_xml(), why);
    INFO(why);
    REQUIRE(file);
    for (const Machine* other : {&*live, &*file}) {
      REQUIRE(check_machine(*other) == "");
      CHECK(pcie_matrix(*other) == pcie_matrix(m));
      const Machine both = cross_checked(m, *other);
      CHECK_FALSE(both.has_warning("HWLOC_BLIND"));
      CHECK_FALSE(both.has_warning("HWLOC_NUMA"));
      CHECK_FALSE(both.has_warning("SYSFS_BLIND"));
      CHECK(matrix(both) == matrix(m));
    }
  }
}

TEST_CASE("a pair of each class is found on machines made for it") {
  const TemporaryFolder a, b, c, d;
  const Machine two = sysfs_of(own("two-sockets"), a.path());
  CHECK(between(two, 0, "mlx5_0") == Distance::pix);
  CHECK(between(two, 0, "mlx5_1") == Distance::pxb);
  CHECK(between(two, 0, "mlx5_2") == Distance::phb);
  CHECK(between(two, 0, "mlx5_3") == Distance::node);
  CHECK(between(two, 0, "mlx5_4") == Distance::sys);
  CHECK(between(two, 1, "mlx5_4") == Distance::pix);
  const Relation pix = gpu_to_hca(two, two.gpus[0], *two.find_hca("mlx5_0"));
  REQUIRE(pix.lca);
  const Bridge& lca = two.bridges[static_cast<std::size_t>(*pix.lca)];
  CHECK(lca.kind == BridgeKind::upstream);
  CHECK_FALSE(lca.kind_guessed);
  CHECK(lca.pci.bus.text() == "0000:11:00.0");
  CHECK(switch_above(two, two.gpus[0].pci) == pix.lca);

  const Machine four = sysfs_of(own("four-nodes"), b.path());
  CHECK(between(four, 0, "mlx5_0") == Distance::sock);
  CHECK(between(four, 0, "mlx5_1") == Distance::sys);

  const Machine grace = sysfs_of(own("grace-data-direct"), c.path());
  const Relation dd = gpu_to_hca(grace, grace.gpus[0], *grace.find_hca("mlx5_0"));
  CHECK(dd.distance == Distance::pxb);
  CHECK(dd.data_direct);
  CHECK(dd.physical_function == Distance::c2c);
  CHECK(relate(grace, grace.gpus[0].pci, *grace.find_hca("mlx5_0")->pci).pcie == Distance::node);
  CHECK(between(grace, 0, "mlx5_1") == Distance::sys);
  CHECK(grace.gpus[0].pci.iommu_group == 9);
  CHECK(grace.gpus[0].pci.iommu_type == "DMA-FQ");
  CHECK(grace.host.iommu_on == true);
  const auto gpu_port = ancestors(grace, grace.gpus[0].pci.parent).front();
  const auto acs = grace.bridges[static_cast<std::size_t>(gpu_port)].pci.acs;
  REQUIRE(acs);
  CHECK(acs->text() == "SV,RR,UF");

  const Machine flat = sysfs_of(own("flat-guest"), d.path());
  CHECK(flat.host.virtual_machine == true);
  CHECK(flat.has_warning("VM_FLAT"));
  CHECK(flat.has_warning("NUMA_UNKNOWN"));
  CHECK(between(flat, 0, "mlx5_0") == Distance::phb);
}

TEST_CASE("distance has no direction and a device is SELF to itself") {
  for (const NamedMachine& n : own_machines()) {
    const TemporaryFolder folder;
    const Machine m = sysfs_of(n.machine, folder.path());
    for (const Hca& a : m.hcas) {
      CHECK(hca_to_hca(m, a, a).distance == Distance::self);
      for (const Hca& b : m.hcas)
        CHECK(hca_to_hca(m, a, b).distance == hca_to_hca(m, b, a).distance);
    }
    for (const Gpu& a : m.gpus) {
      CHECK(relate(m, a.pci, a.pci).distance == Distance::self);
      for (const Gpu& b : m.gpus)
        CHECK(relate(m, a.pci, b.pci).distance == relate(m, b.pci, a.pci).distance);
    }
  }
}

TEST_CASE("without configuration space hwloc is blind, which is said, and sysfs is right") {
  std::string why;
  NEEDS(hwloc_available(why), "libhwloc.so.15 is not installed");
  for (const char* name : {"two-sockets", "grace-data-direct"}) {
    INFO(name);
    const TemporaryFolder whole, blind;
    FakeMachine fake = own(name);
    const Machine m = sysfs_of(fake, whole.path());
    fake.config_bytes = 0;
    fake.write(blind.path());
    const auto both = through_both(blind.path(), why);
    REQUIRE(both);
    CHECK(both->has_warning("HWLOC_BLIND"));
    CHECK(matrix(*both) == matrix(m));
    CHECK_FALSE(both->host.extended_config);
    // The kinds of ports are still known, by their depth.
    const Bridge& port = both->bridges[static_cast<std::size_t>(*both->gpus[0].pci.parent)];
    CHECK(port.kind == BridgeKind::downstream);
    CHECK(port.kind_guessed);
    CHECK_FALSE(port.pci.acs);
  }
}

TEST_CASE("devices that one source does not see are named: four of them, and how many more") {
  const TemporaryFolder folder;
  const Machine whole = sysfs_of(own("two-sockets"), folder.path());
  Machine none = whole;
  none.gpus.clear();
  none.hcas.clear();
  const auto text = [](const Machine& m, std::string_view code) {
    for (const TopologyWarning& w : m.warnings)
      if (w.code == code) return w.text;
    return std::string();
  };
  REQUIRE((whole.gpus.size() == 2 && whole.hcas.size() == 5));
  CHECK(text(cross_checked(whole, none), "HWLOC_BLIND") == "hwloc does not see GPU0, GPU1, " +
                                                               whole.hcas[0].name + ", " +
                                                               whole.hcas[1].name + " and 3 more");
  Machine one = whole;
  one.hcas.erase(one.hcas.begin());
  CHECK(text(cross_checked(one, whole), "SYSFS_BLIND") ==
        "hwloc sees " + whole.hcas[0].name + ", sysfs does not");
}

TEST_CASE("64 bytes of configuration space are enough for both readers") {
  std::string why;
  NEEDS(hwloc_available(why), "libhwloc.so.15 is not installed");
  FakeMachine fake = own("two-sockets");
  const TemporaryFolder whole, folder;
  const Machine m = sysfs_of(fake, whole.path());
  fake.config_bytes = 64;
  fake.write(folder.path());
  const auto both = through_both(folder.path(), why);
  REQUIRE(both);
  CHECK_FALSE(both->has_warning("HWLOC_BLIND"));
  CHECK(matrix(*both) == matrix(m));
  CHECK(both->host.extended_config == false);
}

TEST_CASE("without local_cpus hwloc cannot place buses, numa_node still does") {
  std::string why;
  FakeMachine fake = own("two-sockets");
  fake.local_cpus = false;
  const TemporaryFolder folder;
  fake.write(folder.path());
  if (hwloc_available(why)) {
    const auto m = read_hwloc_folder(folder.path(), why);
    REQUIRE(m);
    CHECK(between(*m, 0, "mlx5_0") == Distance::pix);
    CHECK(between(*m, 0, "mlx5_3") == Distance::unknown);
    CHECK(m->has_warning("NUMA_UNKNOWN"));
  }
  const auto sysfs = read_sysfs(folder.path(), why);
  REQUIRE(sysfs);
  CHECK(between(*sysfs, 0, "mlx5_3") == Distance::node);
}

TEST_CASE("without numa_node and local_cpus the distance over the CPUs is unknown") {
  std::string why;
  FakeMachine fake = own("two-sockets");
  fake.local_cpus = false;
  for (const char* bus : {"0000:13:00.0", "0000:14:00.0", "0000:20:00.0", "0000:41:00.0"})
    fake.at(bus).numa = -1;
  const TemporaryFolder folder;
  const Machine m = sysfs_of(fake, folder.path());
  CHECK(between(m, 0, "mlx5_0") == Distance::pix);
  CHECK(between(m, 0, "mlx5_2") == Distance::phb);
  CHECK(between(m, 0, "mlx5_3") == Distance::unknown);
  CHECK(between(m, 0, "mlx5_4") == Distance::unknown);
  CHECK(m.has_warning("NUMA_UNKNOWN"));
}

TEST_CASE("local_cpus places a device whose numa_node is missing") {
  std::string why;
  const FakeMachine fake = own("two-sockets");
  const TemporaryFolder folder;
  fake.write(folder.path());
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder.path() + "/sys"))
    if (entry.path().filename() == "numa_node") std::filesystem::remove(entry.path());
  const auto m = read_sysfs(folder.path(), why);
  REQUIRE(m);
  CHECK(between(*m, 0, "mlx5_3") == Distance::node);
  CHECK(between(*m, 0, "mlx5_4") == Distance::sys);
}

TEST_CASE("a link below its maximum is told, a GPU at rest is not") {
  FakeMachine fake = own("two-sockets");
  fake.at("0000:14:00.0").width = 8;
  fake.at("0000:13:00.0").gts = 2.5;
  const TemporaryFolder folder;
  const Machine m = sysfs_of(fake, folder.path());
  int degraded = 0;
  for (const TopologyWarning& w : m.warnings) {
    if (w.code != "LINK_DEGRADED") continue;
    ++degraded;
    CHECK(w.text == "mlx5_0 runs at 32 GT/s x8, can do 32 GT/s x16");
  }
  CHECK(degraded == 1);
  CHECK(m.gpus[0].pci.link.degraded());
  CHECK(near(m.gpus[0].pci.link.at_most(), 63.0));
}
