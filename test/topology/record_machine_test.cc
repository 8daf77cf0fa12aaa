// From a machine to decisions: software HCAs at chosen places get what real ones there would.
#include "topology/decide/record_machine.h"

#include "test/support/catch.h"
#include "topology/decide/decision.h"
#include "topology/model/place.h"

namespace twinpath {
namespace {

PciFunction function(const char* bus, std::optional<int> parent, std::optional<int> numa) {
  PciFunction f;
  f.bus = *parse_bus_id(bus);
  f.parent = parent;
  f.numa = numa;
  f.link.gts = f.link.max_gts = 32;
  f.link.width = f.link.max_width = 16;
  return f;
}

int add_bridge(Machine& m, BridgeKind kind, const char* bus, std::optional<int> parent, int numa,
               std::uint8_t secondary) {
  Bridge b;
  b.kind = kind;
  b.pci = function(bus, parent, numa);
  b.secondary_bus = b.subordinate_bus = secondary;
  m.bridges.push_back(b);
  return static_cast<int>(m.bridges.size()) - 1;
}

// Two sockets.  On socket 0 a switch with GPU0 (04:00.0) and mlx5_pix, on another root port of its
// host bridge mlx5_phb, on another host bridge mlx5_node; on socket 1 mlx5_sys.
Machine two_sockets() {
  Machine m;
  m.host.hostname = "node01";
  m.host.kernel = "6.1.0";
  m.host.nvidia_open = true;
  m.host.cpu = {"x86_64", "GenuineIntel", "", 6, 0x55};
  m.packages = {{0}, {1}};
  m.numa_nodes = {{0, 0, true, ""}, {1, 1, true, ""}};
  const int host0 = add_bridge(m, BridgeKind::host_bridge, "0000:00:00.0", {}, 0, 0);
  const int root = add_bridge(m, BridgeKind::root_port, "0000:00:01.0", host0, 0, 1);
  const int up = add_bridge(m, BridgeKind::upstream, "0000:01:00.0", root, 0, 2);
  const int down_gpu = add_bridge(m, BridgeKind::downstream, "0000:02:00.0", up, 0, 4);
  const int down_hca = add_bridge(m, BridgeKind::downstream, "0000:02:01.0", up, 0, 5);
  const int root2 = add_bridge(m, BridgeKind::root_port, "0000:00:02.0", host0, 0, 6);
  const int host1 = add_bridge(m, BridgeKind::host_bridge, "0000:20:00.0", {}, 0, 0x20);
  const int root3 = add_bridge(m, BridgeKind::root_port, "0000:20:01.0", host1, 0, 0x21);
  const int host2 = add_bridge(m, BridgeKind::host_bridge, "0000:80:00.0", {}, 1, 0x80);
  const int root4 = add_bridge(m, BridgeKind::root_port, "0000:80:01.0", host2, 1, 0x81);
  Gpu gpu;
  gpu.pci = function("0000:04:00.0", down_gpu, 0);
  gpu.compute_capability = 90;
  m.gpus.push_back(gpu);
  const auto add_hca = [&](const char* name, const char* bus, int parent, int numa) {
    Hca h;
    h.name = name;
    h.kind = HcaKind::mlx5;
    h.pci = function(bus, parent, numa);
    h.ports.push_back({});
    h.ports.back().gbps = 400;
    m.hcas.push_back(h);
  };
  add_hca("mlx5_pix", "0000:05:00.0", down_hca, 0);
  add_hca("mlx5_phb", "0000:06:00.0", root2, 0);
  add_hca("mlx5_node", "0000:21:00.0", root3, 0);
  add_hca("mlx5_sys", "0000:81:00.0", root4, 1);
  sort_devices(m);
  return m;
}

PlacementRecord record(const Machine& m, const char* hca, const PlatformFile& platform = {}) {
  EndFacts f = pair_facts(m, &m.gpus[0], m.find_hca(hca), platform);
  // A software HCA of the mlx5 level has queues that a GPU can write.
  f.mlx5 = f.devx = true;
  f.probes.uar.answer = Answer::yes;
  return make_record(f, {});
}

}  // namespace

TEST_CASE("the facts of a pair are its distance, rates and what hosts and devices say") {
  const Machine m = two_sockets();
  REQUIRE(check_machine(m).empty());
  const std::pair<const char*, Distance> table[] = {{"mlx5_pix", Distance::pix},
                                                    {"mlx5_phb", Distance::phb},
                                                    {"mlx5_node", Distance::node},
                                                    {"mlx5_sys", Distance::sys}};
  for (const auto& [name, distance] : table) {
    CAPTURE(name);
    const EndFacts f = pair_facts(m, &m.gpus[0], m.find_hca(name), {});
    CHECK(f.distance == distance);
    CHECK_FALSE(f.data_direct);
    CHECK(f.gpu == 0);
    CHECK(f.port_gbps == 400);
    CHECK(f.pcie_gbs > 60);
    CHECK(f.pcie_gbs < 64);
    CHECK(f.compute_capability == 90);
    CHECK(f.mlx5);
    CHECK(f.gdr_expected);
    CHECK_FALSE(f.root_good);
    CHECK_FALSE(f.acs_requests);
  }
}

TEST_CASE("software HCAs at chosen places get the decisions of real ones there") {
  Machine m = two_sockets();
  struct Place {
    const char* soft;
    const char* place;
    const char* real;
  };
  const Place places[] = {{"soft_pix", "below=0000:05:00.0", "mlx5_pix"},
                          {"soft_phb", "below=0000:06:00.0", "mlx5_phb"},
                          {"soft_node", "below=0000:21:00.0", "mlx5_node"},
                          {"soft_sys", "below=0000:81:00.0", "mlx5_sys"}};
  for (const Place& p : places) {
    std::string why;
    CAPTURE(p.soft);
    const bool placed = place_soft_hca(m, p.soft, p.place, why);
    CAPTURE(why);
    REQUIRE(placed);
  }
  for (const Place& a : places) {
    for (const Place& b : places) {
      for (const Use use : {Use{Pattern::bulk, false}, Use{Pattern::latency, true}}) {
        CAPTURE(a.soft, b.soft);
        const Decision soft = decide(record(m, a.soft), record(m, b.soft), use);
        const Decision real = decide(record(m, a.real), record(m, b.real), use);
        CHECK(name_of(soft.send.mode) == name_of(real.send.mode));
        CHECK(soft == real);
      }
    }
  }
  // And those are not all the same.
  const Use net{Pattern::bulk, false};
  CHECK(decide(record(m, "soft_pix"), record(m, "soft_pix"), net).send.mode == Mode::proxy_gdr);
  CHECK(decide(record(m, "soft_pix"), record(m, "soft_sys"), net).send.mode == Mode::proxy_stage);
}

TEST_CASE("a software HCA without a place moves GPU memory itself") {
  Machine m = two_sockets();
  std::string why;
  REQUIRE(place_soft_hca(m, "soft0", "none", why));
  const PlacementRecord p = record(m, "soft0");
  CHECK(p.land.reason == Reason::ok_virtual);
  CHECK(decide(p, p, {}).send.mode == Mode::proxy_gdr);
}

TEST_CASE("ACS counts in the direction that it redirects") {
  Machine m = two_sockets();
  const int gpu_port = *m.gpus[0].pci.parent;
  const int hca_port = *m.find_hca("mlx5_pix")->pci->parent;
  const auto facts = [&](std::uint16_t at_gpu, std::uint16_t at_hca) {
    m.bridges[static_cast<std::size_t>(gpu_port)].pci.acs = AcsControl{at_gpu};
    m.bridges[static_cast<std::size_t>(hca_port)].pci.acs = AcsControl{at_hca};
    return pair_facts(m, &m.gpus[0], m.find_hca("mlx5_pix"), {});
  };
  // The right setting of Grace with ConnectX-8: GPU port SV, RR, UF; HCA port SV, CR, UF.
  EndFacts f = facts(0x15, 0x19);
  CHECK_FALSE(f.acs_requests);
  CHECK_FALSE(f.acs_answers);
  f = facts(0x19, 0x15);
  CHECK(f.acs_requests);
  CHECK(f.acs_answers);
  f = facts(0x1d, 0x19);
  CHECK_FALSE(f.acs_requests);
  CHECK(f.acs_answers);
  f = facts(0, 0x20);
  CHECK(f.acs_requests);
  CHECK_FALSE(pair_facts(m, &m.gpus[0], m.find_hca("mlx5_phb"), {}).acs_requests);
}

TEST_CASE("ACS counts at the common switch only, not at ports farther down") {
  Machine m = two_sockets();
  // A second switch between the GPU and the port of the common one.
  const int port = *m.gpus[0].pci.parent;
  const int up = add_bridge(m, BridgeKind::upstream, "0000:04:00.0", port, 0, 7);
  const int inner = add_bridge(m, BridgeKind::downstream, "0000:07:00.0", up, 0, 8);
  m.gpus[0].pci = function("0000:08:00.0", inner, 0);
  const auto answers = [&] {
    return pair_facts(m, &m.gpus[0], m.find_hca("mlx5_pix"), {}).acs_answers;
  };
  m.bridges[static_cast<std::size_t>(inner)].pci.acs = AcsControl{0x1d};
  CHECK_FALSE(answers());
  m.bridges[static_cast<std::size_t>(port)].pci.acs = AcsControl{0x1d};
  CHECK(answers());
}

TEST_CASE("an HCA of which only the data-direct function is told has that one's distance") {
  Machine m = two_sockets();
  Hca& hca = *m.find_hca("mlx5_pix");
  hca.data_direct = *hca.pci;
  hca.pci.reset();
  const EndFacts f = pair_facts(m, &m.gpus[0], &hca, {});
  CHECK(f.gdr_expected);
  CHECK(f.data_direct == Distance::pix);
  CHECK(f.distance == Distance::unknown);
}

TEST_CASE("whether GDR is expected follows the hints, and only told ones speak against it") {
  Machine m = two_sockets();
  const auto expected = [&] {
    return pair_facts(m, &m.gpus[0], m.find_hca("mlx5_pix"), {}).gdr_expected;
  };
  CHECK(expected());
  m.host.peermem = false;
  CHECK(expected());  // dma-buf remains
  m.host.kernel = "5.4.0-150-generic";
  CHECK_FALSE(expected());
  m.host.peermem = true;
  CHECK(expected());
  m.gpus[0].gdr = false;
  CHECK_FALSE(expected());
  m = two_sockets();
  m.host.nvidia_open = false;
  CHECK(expected());  // peermem is not known to be missing
  m.host.peermem = false;
  CHECK_FALSE(expected());
}

TEST_CASE("a pair that no source saw is far and unknown, not an error") {
  const Machine m = two_sockets();
  CHECK(pair_facts(m, nullptr, nullptr, {}).distance == Distance::unknown);
  CHECK(pair_facts(m, nullptr, m.find_hca("mlx5_pix"), {}).distance == Distance::unknown);
  CHECK(pair_facts(m, &m.gpus[0], nullptr, {}).distance == Distance::unknown);
  CHECK(pair_facts(Machine{}, nullptr, nullptr, {}).distance == Distance::unknown);
  CHECK(best_hcas(Machine{}, {}).empty());
}

TEST_CASE("the platform file is laid over what was read") {
  const Machine m = two_sockets();
  const PlatformFile file = PlatformFile::parse(
      "GPU 0000:04:00.0 HCA mlx5_sys CLASS PIX\nHCA mlx5_pix IGNORE\nHCA mlx5_sys RAIL 6\n");
  const PlacementRecord p = record(m, "mlx5_sys", file);
  CHECK(p.distance == Distance::pix);
  CHECK(p.rail == 6);
  CHECK((p.flags & kFlagPlatform) != 0);
  const auto name = [&](int hca) { return m.hcas[static_cast<std::size_t>(hca)].name; };
  CHECK(name(best_hcas(m, {})[0]) == "mlx5_pix");
  CHECK(name(best_hcas(m, file)[0]) == "mlx5_sys");
}

TEST_CASE("hashes tell hosts and placements apart") {
  Machine m = two_sockets();
  const Machine same = two_sockets();
  CHECK(host_hash(m) == host_hash(same));
  CHECK(topology_hash(m) == topology_hash(same));
  m.host.hostname = "node02";
  CHECK(host_hash(m) != host_hash(same));
  CHECK(topology_hash(m) == topology_hash(same));
  m.gpus[0].pci.parent = m.find_hca("mlx5_sys")->pci->parent;
  CHECK(topology_hash(m) != topology_hash(same));
}

}  // namespace twinpath
