// Where NCCL's XML leaves room for a wrong answer: adapters without a PCI place, host bridges that
// it does not have; and adapters that no reader finds among RDMA devices.
#include "test/support/catch.h"
#include "test/topology/data.h"
#include "test/topology/fake_machine.h"
#include "topology/decide/record_machine.h"
#include "topology/model/distance_rule.h"
#include "topology/model/pci_ids.h"
#include "topology/read/hwloc_xml.h"
#include "topology/read/nccl_xml.h"
#include "topology/read/sysfs_reader.h"

using namespace twinpath;
using namespace twinpath::test;

namespace {

Machine host_of(const std::string& xml) {
  std::string why;
  const auto hosts = parse_nccl_xml(xml, why);
  INFO(why);
  REQUIRE(hosts);
  REQUIRE(hosts->size() == 1);
  REQUIRE(check_machine(hosts->front()) == "");
  return hosts->front();
}

std::string gpu_xml(const char* bus) {
  return std::string("<pci busid='") + bus + "' class='0x030200' vendor='0x10de' device='0x2330'/>";
}

// As NCCL dumps them: the bond below the CPU that it is attached to.
std::string with_bonds() {
  return "<system version='1'><cpu numaid='0'>" + gpu_xml("0000:11:00.0") +
         "<nic><net name='veth0' speed='10000' port='1'/></nic></cpu><cpu numaid='1'>" +
         gpu_xml("0000:81:00.0") +
         "<nic><net name='bond0' speed='200000' port='1'/></nic></cpu></system>";
}

Distance distance(const Machine& m, int gpu, const std::string& hca) {
  const Hca* h = m.find_hca(hca);
  REQUIRE(h != nullptr);
  return gpu_to_hca(m, m.gpus[static_cast<std::size_t>(gpu)], *h).distance;
}

std::string letter(const Machine& m, int gpu, const std::string& hca) {
  const Hca* h = m.find_hca(hca);
  REQUIRE(h != nullptr);
  return std::string(nccl_letter(m, m.gpus[static_cast<std::size_t>(gpu)], *h));
}

}  // namespace

TEST_CASE("an adapter without a PCI place is at the <cpu> that it hangs below") {
  const Machine read = host_of(with_bonds());
  for (const Machine& m : {read, host_of(write_nccl_xml(read))}) {
    CHECK(letter(m, 0, "veth0") == "PHB");
    CHECK(letter(m, 0, "bond0") == "SYS");
    CHECK(letter(m, 1, "veth0") == "SYS");
    CHECK(letter(m, 1, "bond0") == "PHB");
    CHECK(distance(m, 0, "veth0") == Distance::node);
    CHECK(distance(m, 0, "bond0") == Distance::sys);
    CHECK(distance(m, 1, "bond0") == Distance::node);
    CHECK_FALSE(m.find_hca("bond0")->pci);
  }
  // Laid over a machine whose own sources cannot tell.
  Machine guest = read;
  for (Hca& h : guest.hcas) h.numa.reset();
  CHECK(letter(guest, 1, "bond0") == "SYS");  // NCCL's choice then is the first CPU
  CHECK(apply_nccl_placement(guest, read, "the file") == 2);
  CHECK(letter(guest, 1, "bond0") == "PHB");
}

// As NCCL dumps a machine whose kernel tells no node.
TEST_CASE("what hangs on one <cpu> is at one place, whatever its number") {
  const auto system = [](const std::string& numa) {
    return "<system version='1'><cpu " + numa + ">" + gpu_xml("0001:11:00.0") +
           "<pci busid='0002:11:00.0' class='0x030200'><gpu dev='1'><c2c bw='1' count='8'/></gpu>"
           "</pci><pci busid='0003:12:00.0' class='0x020700'><nic><net name='mlx5_0' port='1'/>"
           "</nic></pci><nic><net name='veth0' port='1'/></nic></cpu></system>";
  };
  const Machine known = host_of(system("numaid='0'"));
  for (const char* numa : {"numaid='-1'", "", "numaid='0x0'", "numaid=' 0 '", "numaid='7'"}) {
    CAPTURE(numa);
    const Machine m = host_of(system(numa));
    for (const int gpu : {0, 1}) {
      for (const char* hca : {"mlx5_0", "veth0"}) {
        CAPTURE(gpu, hca);
        CHECK(distance(m, gpu, hca) == distance(known, gpu, hca));
        CHECK(letter(m, gpu, hca) == letter(known, gpu, hca));
      }
    }
    CHECK(m.gpus[1].c2c_node == m.gpus[1].pci.numa);
  }
  // Two without a number are two, and neither is the one that has it.
  const Machine two = host_of("<system version='1'><cpu numaid='-1'>" + gpu_xml("0000:11:00.0") +
                              "</cpu><cpu numaid='0'><nic><net name='bond0' port='1'/></nic></cpu>"
                              "<cpu><nic><net name='veth0' port='1'/></nic></cpu></system>");
  CHECK(distance(two, 0, "bond0") == Distance::sys);
  CHECK(distance(two, 0, "veth0") == Distance::sys);
  CHECK(two.numa_nodes.size() == 3);
}

TEST_CASE("numbers of a file are read as NCCL reads them") {
  const auto gpu_of = [](const std::string& node, const std::string& function,
                         const std::string& gpu) {
    return host_of("<system version='1'><cpu numaid='" + node + "'><pci busid='0000:1A:00.0' " +
                   function + "><gpu " + gpu + "/></pci></cpu></system>")
        .gpus.at(0);
  };
  for (const char* node : {"8", "010", "0x8", "0X8", "+8", " 8\r"}) {
    CAPTURE(node);
    CHECK(gpu_of(node, "", "").pci.numa == 8);
  }
  for (const char* id : {"4318", "0x10de", "0X10DE", " 0x10de ", "+0x10de", "010336"}) {
    CAPTURE(id);
    CHECK(gpu_of("0", std::string("vendor='") + id + "'", "").pci.id.vendor == kNvidia);
  }
  for (const char* width : {"16", "0x10", "020", "\t16"}) {
    CAPTURE(width);
    CHECK(gpu_of("0", std::string("link_width='") + width + "'", "").pci.link.width == 16);
  }
  for (const char* width : {"-16", "0", "x16", "99999999999999999999", ""}) {
    CAPTURE(width);
    CHECK_FALSE(gpu_of("0", std::string("link_width='") + width + "'", "").pci.link.width);
  }
  CHECK(gpu_of("0", "", "dev='0' sm='0x5a'").cuda_index == 0);
  CHECK(gpu_of("0", "", "dev='0' sm='0x5a'").compute_capability == 90);
  // As NCCL writes what it does not know.
  CHECK_FALSE(gpu_of("0", "", "dev='-1' sm='-1'").cuda_index);
  CHECK_FALSE(gpu_of("0", "", "dev='-1' sm='-1'").compute_capability);
}

TEST_CASE("a file without node numbers leaves the machine's own") {
  Machine guest = host_of(with_bonds());
  const Machine placed =
      host_of("<system version='1'><cpu numaid='-1'><pci busid='0000:0f:00.0' class='0x060400'>" +
              gpu_xml("0000:11:00.0") + gpu_xml("0000:81:00.0") +
              "</pci><nic><net name='bond0' port='1'/></nic></cpu></system>");
  CHECK(apply_nccl_placement(guest, placed, "the file") == 2);
  CHECK(guest.gpus[0].pci.numa == 0);
  CHECK(guest.gpus[1].pci.numa == 1);
  CHECK(guest.find_hca("bond0")->numa == 1);
  CHECK(guest.numa_nodes.size() == 2);
}

// AWS's files, and what is left of others when <gpu> and <nic> are taken out.
TEST_CASE("devices are placed by their addresses, whether or not the file says what they are") {
  const auto tree = [](const std::string& leaf) {
    return "<system version='1'><cpu numaid='1'><pci busid='0000:f0:00.0'>" + leaf +
           "</pci></cpu><cpu numaid='0'><pci busid='0000:44:00.0'/></cpu></system>";
  };
  const std::string guest_xml =
      "<system version='1'><cpu numaid='0'>" + gpu_xml("0000:11:00.0") +
      "<pci busid='0000:12:00.0' class='0x020000'><nic><net name='mlx5_0' port='1'/></nic></pci>"
      "</cpu></system>";
  for (const char* leaf :
       {"<pci busid='0000:11:00.0'/><pci busid='0000:12:00.0'/>",
        "<pci busid='0000:11:00.0' class=''/><pci busid='0000:12:00.0' link_width='16'/>",
        "<pci busid='0000:f1:00.0'><pci busid='11:00.0'/></pci><pci busid='0000:12:00.0'/>"}) {
    CAPTURE(leaf);
    Machine guest = host_of(guest_xml);
    REQUIRE(distance(guest, 0, "mlx5_0") == Distance::phb);
    const Machine placed = host_of(tree(leaf));
    CHECK(named_in(guest, placed) == 2);
    CHECK(apply_nccl_placement(guest, placed, "the file") == 2);
    CHECK_FALSE(guest.has_warning("PLACEMENT_UNUSED"));
    CHECK(distance(guest, 0, "mlx5_0") <= Distance::pxb);
    CHECK(guest.gpus[0].pci.numa == 1);
  }
}

TEST_CASE("an adapter without a PCI place serves a GPU only where no other does") {
  const Machine m = host_of(
      "<system version='1'><cpu numaid='0'><pci busid='0000:12:00.0' class='0x020700' "
      "vendor='0x15b3' device='0x1021'><nic><net name='mlx5_0' port='1'/></nic></pci></cpu>"
      "<cpu numaid='1'>" +
      gpu_xml("0000:81:00.0") + "<nic><net name='bond0' port='1'/></nic></cpu></system>");
  CHECK(distance(m, 0, "bond0") == Distance::node);
  const std::vector<int> best = best_hcas(m, {});
  REQUIRE(best.size() == 1);
  REQUIRE(best[0] >= 0);
  CHECK(m.hcas[static_cast<std::size_t>(best[0])].name == "mlx5_0");
}

TEST_CASE("PCI domains below one <cpu> have no host bridge in common") {
  const auto hca = [](const char* bus) {
    return std::string("<pci busid='") + bus +
           "' class='0x020000' vendor='0x15b3' device='0x1021'>" + "<nic><net name='" + bus +
           "' port='1'/></nic></pci>";
  };
  const Machine m = host_of("<system version='1'><cpu numaid='0'>" + gpu_xml("0001:01:00.0") +
                            hca("0001:02:00.0") + hca("0002:01:00.0") + "</cpu></system>");
  CHECK(distance(m, 0, "0001:02:00.0") == Distance::phb);
  CHECK(distance(m, 0, "0002:01:00.0") == Distance::node);
  CHECK(letter(m, 0, "0002:01:00.0") == "PHB");  // NCCL has no NODE
}

TEST_CASE("our own export reads back without a host bridge across domains") {
  FakeMachine fake;
  fake.node(0, 0);
  fake.gpu("pci0001:00/0001:00:00.0/0001:01:00.0", 0);
  fake.hca("pci0002:00/0002:00:00.0/0002:01:00.0", 0, "mlx5_0", 1);
  const TemporaryFolder folder;
  fake.write(folder.path());
  std::string why;
  const auto m = read_sysfs(folder.path(), why);
  REQUIRE(m);
  REQUIRE(distance(*m, 0, "mlx5_0") == Distance::node);
  CHECK(distance(host_of(write_nccl_xml(*m)), 0, "mlx5_0") == Distance::node);
}

TEST_CASE("a Slingshot adapter, which is no RDMA device, is found by its id and left out") {
  FakeMachine fake;
  fake.node(0, 0);
  fake.gpu("pci0000:00/0000:00:01.0/0000:01:00.0", 0);
  FakeMachine::Function& card = fake.hca("pci0000:10/0000:10:01.0/0000:11:00.0", 0, "", 0);
  card.id = {kCray, 0x0501, kCray, 0, 0x020000};
  const TemporaryFolder folder;
  fake.write(folder.path());
  std::string why;
  const auto sysfs = read_sysfs(folder.path(), why);
  const auto hwloc = parse_hwloc_xml(fake.hwloc_xml(), why);
  REQUIRE(sysfs);
  REQUIRE(hwloc);
  for (const Machine* m : {&*sysfs, &*hwloc}) {
    REQUIRE(m->hcas.size() == 1);
    CHECK(m->hcas[0].kind == HcaKind::cxi);
    CHECK(m->hcas[0].foreign == "Slingshot");
    CHECK(m->hcas[0].name == "0000:11:00.0");
    CHECK(distance(*m, 0, "0000:11:00.0") == Distance::node);
  }
  // By its interface where it has one.
  spill(folder.path() + "/sys/devices/pci0000:10/0000:10:01.0/0000:11:00.0/net/hsi0/mtu", "9000\n");
  const auto named = read_sysfs(folder.path(), why);
  REQUIRE(named);
  CHECK(named->hcas[0].name == "hsi0");
  std::string xml = fake.hwloc_xml();
  const std::size_t at = xml.find(">", xml.find("pci_busid=\"0000:11:00.0\"")) + 1;
  xml.insert(at, "<object type=\"OSDev\" gp_index=\"999\" name=\"hsi0\" osdev_type=\"2\"/>");
  const auto told = parse_hwloc_xml(xml, why);
  REQUIRE(told);
  CHECK(told->hcas[0].name == "hsi0");
}
