// The machines of test/golden/topology.
#include "test/topology/fake_machine.h"

namespace twinpath::test {
namespace {

// Two sockets; on the first a switch with a GPU and an adapter, more behind other root ports and
// host bridges: PIX, PXB, PHB, NODE, SYS in one machine.
FakeMachine two_sockets() {
  FakeMachine m;
  m.node(0, 0);
  m.node(1, 1);
  const std::string sw = "pci0000:10/0000:10:01.0/0000:11:00.0/";
  m.gpu(sw + "0000:12:00.0/0000:13:00.0", 0);
  m.hca(sw + "0000:12:01.0/0000:14:00.0", 0, "mlx5_0", 0x0c42a10300000010);
  // A second switch level below the first.
  m.hca(sw + "0000:12:02.0/0000:15:00.0/0000:16:00.0/0000:17:00.0", 0, "mlx5_1",
        0x0c42a10300000020);
  m.hca("pci0000:10/0000:10:02.0/0000:20:00.0", 0, "mlx5_2", 0x0c42a10300000030);
  m.hca("pci0000:40/0000:40:01.0/0000:41:00.0", 0, "mlx5_3", 0x0c42a10300000040);
  m.gpu("pci0000:80/0000:80:01.0/0000:81:00.0/0000:82:00.0/0000:83:00.0", 1);
  m.hca("pci0000:80/0000:80:01.0/0000:81:00.0/0000:82:01.0/0000:84:00.0", 1, "mlx5_4",
        0x0c42a10300000050);
  return m;
}

// One package of four NUMA nodes and a second one: SOCK and SYS.
FakeMachine four_nodes() {
  FakeMachine m;
  for (int n = 0; n < 4; ++n) m.node(n, 0);
  m.node(4, 1);
  m.gpu("pci0000:00/0000:00:01.0/0000:01:00.0", 0);
  m.hca("pci0000:20/0000:20:01.0/0000:21:00.0", 3, "mlx5_0", 0x0c42a10300000060);
  m.hca("pci0000:40/0000:40:01.0/0000:41:00.0", 4, "mlx5_1", 0x0c42a10300000070);
  return m;
}

// Grace with ConnectX-8: the PF on a domain of its own, the DMA function beside the GPU.
FakeMachine grace() {
  FakeMachine m;
  m.arm = true;
  m.iommu = true;
  for (int n = 0; n < 2; ++n) m.node(n, n);
  m.memory_node(2);
  m.memory_node(10);
  for (int i = 0; i < 2; ++i) {
    const std::string d = i == 0 ? "0008" : "0018";
    const std::string sw = "pci" + d + ":00/" + d + ":00:00.0/" + d + ":01:00.0/";
    m.gpu(sw + d + ":02:03.0/" + d + ":04:00.0/" + d + ":05:00.0/" + d + ":06:00.0", i)
        .gpu_memory_node = i == 0 ? 2 : 10;
    const std::string card = i == 0 ? "card-a" : "card-b";
    m.dma_function(sw + d + ":02:00.0/" + d + ":03:00.0", i, card);
    const std::string p = i == 0 ? "0000" : "0004";
    m.hca("pci" + p + ":00/" + p + ":00:00.0/" + p + ":01:00.0", i, "mlx5_" + std::to_string(i),
          0x0c42a10300000080 + static_cast<std::uint64_t>(i))
        .v3 = card;
    // What the right setting looks like: GPU port SV,RR,UF; DMA port SV,CR,UF; root port TB off.
    m.at(d + ":05:00.0").acs = 0x15;
    m.at(d + ":02:00.0").acs = 0x19;
    m.at(d + ":00:00.0").acs = 0x1c;
    m.at(d + ":06:00.0").iommu_group = 9 + i;
    m.at(d + ":03:00.0").iommu_group = 9 + i;
  }
  return m;
}

// A guest with everything on one bus and no NUMA information.
FakeMachine flat_guest() {
  FakeMachine m;
  m.hypervisor = true;
  m.node(0, 0);
  m.node(1, 1);
  for (int i = 0; i < 4; ++i) {
    const std::string slot = "pci0000:00/0000:00:" + std::string(i < 2 ? "1e" : "1f") + ".0";
    if (i % 2 == 0)
      m.hca("pci0000:00/0000:00:0" + std::to_string(4 + i) + ".0", -1,
            "mlx5_" + std::to_string(i / 2), 0x0c42a10300000090 + static_cast<std::uint64_t>(i));
    if (i % 2 == 1) m.gpu(slot, -1);
  }
  return m;
}

// Four GPUs and four adapters below two switches, one switch a socket.
FakeMachine eight_devices() {
  FakeMachine m;
  m.node(0, 0);
  m.node(1, 1);
  for (int s = 0; s < 2; ++s) {
    const std::string b = s == 0 ? "1" : "9";
    const std::string sw = "pci0000:" + b + "0/0000:" + b + "0:01.0/0000:" + b + "1:00.0/";
    for (int i = 0; i < 2; ++i) {
      const std::string n = std::to_string(i);
      m.gpu(sw + "0000:" + b + "2:0" + n + ".0/0000:" + b + std::to_string(3 + i) + ":00.0", s);
      m.hca(sw + "0000:" + b + "2:1" + n + ".0/0000:" + b + std::to_string(6 + i) + ":00.0", s,
            "mlx5_" + std::to_string(2 * s + i),
            0x0c42a103000000a0 + static_cast<std::uint64_t>(2 * s + i));
    }
  }
  return m;
}

}  // namespace

std::vector<NamedMachine> own_machines() {
  return {{"two-sockets", two_sockets()},
          {"four-nodes", four_nodes()},
          {"grace-data-direct", grace()},
          {"flat-guest", flat_guest()},
          {"eight-devices", eight_devices()}};
}

}  // namespace twinpath::test
