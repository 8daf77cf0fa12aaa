// Every machine of the shared set against golden.json, which an independent program made.
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>

#include "test/support/catch.h"
#include "test/support/needs.h"
#include "test/topology/data.h"
#include "topology/model/distance_rule.h"
#include "topology/read/cross_check.h"
#include "topology/read/hwloc_reader.h"
#include "topology/read/hwloc_xml.h"
#include "topology/read/nccl_xml.h"
#include "topology/read/sysfs_reader.h"

using namespace twinpath;
using namespace twinpath::test;
using nlohmann::json;

namespace {

json golden() { return json::parse(slurp(shared_topologies() + "/golden.json")); }

BusId bus_of(const json& text) {
  const auto bus = parse_bus_id(text.get<std::string>());
  REQUIRE(bus);
  return *bus;
}

// golden.json lists functions: an adapter by the one that verbs opens, a data-direct function by
// itself.
const PciFunction* find_function(const Machine& m, const BusId& bus) {
  for (const Hca& h : m.hcas) {
    if (h.pci && h.pci->bus == bus) return &*h.pci;
    if (h.data_direct && h.data_direct->bus == bus) return &*h.data_direct;
  }
  for (const DmaFunction& f : m.dma_functions)
    if (f.bus == bus) return &f;
  return nullptr;
}

enum class With { c2c, pcie_only };

void check_classes(const Machine& m, const json& expected, With with) {
  REQUIRE(check_machine(m) == "");
  REQUIRE(m.gpus.size() == expected["gpus"].size());
  std::set<std::string> functions;
  for (const Hca& h : m.hcas) {
    if (h.pci) functions.insert(h.pci->bus.text());
    if (h.data_direct) functions.insert(h.data_direct->bus.text());
  }
  for (const DmaFunction& f : m.dma_functions) functions.insert(f.bus.text());
  REQUIRE(functions.size() == expected["nics"].size());
  for (std::size_t g = 0; g < expected["gpus"].size(); ++g) {
    const Gpu* gpu = m.find_gpu(bus_of(expected["gpus"][g]));
    REQUIRE(gpu != nullptr);
    CHECK(gpu->pci.numa.value_or(-1) == expected["gpu_numa"][g].get<int>());
    for (std::size_t n = 0; n < expected["nics"].size(); ++n) {
      const PciFunction* f = find_function(m, bus_of(expected["nic_bus"][n]));
      INFO(gpu->pci.bus.text() << " x " << expected["nics"][n]);
      REQUIRE(f != nullptr);
      CHECK(f->numa.value_or(-1) == expected["nic_numa"][n].get<int>());
      const Relation r = gpu_to_function(m, *gpu, *f);
      const Distance found = with == With::c2c ? r.distance : r.pcie;
      CHECK(std::string(name_of(found)) == expected["cls"][g][n].get<std::string>());
      // Distance has no direction.
      CHECK(relate(m, *f, gpu->pci).pcie == r.pcie);
    }
  }
}

}  // namespace

TEST_CASE("every hwloc file of the shared set has the expected classes") {
  NEEDS(!shared_topologies().empty(), "no shared topology set (TWINPATH_TOPOLOGY_DATA)");
  std::string why;
  int files = 0;
  const json all = golden();
  for (const auto& [name, expected] : all.items()) {
    if (expected["source"] != "hwloc") continue;
    INFO(name);
    const auto m = read_hwloc_xml(shared_topologies() + "/" + name, why);
    INFO(why);
    REQUIRE(m);
    check_classes(*m, expected, With::c2c);
    ++files;
  }
  CHECK(files == 20);
}

TEST_CASE("every captured root of the shared set reads alike through sysfs and hwloc") {
  NEEDS(!shared_topologies().empty(), "no shared topology set (TWINPATH_TOPOLOGY_DATA)");
  const json all = golden();
  int files = 0;
  std::string why;
  const bool have_hwloc = hwloc_available(why);
  for (const auto& entry : std::filesystem::directory_iterator(shared_topologies() + "/sysfs")) {
    const std::string archive = entry.path().string();
    if (!archive.ends_with(".tar.bz2")) continue;
    const TemporaryFolder folder;
    const auto root = unpack(archive, folder.path());
    NEEDS(root, "tar or bzip2 is missing");
    INFO(archive);
    const auto m = read_sysfs(*root, why);
    INFO(why);
    REQUIRE(m);
    REQUIRE(check_machine(*m) == "");
    std::string name = entry.path().filename().string();
    name.resize(name.find(".tar"));
    if (name.ends_with("-acs")) name.resize(name.size() - 4);
    const std::string key = "hwloc/" + name + ".xml";
    // sysfs also shows NVLink-C2C, which the file of hwloc cannot have told.
    if (all.contains(key)) check_classes(*m, all[key], With::pcie_only);
    if (have_hwloc) {
      const auto other = read_hwloc_folder(*root, why);
      INFO(why);
      REQUIRE(other);
      const Machine both = cross_checked(*m, *other);
      CHECK_FALSE(both.has_warning("HWLOC_BLIND"));
      CHECK_FALSE(both.has_warning("HWLOC_NUMA"));
      CHECK_FALSE(both.has_warning("SYSFS_BLIND"));
      if (all.contains(key)) check_classes(*other, all[key], With::pcie_only);
    }
    ++files;
  }
  CHECK(files == 6);
}

TEST_CASE("every NCCL file of the shared set has the expected classes and letters") {
  NEEDS(!shared_topologies().empty(), "no shared topology set (TWINPATH_TOPOLOGY_DATA)");
  const json all = golden();
  int files = 0;
  for (const auto& [name, expected] : all.items()) {
    if (expected["source"] != "nccl") continue;
    INFO(name);
    std::string why;
    const auto hosts = read_nccl_xml(shared_topologies() + "/" + name, why);
    INFO(why);
    REQUIRE(hosts);
    CHECK(hosts->size() == expected["hosts"].get<std::size_t>());
    // Devices of several hosts stand in the lists one host after the other.
    const std::size_t gpus = expected["gpus"].size() / hosts->size();
    const std::size_t nics = expected["nics"].size() / hosts->size();
    for (std::size_t g = 0; g < expected["gpus"].size(); ++g) {
      const Machine& m = (*hosts)[g / gpus];
      REQUIRE(check_machine(m) == "");
      REQUIRE(m.gpus.size() == gpus);
      const Gpu* gpu = m.find_gpu(bus_of(expected["gpus"][g]));
      REQUIRE(gpu != nullptr);
      for (std::size_t n = 0; n < expected["nics"].size(); ++n) {
        INFO(gpu->pci.bus.text() << " x " << expected["nics"][n]);
        const auto before = expected["cls_before_flatten"][g][n].get<std::string>();
        if (n / nics != g / gpus) {
          CHECK(before == "NET");
          continue;
        }
        const PciFunction* f = find_function(m, bus_of(expected["nic_bus"][n]));
        REQUIRE(f != nullptr);
        CHECK(parse_distance(before) == gpu_to_function(m, *gpu, *f).distance);
        CHECK(nccl_letter(m, *gpu, *f) == expected["cls"][g][n].get<std::string>());
      }
    }
    ++files;
  }
  CHECK(files == 7);
}

TEST_CASE("a provider's file on top of the guest's tree changes exactly what it knows") {
  NEEDS(!shared_topologies().empty(), "no shared topology set (TWINPATH_TOPOLOGY_DATA)");
  std::string why;
  struct Case {
    const char* guest;
    const char* file;
    Distance hidden;  // what the guest shows for pairs that share a switch
  };
  const Case cases[] = {
      {"/hwloc/aws-p4d.24xl.xml", "/nccl/aws-p4d-24xl-topo.xml", Distance::phb},
      {"/hwloc/synth-azure-ndv4-guest.xml", "/nccl/azure-ndv4-topo.xml", Distance::node}};
  for (const Case& c : cases) {
    INFO(c.guest);
    const auto guest = read_hwloc_xml(shared_topologies() + c.guest, why);
    const auto file = read_nccl_xml(shared_topologies() + c.file, why);
    REQUIRE(guest);
    REQUIRE(file);
    Machine m = *guest;
    CHECK(apply_nccl_placement(m, file->front(), c.file) ==
          static_cast<int>(m.gpus.size() + m.hcas.size()));
    REQUIRE(check_machine(m) == "");
    for (std::size_t g = 0; g < m.gpus.size(); ++g) {
      for (std::size_t h = 0; h < m.hcas.size(); ++h) {
        const Distance was = gpu_to_hca(*guest, guest->gpus[g], guest->hcas[h]).distance;
        const Distance now = gpu_to_hca(m, m.gpus[g], m.hcas[h]).distance;
        INFO(m.gpus[g].pci.bus.text() << " x " << m.hcas[h].name);
        const std::string letter(nccl_letter(m, m.gpus[g], m.hcas[h]));
        if (letter == "PIX") {
          CHECK(was == c.hidden);
          CHECK(now == Distance::pix);
        } else {
          CHECK(now == was);
        }
      }
    }
  }
}

TEST_CASE("the DMA functions of a GB300 read from sysfs are where NCCL sees them") {
  NEEDS(!shared_topologies().empty(), "no shared topology set (TWINPATH_TOPOLOGY_DATA)");
  const TemporaryFolder folder;
  const auto root = unpack(shared_topologies() + "/sysfs/synth-gb300-1host.tar.bz2", folder.path());
  NEEDS(root, "tar or bzip2 is missing");
  std::string why;
  const auto m = read_sysfs(*root, why);
  const auto nccl = read_nccl_xml(shared_topologies() + "/nccl/oci-GB300MP.xml", why);
  REQUIRE(m);
  REQUIRE(nccl);
  REQUIRE(m->hcas.size() == 4);
  for (const Gpu& g : m->gpus) {
    REQUIRE(g.c2c_node);
    for (const Hca& h : m->hcas) {
      INFO(g.pci.bus.text() << " x " << h.name);
      REQUIRE(h.data_direct);
      const Machine& other = nccl->front();
      const Relation r = gpu_to_hca(*m, g, h);
      CHECK(r.data_direct);
      CHECK(r.distance ==
            gpu_to_hca(other, *other.find_gpu(g.pci.bus), *other.find_hca(h.name)).distance);
      CHECK(r.physical_function >= Distance::c2c);  // the PF alone is never below the switch
    }
  }
}

TEST_CASE("every matrix of nvidia-smi reads with our class names") {
  NEEDS(!shared_topologies().empty(), "no shared topology set (TWINPATH_TOPOLOGY_DATA)");
  const json all = golden();
  int files = 0;
  for (const auto& [name, expected] : all.items()) {
    if (expected["source"] != "nvidia-smi") continue;
    INFO(name);
    std::istringstream lines(slurp(shared_topologies() + "/" + name));
    std::string line, cell;
    std::getline(lines, line);
    std::vector<std::string> header;
    for (std::istringstream cells(line); std::getline(cells, cell, '\t');) header.push_back(cell);
    std::size_t row = 0;
    while (std::getline(lines, line) && row < expected["gpus"].size()) {
      if (!line.starts_with("GPU")) continue;
      std::istringstream cells(line);
      std::size_t nic = 0;
      for (std::size_t i = 0; std::getline(cells, cell, '\t') && i < header.size(); ++i) {
        if (nic == expected["nics"].size() || header[i] != expected["nics"][nic].get<std::string>())
          continue;
        const auto d = parse_distance(cell.substr(cell.find_first_not_of(' ')));
        REQUIRE(d);
        CHECK(std::string(name_of(*d)) == expected["cls"][row][nic].get<std::string>());
        ++nic;
      }
      CHECK(nic == expected["nics"].size());
      ++row;
    }
    CHECK(row == expected["gpus"].size());
    ++files;
  }
  CHECK(files == 6);
}
