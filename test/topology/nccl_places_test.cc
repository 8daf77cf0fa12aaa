// Where NCCL's XML leaves room for a wrong answer: adapters without a PCI place, host bridges that
// it does not have; and adapters that no reader finds among RDMA devices.
#include "test/support/catch.h"
#include "test/topology/data.h"
#include "test/topology/fake_machine.h"
#include "topology/decide/record_machine.h"
#include "topology/model/classify.h"
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
