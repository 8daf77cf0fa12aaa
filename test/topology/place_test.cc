// Placing soft adapters, tying data-direct functions, NCCL's view and its files.
#include "topology/model/place.h"
#include "test/support/catch.h"
#include "test/topology/data.h"
#include "test/topology/fake_machine.h"
#include "topology/model/distance_rule.h"
#include "topology/model/soft_places.h"
#include "topology/read/nccl_xml.h"
#include "topology/read/sysfs_reader.h"

using namespace twinpath;
using namespace twinpath::test;

namespace {

Machine machine_of(const std::string& name) {
  for (const NamedMachine& n : own_machines()) {
    if (n.name != name) continue;
    const TemporaryFolder folder;
    n.machine.write(folder.path());
    std::string why;
    auto m = read_sysfs(folder.path(), why);
    REQUIRE(m);
    return *m;
  }
  FAIL("no machine " << name);
  return {};
}

Distance placed(Machine m, const char* place) {
  std::string why;
  INFO(place);
  const bool ok = place_soft_hca(m, "soft0", place, why);
  INFO(why);
  REQUIRE(ok);
  REQUIRE(check_machine(m) == "");
  const Hca* soft = m.find_hca("soft0");
  REQUIRE(soft != nullptr);
  CHECK(soft->kind == HcaKind::soft);
  CHECK(soft->role == HcaRole::data);
  return gpu_to_hca(m, m.gpus[0], *soft).distance;
}

}  // namespace

TEST_CASE("a soft HCA takes the place that its configuration names") {
  const Machine m = machine_of("two-sockets");
  CHECK(placed(m, "below=0000:13:00.0") == Distance::pix);   // beside GPU 0
  CHECK(placed(m, "below=0000:14:00.0") == Distance::pix);   // beside mlx5_0
  CHECK(placed(m, "below=0000:17:00.0") == Distance::pxb);   // one switch further down
  CHECK(placed(m, "bridge=0000:11:00.0") == Distance::pix);  // the switch itself
  CHECK(placed(m, "bridge=0000:10:02.0") == Distance::phb);  // another root port
  CHECK(placed(m, "below=0000:20:00.0") == Distance::phb);
  CHECK(placed(m, "below=0000:41:00.0") == Distance::node);
  CHECK(placed(m, "numa=0") == Distance::node);
  CHECK(placed(m, "numa=1") == Distance::sys);
  CHECK(placed(m, "below=0000:83:00.0") == Distance::sys);
  CHECK(placed(m, "0000:13:00.0") == Distance::self);     // on the GPU's own card
  CHECK(placed(m, "pci=0000:14:00.1") == Distance::pix);  // another function of mlx5_0
  CHECK(placed(m, "none") == Distance::unknown);
  CHECK(placed(m, "/sys/devices/pci0000:10/0000:10:01.0/0000:11:00.0/0000:12:05.0/0000:18:00.0") ==
        Distance::pix);
  CHECK(placed(m, "/sys/devices/pci0000:90/0000:90:01.0/0000:91:00.0") == Distance::unknown);
  CHECK(placed(m, "/sys/bus/pci/devices/0000:14:00.0") == Distance::pix);
  CHECK(placed(m, "/sys/bus/pci/devices/below=0000:13:00.0") == Distance::pix);
  Machine own_bus = m;
  std::string why;
  REQUIRE(
      place_soft_hca(own_bus, "soft0", "/sys/devices/pci0000:10/0000:10:01.0/0000:18:00.0", why));
  CHECK(own_bus.find_hca("soft0")->pci->bus.text() == "0000:18:00.0");
}

TEST_CASE("a place that does not exist is refused and nothing changes") {
  Machine m = machine_of("two-sockets");
  const std::size_t hcas = m.hcas.size(), bridges = m.bridges.size();
  for (const char* place : {"0000:ff:00.0", "below=0000:ff:00.0", "bridge=0000:ff:00.0", "numa=7",
                            "numa=x", "near=GPU0", "rubbish", "/sys/devices/nothing"}) {
    std::string why;
    INFO(place);
    CHECK_FALSE(place_soft_hca(m, "soft0", place, why));
    CHECK(why.find("place of soft0: ") == 0);
    CHECK(m.hcas.size() == hcas);
    CHECK(m.bridges.size() == bridges);
  }
}

TEST_CASE("the soft HCAs of TWINPATH_SOFT_HCAS are placed with their ports, or refused by name") {
  const Machine m = machine_of("two-sockets");
  std::string why;
  Config config;
  config.soft_hcas = "near,place=below=0000:13:00.0,speed=25";
  Machine placed = m;
  REQUIRE(place_soft_hcas(placed, config, why));
  const Hca* const near = placed.find_hca("near");
  REQUIRE(near != nullptr);
  CHECK(gpu_to_hca(placed, placed.gpus[0], *near).distance == Distance::pix);
  REQUIRE(near->ports.size() == 1);
  CHECK(near->ports[0].gbps == 25);
  CHECK(near->ports[0].state == PortState::active);
  config.soft_hcas = "near,colour=blue";
  CHECK_FALSE(place_soft_hcas(placed, config, why));
  CHECK(why.starts_with("TWINPATH_SOFT_HCAS: "));
  CHECK(why.find("colour") != std::string::npos);
  config.soft_hcas = "far,place=below=0000:ff:00.0";
  CHECK_FALSE(place_soft_hcas(placed, config, why));
  CHECK(why.starts_with("TWINPATH_SOFT_HCAS: far: "));
}

TEST_CASE("several soft HCAs are apart, and placing one again moves it") {
  Machine m = machine_of("two-sockets");
  std::string why;
  REQUIRE(place_soft_hca(m, "soft0", "below=0000:13:00.0", why));
  REQUIRE(place_soft_hca(m, "soft1", "below=0000:13:00.0", why));
  CHECK(hca_to_hca(m, *m.find_hca("soft0"), *m.find_hca("soft1")).distance == Distance::pix);
  const std::size_t hcas = m.hcas.size();
  REQUIRE(place_soft_hca(m, "soft1", "numa=1", why));
  CHECK(m.hcas.size() == hcas);
  CHECK(hca_to_hca(m, *m.find_hca("soft0"), *m.find_hca("soft1")).distance == Distance::sys);
}

TEST_CASE("a data-direct function is tied by the path that libmlx5 gives") {
  Machine m = machine_of("grace-data-direct");
  Hca* hca = m.find_hca("mlx5_0");
  REQUIRE(hca->data_direct);
  m.dma_functions.push_back(*hca->data_direct);
  hca->data_direct.reset();
  CHECK(gpu_to_hca(m, m.gpus[0], *hca).distance == Distance::c2c);
  CHECK_FALSE(set_data_direct(m, "mlx5_9", "/devices/pci0008:00/0008:03:00.0"));
  CHECK_FALSE(set_data_direct(m, "mlx5_0", "/devices/pci0008:00/0008:99:00.0"));
  CHECK(set_data_direct(m, "mlx5_0", "/devices/pci0008:00/x/0008:03:00.0"));
  CHECK(gpu_to_hca(m, m.gpus[0], *m.find_hca("mlx5_0")).distance == Distance::pxb);
  CHECK(m.dma_functions.empty());
}

TEST_CASE("the CUDA driver's word is entered by bus id, also for a GPU that sysfs hides") {
  Machine m = machine_of("two-sockets");
  CudaFacts facts;
  facts.index = 3;
  facts.name = "Made up";
  facts.compute_capability = 90;
  facts.gdr = true;
  const Gpu& gpu = set_cuda_facts(m, *parse_bus_id("00000000:83:00.0"), facts);
  CHECK(gpu.index == 1);
  CHECK(gpu.cuda_index == 3);
  CHECK(gpu.pci.parent);
  const Gpu& hidden = set_cuda_facts(m, *parse_bus_id("0000:c3:00.0"), facts);
  CHECK_FALSE(hidden.pci.parent);
  CHECK(m.gpus.size() == 3);
  CHECK(m.has_warning("GPU_NO_PARENT"));
  CHECK_FALSE(hidden.pci.numa);
  CHECK(check_machine(m) == "");
  // Of one node with CPUs it is plain which one is near.
  m.numa_nodes.resize(1);
  CHECK(set_cuda_facts(m, *parse_bus_id("0000:c4:00.0"), facts).pci.numa == m.numa_nodes[0].id);
}

TEST_CASE("NCCL's letters have no NODE and no SOCK") {
  const Machine two = machine_of("two-sockets");
  auto letter = [&](const Machine& m, std::size_t gpu, const char* hca) {
    return std::string(nccl_letter(m, m.gpus[gpu], *m.find_hca(hca)));
  };
  CHECK(letter(two, 0, "mlx5_0") == "PIX");
  CHECK(letter(two, 0, "mlx5_1") == "PXB");
  CHECK(letter(two, 0, "mlx5_2") == "PHB");
  CHECK(letter(two, 0, "mlx5_3") == "PHB");
  CHECK(letter(two, 0, "mlx5_4") == "SYS");
  CHECK(letter(machine_of("four-nodes"), 0, "mlx5_0") == "SYS");
  const Machine grace = machine_of("grace-data-direct");
  CHECK(letter(grace, 0, "mlx5_0") == "PXB");
  CHECK(nccl_letter(grace, grace.gpus[0], *grace.find_hca("mlx5_0")->pci) == "P2C");
}

TEST_CASE("levels of one Broadcom switch are PXB for us, one switch, and PIX for NCCL") {
  Machine m = machine_of("two-sockets");
  for (Bridge& b : m.bridges) {
    if (b.pci.bus.text() == "0000:11:00.0") b.pci.id = {0x1000, 0xc030, 0x1000, 0x0072, 0x060400};
    if (b.pci.bus.text() == "0000:15:00.0") b.pci.id = {0x1000, 0xc030, 0x1000, 0x1003, 0x060400};
  }
  const Hca& hca = *m.find_hca("mlx5_1");
  const Relation r = gpu_to_hca(m, m.gpus[0], hca);
  CHECK(r.distance == Distance::pxb);
  CHECK(r.one_switch);
  CHECK(nccl_letter(m, m.gpus[0], hca) == "PIX");
  // The same ids elsewhere say nothing.
  CHECK_FALSE(gpu_to_hca(m, m.gpus[0], *m.find_hca("mlx5_0")).one_switch);
  CHECK(broadcom_generation({0x1000, 0xc010, 0x1000, 0xa012, 0}, 1) == 4);
  CHECK(broadcom_generation({0x10b5, 0x9797, 0x10b5, 0x0001, 0}, 0) == 0);
}

TEST_CASE("bridges on a GPU's own card do not count") {
  Machine m = machine_of("two-sockets");
  // GPU 1 and mlx5_4 share a switch; two more bridges on the way to the GPU make it PXB ...
  Bridge up, down;
  up.pci.bus = {0, 0xe0, 0, 0};
  up.pci.parent = m.gpus[1].pci.parent;
  m.bridges.push_back(up);
  down.pci.bus = {0, 0xe1, 0, 0};
  down.pci.parent = static_cast<int>(m.bridges.size()) - 1;
  m.bridges.push_back(down);
  m.gpus[1].pci.parent = static_cast<int>(m.bridges.size()) - 1;
  const Hca& hca = *m.find_hca("mlx5_4");
  CHECK(gpu_to_hca(m, m.gpus[1], hca).distance == Distance::pxb);
  // ... unless they are AMD's.
  m.bridges[m.bridges.size() - 2].on_card = true;
  m.bridges.back().on_card = true;
  CHECK(gpu_to_hca(m, m.gpus[1], hca).distance == Distance::pix);
}

TEST_CASE("a machine written for NCCL reads back with the letters it had") {
  for (const NamedMachine& n : own_machines()) {
    INFO(n.name);
    const Machine m = machine_of(n.name);
    std::string why;
    const auto back = parse_nccl_xml(write_nccl_xml(m), why);
    INFO(why);
    REQUIRE(back);
    const Machine& b = back->front();
    REQUIRE(check_machine(b) == "");
    REQUIRE(b.gpus.size() == m.gpus.size());
    REQUIRE(b.hcas.size() == m.hcas.size());
    for (std::size_t g = 0; g < m.gpus.size(); ++g) {
      for (const Hca& h : m.hcas) {
        const Hca* other = b.find_hca(h.name);
        REQUIRE(other != nullptr);
        std::string_view letter = nccl_letter(m, m.gpus[g], h);
        if (letter == "P2C") letter = "PHB";  // written only when the driver told the GPU's index
        CHECK(nccl_letter(b, b.gpus[g], *other) == letter);
        CHECK(other->data_direct.has_value() == h.data_direct.has_value());
      }
    }
  }
}

TEST_CASE("a topology file with more than one port, a virtual adapter and comments is read") {
  std::string why;
  const auto hosts = parse_nccl_xml(
      "<?xml version='1.0'?><!-- a > b --><system version='1'><cpu numaid='-1' arch='x86_64'>"
      "<nic><net name='veth0' port='1' speed='10000'/></nic>"
      "<pci busid='01:00.0' class='0x020700' vendor='0x15b3' device='0x1021' link_speed='32 GT/s'"
      " link_width='16'><nic><net name='mlx5_0' port='1' speed='400000' guid='0x10'/>"
      "<net name='mlx5_0' port='2' speed='200000' guid='0x10'/></nic></pci>"
      "<pci busid='02:00.0' class='0x030200'><gpu dev='4' sm='90' gdr='1'>"
      "<nvlink target='x' count='18' tclass='0x068000'/><c2c bw='1' count='1'/></gpu></pci>"
      "</cpu></system>",
      why);
  INFO(why);
  REQUIRE(hosts);
  const Machine& m = hosts->front();
  REQUIRE(m.hcas.size() == 2);
  const Hca& hca = *m.find_hca("mlx5_0");
  REQUIRE(hca.ports.size() == 2);
  CHECK(hca.ports[0].gbps == 400);
  CHECK(hca.kind == HcaKind::mlx5);
  CHECK(near(hca.pci->link.now(), 63.0));
  CHECK_FALSE(m.find_hca("veth0")->pci);
  CHECK(gpu_to_hca(m, m.gpus[0], *m.find_hca("veth0")).distance == Distance::c2c);
  CHECK(m.gpus[0].cuda_index == 4);
  CHECK(m.gpus[0].compute_capability == 90);
  CHECK(m.gpus[0].gdr == true);
  CHECK(m.gpus[0].nvlinks == 18);
  CHECK(m.numa_nodes.at(0).assumed);
  CHECK(m.gpus[0].c2c_node == m.gpus[0].pci.numa);
  CHECK(gpu_to_hca(m, m.gpus[0], hca).distance == Distance::c2c);  // as with numaid 0
}
