// A FakeMachine as XML of hwloc, version 2.
#include <algorithm>
#include <map>

#include "test/topology/fake_machine.h"
#include "test/topology/fake_text.h"

namespace twinpath::test {

void FakeMachine::xml_children(const std::string& path, int indent, std::string& out) const {
  const std::string blank(static_cast<std::size_t>(indent), ' ');
  for (const Function& f : functions_) {
    if (above(f.path) != path) continue;
    const bool bridge = f.kind != BridgeKind::unknown;
    const BusId bus = *parse_bus_id(last(f.path));
    const auto c = config(f);
    out += blank + "<object type=\"" + (bridge ? "Bridge" : "PCIDev") + "\" gp_index=\"" +
           std::to_string(100 + (&f - functions_.data())) + "\"";
    if (bridge) {
      const auto depth = std::count(f.path.begin(), f.path.end(), '/');
      out += format(" bridge_type=\"1-1\" depth=\"%d\" bridge_pci=\"%04x:[%02x-%02x]\"",
                    static_cast<int>(depth), bus.domain, c[0x19], c[0x1a]);
    }
    out += format(" pci_busid=\"%s\" pci_type=\"%04x [%04x:%04x] [%04x:%04x] 00\"",
                  bus.text().c_str(), f.id.class_code >> 8, f.id.vendor, f.id.device,
                  f.id.subsystem_vendor, f.id.subsystem_device);
    out += format(" pci_link_speed=\"%.6f\">\n", pcie_gbytes(f.gts, f.width));
    xml_children(f.path, indent + 2, out);
    if (!f.hca.empty()) {
      const std::string guid = guid_text(f.guid);
      out += blank + "  <object type=\"OSDev\" gp_index=\"" +
             std::to_string(300 + (&f - functions_.data())) + "\" name=\"" + f.hca +
             "\" osdev_type=\"3\">\n" + blank + "    <info name=\"NodeGUID\" value=\"" + guid +
             "\"/>\n" + blank + "    <info name=\"SysImageGUID\" value=\"" + guid + "\"/>\n" +
             blank + "    <info name=\"Port1State\" value=\"4\"/>\n" + blank + "  </object>\n";
    }
    out += blank + "</object>\n";
  }
}

std::string FakeMachine::hwloc_xml() const {
  auto hex = [](std::uint32_t v) { return format("0x%08x", v); };
  std::uint32_t all_cpus = 0, all_nodes = 0;
  std::map<int, std::vector<const Node*>> packages;
  for (const Node& n : nodes_) {
    if (n.cpus == 0) continue;
    all_nodes |= 1u << n.id;
    all_cpus |= ((1u << n.cpus) - 1) << n.first_cpu;
    packages[n.package].push_back(&n);
  }
  auto sets = [&](std::uint32_t cpus, std::uint32_t nodes) {
    return " cpuset=\"" + hex(cpus) + "\" complete_cpuset=\"" + hex(cpus) + "\" nodeset=\"" +
           hex(nodes) + "\" complete_nodeset=\"" + hex(nodes) + "\"";
  };
  // Host bridges in order, each with the NUMA node of its first device.
  std::vector<std::pair<std::string, int>> hosts;
  for (const Function& f : functions_) {
    const std::string host = f.path.substr(0, f.path.find('/'));
    const bool known =
        std::any_of(hosts.begin(), hosts.end(), [&](const auto& h) { return h.first == host; });
    if (!known) hosts.emplace_back(host, local_cpus ? f.numa : -1);
  }
  int index = 1;
  auto host_bridges = [&](int numa, int indent, std::string& out) {
    for (const auto& [host, at] : hosts) {
      if (at != numa) continue;
      const BusId bus = *parse_bus_id(host.substr(3) + ":00.0");
      const std::string blank(static_cast<std::size_t>(indent), ' ');
      out += blank + format(
                         "<object type=\"Bridge\" gp_index=\"%d\" bridge_type=\"0-1\" depth=\"0\" "
                         "bridge_pci=\"%04x:[%02x-ff]\">\n",
                         index++, bus.domain, bus.bus);
      xml_children(host, indent + 2, out);
      out += blank + "</object>\n";
    }
  };
  std::string out =
      "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<!DOCTYPE topology SYSTEM \"hwloc2.dtd\">\n"
      "<topology version=\"2.0\">\n  <object type=\"Machine\" os_index=\"0\"" +
      sets(all_cpus, all_nodes) + " allowed_cpuset=\"" + hex(all_cpus) + "\" allowed_nodeset=\"" +
      hex(all_nodes) + "\" gp_index=\"" + std::to_string(index++) + "\">\n";
  out += std::string("    <info name=\"Architecture\" value=\"") + (arm ? "arm64" : "x86_64") +
         "\"/>\n";
  if (hypervisor) out += "    <info name=\"DMISysVendor\" value=\"QEMU\"/>\n";
  for (const auto& [package, members] : packages) {
    std::uint32_t cpus = 0, nodes = 0;
    for (const Node* n : members) {
      cpus |= ((1u << n->cpus) - 1) << n->first_cpu;
      nodes |= 1u << n->id;
    }
    out += "    <object type=\"Package\" os_index=\"" + std::to_string(package) + "\"" +
           sets(cpus, nodes) + " gp_index=\"" + std::to_string(index++) + "\">\n";
    for (const Node* n : members) {
      const std::uint32_t own = ((1u << n->cpus) - 1) << n->first_cpu;
      out += "      <object type=\"Group\"" + sets(own, 1u << n->id) + " gp_index=\"" +
             std::to_string(index++) + "\" kind=\"0\" subkind=\"0\">\n";
      out += "        <object type=\"NUMANode\" os_index=\"" + std::to_string(n->id) + "\"" +
             sets(own, 1u << n->id) + " gp_index=\"" + std::to_string(index++) +
             "\" local_memory=\"1073741824\"/>\n";
      for (int c = n->first_cpu; c < n->first_cpu + n->cpus; ++c)
        out += "        <object type=\"PU\" os_index=\"" + std::to_string(c) + "\"" +
               sets(1u << c, 1u << n->id) + " gp_index=\"" + std::to_string(index++) + "\"/>\n";
      host_bridges(n->id, 8, out);
      out += "      </object>\n";
    }
    out += "    </object>\n";
  }
  host_bridges(-1, 4, out);
  return out + "  </object>\n</topology>\n";
}

}  // namespace twinpath::test
