#pragma once
// Machines of our own making, from one table: written as a tree of /sys and /proc in a folder, and
// as XML of hwloc.  A device is named by its path below /sys/devices, as the kernel writes it:
// "pci0000:10/0000:10:01.0/0000:11:00.0".
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "topology/model/machine.h"

namespace twinpath::test {

class FakeMachine {
 public:
  struct Function {
    std::string path;
    PciId id;
    int numa = -1;
    BridgeKind kind = BridgeKind::unknown;  // of bridges
    std::optional<std::uint16_t> acs;
    int iommu_group = -1;
    std::string v3;            // VPD keyword; empty: no VPD
    std::string hca;           // name of its RDMA device; empty: none
    std::uint64_t guid = 0;    // node GUID of that
    int gpu_memory_node = -1;  // numa_status of a GPU
    double gts = 32.0, max_gts = 32.0;
    int width = 16;
  };

  // A NUMA node with CPUs, of a package.
  void node(int id, int package, int cpus = 2);
  void memory_node(int id);  // without CPUs
  // Enters the bridges of a path that are not there yet: root port, upstream, downstream, ...
  Function& gpu(const std::string& path, int numa);
  Function& hca(const std::string& path, int numa, const std::string& name, std::uint64_t guid);
  Function& dma_function(const std::string& path, int numa, const std::string& v3);
  Function& at(const std::string& bus);  // function with this bus id

  bool arm = false;
  bool hypervisor = false;
  bool iommu = false;
  std::size_t config_bytes = 4096;  // of every config file; 0: no such files
  bool local_cpus = true;           // whether local_cpus files exist

  // Writes sys and proc below `root`.
  void write(const std::string& root) const;
  std::string hwloc_xml() const;

 private:
  struct Node {
    int id, package, first_cpu, cpus;
  };
  Function& add(const std::string& path, const PciId& id, int numa);
  std::string mask(int numa) const;
  std::vector<std::uint8_t> config(const Function& f) const;
  void write_function(const std::string& root, const Function& f) const;
  void write_cpus(const std::string& root) const;
  void write_hca(const std::string& root, const Function& f) const;
  void xml_children(const std::string& path, int indent, std::string& out) const;

  std::vector<Node> nodes_;
  std::vector<Function> functions_;  // parents first
};

// The set: each shows one kind of placement.
struct NamedMachine {
  std::string name;
  FakeMachine machine;
};
std::vector<NamedMachine> own_machines();

}  // namespace twinpath::test
