#pragma once
// One machine as plain values: where its GPUs, HCAs and PCIe bridges sit, and what is known about
// them.  Readers (hwloc, sysfs, NCCL's XML) fill it, distance_rule.h measures distances on it, the
// decision and the report tool read it.  Nothing here reads a file or keeps state.
//
// "Unknown" is a value: an empty optional means that no source told, never "no" or zero.
//
// Invariants (check_machine): Bridge::parent is smaller than the bridge's own index; every index
// lies in its vector; gpus and hcas are sorted by bus id, those of one bus by name; gpus[i].index
// is i; no GPU stands twice; there are at most kMostDevices GPUs and as many HCAs, so that a file
// cannot ask for more pairs than memory holds.
//
// Threads: plain values.
#include <compare>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace twinpath {

// A PCI function.  Domains have 32 bits: VMD and Hyper-V count beyond 0xffff.
struct BusId {
  std::uint32_t domain = 0;
  std::uint8_t bus = 0;
  std::uint8_t device = 0;    // 5 bits
  std::uint8_t function = 0;  // 3 bits

  friend auto operator<=>(const BusId&, const BusId&) = default;
  bool same_slot(const BusId& o) const {
    return domain == o.domain && bus == o.bus && device == o.device;
  }
  std::string text() const;  // "0000:a1:00.0", with more digits where the domain needs them
};
// "0000:a1:00.0", "a1:00.0" (domain 0), CUDA's "00000000:A1:00.0"; nullopt otherwise.
std::optional<BusId> parse_bus_id(std::string_view text);

// Vendor and device of a PCI function as its configuration space has them; 0 = not told.
struct PciId {
  std::uint16_t vendor = 0;
  std::uint16_t device = 0;
  std::uint16_t subsystem_vendor = 0;
  std::uint16_t subsystem_device = 0;
  std::uint32_t class_code = 0;  // 24 bits: class, subclass, interface (0x020700)
  friend bool operator==(const PciId&, const PciId&) = default;
};

// The link between a function and the port above it.
struct PcieLink {
  std::optional<double> gts;      // now, gigatransfers per second and lane (32.0 is Gen5)
  std::optional<int> width;       // now, lanes
  std::optional<double> max_gts;  // the most that the device can do
  std::optional<int> max_width;
  // Where gts and width were not told apart: hwloc gives the product only.
  std::optional<double> gbytes;

  // Gigabytes per second after line coding.  at_most() falls back to now() where the maximum is
  // not told.
  std::optional<double> now() const;
  std::optional<double> at_most() const;
  bool degraded() const;  // both known and now below the maximum
  friend bool operator==(const PcieLink&, const PcieLink&) = default;
};
// Gigabytes per second of a PCIe link: 8b/10b up to 5 GT/s, 128b/130b up to 32, flits at 64.
double pcie_gbytes(double gts, int width);

// Access Control Services of a root or downstream port, or of a multi-function device.
struct AcsControl {
  std::uint16_t bits = 0;
  bool request_redirect() const { return (bits & 0x04) != 0; }     // its own requests go up
  bool completion_redirect() const { return (bits & 0x08) != 0; }  // its answers go up
  bool egress_control() const { return (bits & 0x20) != 0; }
  std::string text() const;  // "SV,RR,CR,UF", "none"
  friend bool operator==(AcsControl, AcsControl) = default;
};

// What holds for every PCI function, and all that the distance between two of them needs.
struct PciFunction {
  BusId bus;
  PciId id;
  std::string model;          // name by the PCI id table where the source has one
  std::optional<int> parent;  // index into Machine::bridges; nullopt: not below any known bridge
  std::optional<int> numa;    // NumaNode::id of the CPU node it is attached to
  PcieLink link;
  std::optional<int> iommu_group;
  std::optional<std::string> iommu_type;  // "identity", "DMA", "DMA-FQ" of its group
  std::optional<AcsControl> acs;
  // SR-IOV: the physical function of a virtual one; the number of virtual ones of a physical.
  std::optional<BusId> physical_function;
  std::optional<int> virtual_functions;
};

enum class BridgeKind : std::uint8_t {
  host_bridge,  // root complex: /sys/devices/pciDDDD:BB, or a <cpu> of NCCL's XML
  root_port,
  upstream,    // the port of a switch that looks to the CPU: it stands for the switch
  downstream,  // a port of a switch that looks to a device
  unknown,
};

struct Bridge {
  BridgeKind kind = BridgeKind::unknown;
  PciFunction pci;  // host bridge: bus is domain and root bus only; parent is empty
  std::uint8_t secondary_bus = 0;
  std::uint8_t subordinate_bus = 0;
  // Stands for a whole switch (upstream and downstream port in one): NCCL's XML.
  bool folded = false;
  bool on_card = false;   // part of a GPU's own board (AMD); not counted as a hop
  bool emulated = false;  // made by a hypervisor; its link speed means nothing
  // kind was concluded from the depth in the tree, not read from the PCIe capability.
  bool kind_guessed = false;
};

struct Gpu {
  int index = 0;                  // position in Machine::gpus: by bus id
  std::optional<int> cuda_index;  // where the driver or NCCL's XML told
  PciFunction pci;
  std::string name;  // marketing name where known, otherwise the PCI table's, otherwise empty
  bool amd = false;  // by its id, or by words that only RCCL's XML has
  std::optional<int> compute_capability;  // 90 is 9.0
  std::optional<bool> gdr;                // the driver's own word on GPUDirect RDMA
  std::optional<int> nvlinks;             // NVLinks (or XGMI) to other GPUs or switches
  std::optional<int> c2c_node;            // CPU NUMA node at the other end of NVLink-C2C
  std::optional<int> memory_node;         // CPU-less NUMA node of its memory
};

enum class PortState : std::uint8_t { down, init, armed, active };
enum class LinkLayer : std::uint8_t { infiniband, ethernet };
struct HcaPort {
  int number = 1;
  std::optional<PortState> state;
  std::optional<int> gbps;
  std::optional<LinkLayer> layer;
  std::optional<int> lid;
  std::optional<int> gids;  // valid GIDs in its table
  std::string netdev;
  std::optional<int> netdev_mtu;
};

enum class HcaKind : std::uint8_t { mlx5, efa, cxi, soft, other };
enum class HcaRole : std::uint8_t { data, management };

struct Hca {
  std::string name;  // "mlx5_0"
  HcaKind kind = HcaKind::other;
  // The PF (or VF) that verbs opens.  Empty for an adapter without a PCI place (rxe, siw, a soft
  // HCA that was not placed).
  std::optional<PciFunction> pci;
  // Where an adapter without a PCI place hangs, where a file told (NCCL's XML: a bond below a
  // <cpu>).
  std::optional<int> numa;
  // ConnectX-8 data direct: the DMA function (class 0x0801) that moves GPU data.
  std::optional<PciFunction> data_direct;
  std::vector<HcaPort> ports;
  std::optional<std::uint64_t> node_guid;
  std::optional<std::uint64_t> sys_image_guid;  // equal: one card
  std::string firmware;
  std::string board;  // PSID
  // "EFA", "iWARP", "usNIC", "Slingshot": neither InfiniBand nor RoCE, which the plugin leaves out.
  // Empty: one of these two, as far as was told.
  std::string foreign;
  HcaRole role = HcaRole::data;
  std::string role_reason;            // why it is a management adapter; empty for data
  std::optional<bool> default_route;  // its netdev carries the default route

  // The function that GPU data goes through: data_direct, else pci; null without a PCI place.
  const PciFunction* data_path() const {
    return data_direct ? &*data_direct : pci ? &*pci : nullptr;
  }
};

// A data-direct function whose HCA no source told (set_data_direct ties them later).
using DmaFunction = PciFunction;

struct Package {
  int id = 0;
};
struct NumaNode {
  int id = 0;                  // the operating system's number
  std::optional<int> package;  // Package::id
  bool has_cpus = true;        // false: memory of a GPU or an expander
  std::string cpus;            // Linux mask "ffffffff,00000000" where told (NCCL's affinity)
  bool assumed = false;        // a <cpu> of NCCL's XML without a number: `id` is one that is free
};

struct CpuModel {
  std::string arch;    // "x86_64", "arm64", "ppc64"
  std::string vendor;  // "GenuineIntel", "AuthenticAMD", "ARM"
  std::string name;
  std::optional<int> family;
  std::optional<int> model;
};

// What the operating system and the drivers say; only the sysfs reader fills all of it.
struct HostFacts {
  std::string hostname;
  std::string kernel;   // "6.1.0-18-amd64"
  std::string product;  // DMI product name
  std::string vendor;   // DMI system vendor
  CpuModel cpu;
  std::optional<bool> virtual_machine;
  std::optional<bool> iommu_on;
  std::optional<std::string> nvidia_driver;        // "580.95.05"
  std::optional<bool> nvidia_open;                 // open kernel modules
  std::optional<std::string> nvidia_registry;      // RegistryDwords of the driver's params
  std::optional<bool> nvidia_topo_check_override;  // GrdmaPciTopoCheckOverride=1
  std::optional<bool> peermem;                     // nvidia_peermem (or the older module) loaded
  std::optional<bool> extended_config;             // config space beyond 256 bytes readable (ACS)
  std::optional<std::uint64_t> memlock;            // bytes, all ones = unlimited
  std::optional<bool> uverbs;                      // /dev/infiniband/uverbs* exist
};

// One thing that a user should know: object and cause in `text`, what to do in `remedy`.
struct TopologyWarning {
  std::string code;  // "HWLOC_BLIND", "NUMA_UNKNOWN", ...: stable, see DECISIONS.md
  std::string text;
  std::string remedy;  // empty: nothing to do
  friend bool operator==(const TopologyWarning&, const TopologyWarning&) = default;
};

inline constexpr std::size_t kMostDevices = 1024;

struct Machine {
  HostFacts host;
  std::vector<Package> packages;
  std::vector<NumaNode> numa_nodes;
  std::vector<Bridge> bridges;
  std::vector<Gpu> gpus;
  std::vector<Hca> hcas;
  std::vector<DmaFunction> dma_functions;
  // Of NCCL's XML: functions that it names by address alone.  Those of the machine that it is laid
  // over tell what they are.
  std::vector<PciFunction> unnamed;
  std::vector<TopologyWarning> warnings;
  std::vector<std::string> sources;  // "sysfs /", "hwloc 2.9.0", "nccl-xml FILE"

  const NumaNode* numa_node(int id) const;
  // The machine's only CPU node, if there is exactly one: then every device is on it.
  std::optional<int> only_cpu_node() const;
  const Hca* find_hca(std::string_view name) const;
  Hca* find_hca(std::string_view name);
  // The GPU at a CUDA bus id ("00000000:A1:00.0"); null when no source saw it.
  const Gpu* find_gpu(const BusId& bus) const;
  Gpu* find_gpu(const BusId& bus);
  void warn(std::string code, std::string text, std::string remedy = {});
  bool has_warning(std::string_view code) const;
};

// Sorts GPUs and HCAs as the invariants say and numbers the GPUs.
void sort_devices(Machine& machine);
// Empty when the invariants hold, otherwise the first breach.
std::string check_machine(const Machine& machine);

std::string_view name_of(BridgeKind kind);
std::string_view name_of(PortState state);
std::string_view name_of(LinkLayer layer);
std::string_view name_of(HcaKind kind);
std::string_view name_of(HcaRole role);

}  // namespace twinpath
