// RDMA adapters, their ports and their data-direct functions, from /sys/class/infiniband.
#include <algorithm>
#include <charconv>
#include <map>
#include <sstream>
#include <string_view>

#include "topology/model/pci_ids.h"
#include "topology/read/config_space.h"
#include "topology/read/guid.h"
#include "topology/read/sysfs_reader.h"

namespace twinpath {
namespace {

// "400 Gb/sec (4X NDR)", "2.5 Gb/sec (1X SDR)".
std::optional<int> parse_rate(const std::string& text) {
  int v = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), v);
  if (error != std::errc{} || v <= 0 || text.find("Gb/sec") == std::string::npos)
    return std::nullopt;
  return v;
}

std::optional<int> count_gids(const FileRoot& root, const std::string& port) {
  const auto names = root.list(port + "/gids");
  if (!names) return std::nullopt;
  int n = 0;
  for (const std::string& name : *names) {
    const std::string gid = root.text(port + "/gids/" + name).value_or("");
    // An empty slot is all zero, or only the link-local prefix.
    const std::size_t first = gid.find_first_not_of("0:");
    if (first == std::string::npos || gid == "fe80:0000:0000:0000:0000:0000:0000:0000") continue;
    ++n;
  }
  return n;
}

// The kernel's node type is what libibverbs concludes the transport from; where it is not told the
// device's id has to do.
std::string_view read_foreign(const std::string& node_type, const PciId& id) {
  if (node_type.empty()) return foreign_transport(id);
  if (node_type.front() == '4') return "iWARP";
  if (node_type.front() == '5' || node_type.front() == '6') return "usNIC";
  if (node_type.front() != '7') return "";
  const std::string_view known = foreign_transport(id);
  return known.empty() ? "a transport of its own" : known;
}

HcaPort read_port(const FileRoot& root, const std::string& hca, int number) {
  const std::string port = hca + "/ports/" + std::to_string(number);
  HcaPort p;
  p.number = number;
  p.state = parse_port_state(root.text(port + "/state").value_or(""));
  p.gbps = parse_rate(root.text(port + "/rate").value_or(""));
  const std::string layer = root.text(port + "/link_layer").value_or("");
  if (layer == "InfiniBand") p.layer = LinkLayer::infiniband;
  if (layer == "Ethernet") p.layer = LinkLayer::ethernet;
  if (const auto lid = root.number(port + "/lid")) p.lid = static_cast<int>(*lid);
  p.gids = count_gids(root, port);
  p.netdev = root.text(port + "/gid_attrs/ndevs/0").value_or("");
  if (p.netdev.empty()) {
    const auto names = root.list(hca + "/device/net");
    for (const std::string& name : names.value_or(std::vector<std::string>())) {
      const auto at = root.number(hca + "/device/net/" + name + "/dev_port");
      if (names->size() == 1 || at == number - 1) p.netdev = name;
    }
  }
  if (!p.netdev.empty()) {
    if (const auto mtu = root.number("/sys/class/net/" + p.netdev + "/mtu"))
      p.netdev_mtu = static_cast<int>(*mtu);
  }
  return p;
}

// Names of the interfaces that carry an IPv4 default route; nullopt when it cannot be read.
std::optional<std::vector<std::string>> default_route(const FileRoot& root) {
  const auto text = root.text("/proc/net/route");
  if (!text) return std::nullopt;
  std::vector<std::string> names;
  std::istringstream lines(*text);
  std::string line;
  while (std::getline(lines, line)) {
    std::istringstream fields(line);
    std::string name, destination;
    if (fields >> name >> destination && destination == "00000000") names.push_back(name);
  }
  return names;
}

std::optional<std::string> card_uuid(const FileRoot& root, const BusId& bus) {
  const auto vpd = root.bytes("/sys/bus/pci/devices/" + bus.text() + "/vpd", 32768);
  return vpd ? vpd_keyword(*vpd, "V3") : std::nullopt;
}

// A PF and its data-direct function carry the same V3 keyword in their VPD.
void pair_data_direct(const FileRoot& root, Machine& machine) {
  if (machine.dma_functions.empty()) return;
  std::map<std::string, const DmaFunction*> by_uuid;
  for (const DmaFunction& f : machine.dma_functions)
    if (const auto uuid = card_uuid(root, f.bus)) by_uuid.emplace(*uuid, &f);
  std::vector<BusId> tied;
  for (Hca& h : machine.hcas) {
    const auto uuid = h.pci ? card_uuid(root, h.pci->bus) : std::nullopt;
    const auto it = uuid ? by_uuid.find(*uuid) : by_uuid.end();
    if (it == by_uuid.end()) continue;
    h.data_direct = *it->second;
    tied.push_back(it->second->bus);
  }
  std::erase_if(machine.dma_functions, [&](const DmaFunction& f) {
    return std::find(tied.begin(), tied.end(), f.bus) != tied.end();
  });
  if (!machine.dma_functions.empty()) {
    machine.warn("DD_UNTIED",
                 std::to_string(machine.dma_functions.size()) +
                     " data-direct function(s) cannot be tied to an HCA: VPD is not readable",
                 "run as root, or let the plugin ask libmlx5");
  }
}

}  // namespace

void read_hcas(const FileRoot& root, Machine& machine) {
  const std::string folder = "/sys/class/infiniband/";
  const auto names = root.list(folder);
  const auto routes = default_route(root);
  for (const std::string& name : names.value_or(std::vector<std::string>())) {
    const std::string path = folder + name;
    Hca hca;
    hca.name = name;
    if (const auto device = root.real(path + "/device")) {
      PciFunction f = read_function(root, *device, machine);
      if (f.bus != BusId{} || f.id.vendor != 0) {
        hca.kind = hca_kind(f.id, root.link_name(path + "/device/driver").value_or(""));
        hca.pci = std::move(f);
      }
    }
    hca.foreign =
        read_foreign(root.text(path + "/node_type").value_or(""), hca.pci ? hca.pci->id : PciId{});
    hca.node_guid = parse_guid(root.text(path + "/node_guid").value_or(""));
    hca.sys_image_guid = parse_guid(root.text(path + "/sys_image_guid").value_or(""));
    hca.firmware = root.text(path + "/fw_ver").value_or("");
    hca.board = root.text(path + "/board_id").value_or("");
    for (const std::string& port :
         root.list(path + "/ports").value_or(std::vector<std::string>())) {
      int number = 0;
      const auto [end, error] = std::from_chars(port.data(), port.data() + port.size(), number);
      if (error == std::errc{} && end == port.data() + port.size() && number >= 1 && number <= 255)
        hca.ports.push_back(read_port(root, path, number));
    }
    std::sort(hca.ports.begin(), hca.ports.end(),
              [](const HcaPort& a, const HcaPort& b) { return a.number < b.number; });
    if (routes) {
      hca.default_route = std::any_of(hca.ports.begin(), hca.ports.end(), [&](const HcaPort& p) {
        return std::find(routes->begin(), routes->end(), p.netdev) != routes->end();
      });
    }
    machine.hcas.push_back(std::move(hca));
  }
  pair_data_direct(root, machine);
}

}  // namespace twinpath
