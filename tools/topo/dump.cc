#include "tools/topo/dump.h"

#include <algorithm>
#include <cstdio>
#include <random>
#include <set>
#include <sstream>

#include "tools/topo/names.h"
#include "topology/decide/record.h"
#include "topology/read/config_space.h"
#include "topology/read/file_root.h"

namespace twinpath::tools::topo {
namespace {

std::string parent_of(const std::string& path) { return path.substr(0, path.rfind('/')); }

// From the folder of `link` to `target`, both absolute below the root.
std::string relative_target(const std::string& link, const std::string& target) {
  std::string up;
  std::string base = parent_of(link);
  while (!base.empty() && !target.starts_with(base + "/")) {
    up += "../";
    base = parent_of(base);
  }
  return up + target.substr(base.size() + 1);
}

class Dump {
 public:
  Dump(const Machine& machine, const std::string& root, bool raw)
      : m_(machine), root_(root), raw_(raw), salt_(std::to_string(std::random_device{}())) {}

  std::vector<TarEntry> run() {
    cpus();
    host();
    for (const Gpu& g : m_.gpus) {
      function(g.pci);
      const std::string nvidia = "/proc/driver/nvidia/gpus/" + g.pci.bus.text();
      lines(nvidia + "/information", {"Model:"});
      copy(nvidia + "/numa_status");
    }
    for (const Hca& h : m_.hcas) hca(h);
    for (const DmaFunction& f : m_.dma_functions) function(f);
    for (const Bridge& b : m_.bridges)
      if (b.kind != BridgeKind::host_bridge) function(b.pci);
    return std::move(out_);
  }

 private:
  void file(const std::string& path, std::string data) {
    if (seen_.insert(path).second)
      out_.push_back({path.substr(1), TarEntry::Kind::file, std::move(data), {}});
  }
  void folder(const std::string& path) {
    if (seen_.insert(path).second) out_.push_back({path.substr(1), TarEntry::Kind::folder, {}, {}});
  }
  void link(const std::string& path, const std::string& target) {
    if (seen_.insert(path).second)
      out_.push_back({path.substr(1), TarEntry::Kind::link, {}, relative_target(path, target)});
  }
  void copy(const std::string& path) {
    if (const auto text = root_.text(path)) file(path, *text + "\n");
  }
  // The lines of a text that begin with one of `keys`.
  void lines(const std::string& path, const std::vector<std::string>& keys) {
    const auto text = root_.text(path);
    if (!text) return;
    std::istringstream in(*text);
    std::string line, kept;
    while (std::getline(in, line)) {
      const bool wanted = line.empty() || std::any_of(keys.begin(), keys.end(), [&](const auto& k) {
                            return line.starts_with(k);
                          });
      if (wanted) kept += line + "\n";
    }
    file(path, kept);
  }

  std::string hashed(const std::string& text) const {
    char out[32];
    std::snprintf(out, sizeof out, "%016llx",
                  static_cast<unsigned long long>(hash64(salt_ + text)));
    return out;
  }
  std::string hashed_guid(const std::string& guid) const {
    if (raw_ || guid.find_first_not_of("0:") == std::string::npos) return guid;
    const std::string h = hashed(guid);
    return h.substr(0, 4) + ":" + h.substr(4, 4) + ":" + h.substr(8, 4) + ":" + h.substr(12);
  }
  // Empty slots stay empty; what is an address of which kind stays visible.
  std::string hashed_gid(const std::string& gid) const {
    if (raw_ || gid.size() != 39 || gid.find_first_not_of("0:") == std::string::npos) return gid;
    const std::string prefix = gid.substr(0, 20), rest = gid.substr(20);
    if (prefix == "fe80:0000:0000:0000:") return prefix + hashed_guid(rest);
    if (gid.starts_with("0000:0000:0000:0000:0000:ffff:"))
      return gid.substr(0, 30) + "0a00:" + hashed(gid).substr(0, 4);
    return "fd00:0000:0000:0000:" + hashed_guid(rest);
  }

  void cpus() {
    const std::string system = "/sys/devices/system";
    for (const char* name : {"online", "present", "possible"}) copy(system + "/cpu/" + name);
    for (const std::string& cpu :
         root_.list(system + "/cpu").value_or(std::vector<std::string>())) {
      const std::string topology = system + "/cpu/" + cpu + "/topology";
      for (const char* name : {"physical_package_id", "core_id", "die_id", "core_siblings",
                               "thread_siblings", "core_cpus", "package_cpus"})
        copy(topology + "/" + name);
    }
    for (const char* name : {"online", "possible", "has_cpu"}) copy(system + "/node/" + name);
    for (const NumaNode& n : m_.numa_nodes) {
      const std::string node = system + "/node/node" + std::to_string(n.id);
      for (const char* name : {"cpumap", "cpulist", "distance"}) copy(node + "/" + name);
      lines(node + "/meminfo", {"Node " + std::to_string(n.id) + " MemTotal:"});
    }
    // One block for each processor; serial numbers of some machines stand in other lines.
    lines("/proc/cpuinfo", {"processor", "vendor_id", "cpu family", "model", "flags", "physical id",
                            "core id", "CPU implementer", "CPU part", "cpu\t"});
  }

  void host() {
    for (const char* path : {"/sys/class/dmi/id/product_name", "/sys/class/dmi/id/sys_vendor",
                             "/sys/module/nvidia/version", "/proc/driver/nvidia/version",
                             "/proc/driver/nvidia/params", "/proc/sys/kernel/osrelease"})
      copy(path);
    // hwloc looks for its file systems there.
    file("/proc/mounts", "proc /proc proc rw 0 0\nsysfs /sys sysfs rw 0 0\n");
    const std::string& name = m_.host.hostname;
    if (!name.empty())
      file("/proc/sys/kernel/hostname", (raw_ ? name : "host-" + hashed(name).substr(0, 6)) + "\n");
    lines("/proc/hwloc-nofile-info", {"OSName", "OSRelease", "Architecture"});
    lines("/proc/meminfo", {"MemTotal:"});
    lines("/proc/self/limits", {"Max locked memory"});
    lines("/proc/modules", {"nvidia", "nv_peer_mem", "mlx5_", "efa", "ib_", "rdma_"});
    for (const char* module : {"nvidia_peermem", "nv_peer_mem"})
      if (root_.has(std::string("/sys/module/") + module))
        folder(std::string("/sys/module/") + module);
    if (const auto iommus = root_.list("/sys/class/iommu")) {
      folder("/sys/class/iommu");
      for (const std::string& i : *iommus) folder("/sys/class/iommu/" + i);
    }
    if (const auto nodes = root_.list("/dev/infiniband")) {
      folder("/dev/infiniband");
      for (const std::string& n : *nodes) file("/dev/infiniband/" + n, "");
    }
    routes();
    folder("/sys/devices");
    // What could not be listed stays unknown in the replay.
    for (const char* path : {"/sys/bus/pci/devices", "/sys/class/infiniband"})
      if (root_.list(path)) folder(path);
  }

  // Which interfaces carry a default route, not where to.
  void routes() {
    const auto text = root_.text("/proc/net/route");
    if (!text) return;
    std::istringstream in(*text);
    std::string line, kept = "Iface\tDestination\tGateway\n";
    while (std::getline(in, line)) {
      std::istringstream fields(line);
      std::string name, destination;
      if (fields >> name >> destination && destination == "00000000")
        kept += name + "\t00000000\t00000000\n";
    }
    file("/proc/net/route", kept);
  }

  std::string config(std::vector<std::uint8_t> c) const {
    // The extended capability 3 is the device's serial number.
    for (std::size_t at = 0x100, left = 64; !raw_ && left > 0 && at >= 0x100 && at + 12 <= c.size();
         --left) {
      const unsigned id = c[at] | static_cast<unsigned>(c[at + 1]) << 8;
      if (id == 0x0003) std::fill_n(c.begin() + static_cast<std::ptrdiff_t>(at) + 4, 8, 0);
      at = (c[at + 2] >> 4 | static_cast<unsigned>(c[at + 3]) << 4) & 0xffcu;
    }
    return {c.begin(), c.end()};
  }

  // Only the keyword that ties a data-direct function to its HCA, hashed; the serial number of the
  // card stands beside it.
  void vpd(const std::string& path) {
    const auto bytes = root_.bytes(path, 32768);
    const auto v3 = bytes ? vpd_keyword(*bytes, "V3") : std::nullopt;
    if (!v3) return;
    const std::string value = hashed(*v3);
    std::string keyword = std::string("V3") + static_cast<char>(value.size()) + value;
    file(path, std::string("\x82\x03\x00", 3) + "HCA" + '\x90' + static_cast<char>(keyword.size()) +
                   '\0' + keyword + '\x78');
  }

  void function(const PciFunction& f) {
    const std::string at = "/sys/bus/pci/devices/" + f.bus.text();
    const auto real = root_.real(at);
    if (!real || *real == at) return;
    link(at, *real);
    for (const char* name : {"class", "vendor", "device", "subsystem_vendor", "subsystem_device",
                             "numa_node", "local_cpus", "current_link_speed", "current_link_width",
                             "max_link_speed", "max_link_width", "sriov_numvfs"})
      copy(*real + "/" + name);
    if (const auto c = root_.bytes(*real + "/config", 4096)) file(*real + "/config", config(*c));
    vpd(*real + "/vpd");
    if (const auto group = root_.link_name(*real + "/iommu_group")) {
      const std::string path = "/sys/kernel/iommu_groups/" + *group;
      folder(path);
      copy(path + "/type");
      link(*real + "/iommu_group", path);
    }
    if (const auto physical = root_.real(*real + "/physfn")) link(*real + "/physfn", *physical);
  }

  void hca(const Hca& h) {
    if (h.pci) function(*h.pci);
    if (h.data_direct) function(*h.data_direct);
    const std::string at = "/sys/class/infiniband/" + h.name;
    const auto real = root_.real(at);
    if (!real) return;
    if (*real != at) link(at, *real);
    folder(*real);
    for (const char* name : {"node_guid", "sys_image_guid"})
      if (const auto guid = root_.text(*real + "/" + name))
        file(*real + "/" + name, hashed_guid(*guid) + "\n");
    for (const char* name : {"fw_ver", "board_id", "hca_type", "node_type"})
      copy(*real + "/" + name);
    if (const auto device = root_.real(*real + "/device")) link(*real + "/device", *device);
    for (const HcaPort& p : h.ports) port(*real, p);
  }

  void port(const std::string& hca, const HcaPort& p) {
    const std::string at = hca + "/ports/" + std::to_string(p.number);
    for (const char* name : {"state", "rate", "link_layer", "lid", "lid_mask_count"})
      copy(at + "/" + name);
    for (const std::string& i : root_.list(at + "/gids").value_or(std::vector<std::string>()))
      if (const auto gid = root_.text(at + "/gids/" + i))
        file(at + "/gids/" + i, hashed_gid(*gid) + "\n");
    copy(at + "/gid_attrs/ndevs/0");
    if (p.netdev.empty()) return;
    copy("/sys/class/net/" + p.netdev + "/mtu");
    if (const auto device = root_.real(hca + "/device")) {
      const std::string net = *device + "/net/" + p.netdev;
      if (root_.list(net)) folder(net);
      copy(net + "/dev_port");
    }
  }

  const Machine& m_;
  const FileRoot root_;
  const bool raw_;
  const std::string salt_;
  std::vector<TarEntry> out_;
  std::set<std::string> seen_;
};

}  // namespace

std::vector<TarEntry> dump_entries(const Machine& machine, const std::string& root, bool raw) {
  return Dump(machine, root, raw).run();
}

}  // namespace twinpath::tools::topo
