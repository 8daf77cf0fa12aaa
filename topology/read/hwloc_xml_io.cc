#include "topology/read/hwloc_xml_io.h"

#include <algorithm>
#include <charconv>

namespace twinpath {
namespace {

using Kind = IoObject::Kind;

constexpr double kMostGbytes = 1e6;

// Takes hexadecimal numbers between fixed characters: "0604 [8086:3420] [0000:0000] 22".
class Fields {
 public:
  explicit Fields(std::string_view text) : rest_(text) {}
  std::uint32_t hex(std::size_t digits) {
    std::uint32_t v = 0;
    const auto [end, error] = std::from_chars(rest_.data(), rest_.data() + rest_.size(), v, 16);
    const auto length = static_cast<std::size_t>(end - rest_.data());
    ok_ = ok_ && error == std::errc{} && length <= digits;
    rest_.remove_prefix(length);
    return ok_ ? v : 0;
  }
  std::uint16_t hex16() { return static_cast<std::uint16_t>(hex(4)); }
  std::uint8_t hex8() { return static_cast<std::uint8_t>(hex(2)); }
  void skip(std::string_view text) {
    ok_ = ok_ && rest_.starts_with(text);
    if (ok_) rest_.remove_prefix(text.size());
  }
  bool done() const { return ok_ && rest_.empty(); }

 private:
  std::string_view rest_;
  bool ok_ = true;
};

bool refuse(std::string& why, const char* key, const XmlElement& object) {
  why = "an object of type " + std::string(object.attribute("type")) + " has the " + key + " " +
        quoted(object.attribute(key)) + ", which is none";
  return false;
}

bool read_bridge(const XmlElement& object, IoObject& o, std::string& why) {
  const std::string_view type = object.attribute("bridge_type");
  if (type != "0-1" && type != "1-1") return refuse(why, "bridge_type", object);
  o.kind = type == "0-1" ? Kind::host_bridge : Kind::bridge;
  Fields f(object.attribute("bridge_pci"));
  o.bus.domain = f.hex(8);
  f.skip(":[");
  o.bus.bus = o.secondary_bus = f.hex8();
  f.skip("-");
  o.subordinate_bus = f.hex8();
  f.skip("]");
  return f.done() || refuse(why, "bridge_pci", object);
}

bool read_function(const XmlElement& object, IoObject& o, std::string& why) {
  const auto bus = parse_bus_id(object.attribute("pci_busid"));
  if (!bus) return refuse(why, "pci_busid", object);
  o.bus = *bus;
  Fields f(object.attribute("pci_type"));
  o.id.class_code = f.hex(4) << 8;
  f.skip(" [");
  o.id.vendor = f.hex16();
  f.skip(":");
  o.id.device = f.hex16();
  f.skip("] [");
  o.id.subsystem_vendor = f.hex16();
  f.skip(":");
  o.id.subsystem_device = f.hex16();
  f.skip("] ");
  f.hex8();  // revision
  if (!f.done()) return refuse(why, "pci_type", object);
  // hwloc keeps a float and prints all of its digits.
  const std::string_view speed = object.attribute("pci_link_speed");
  float v = 0;
  const auto [end, error] = std::from_chars(speed.data(), speed.data() + speed.size(), v);
  const bool whole = error == std::errc{} && end == speed.data() + speed.size();
  if (!speed.empty() && (!whole || !(v >= 0 && v < kMostGbytes)))
    return refuse(why, "pci_link_speed", object);
  o.link_gbytes = static_cast<double>(v);
  return true;
}

}  // namespace

bool is_hwloc_io(std::string_view type) {
  return type == "Bridge" || type == "PCIDev" || type == "OSDev";
}

bool read_hwloc_io(const XmlElement& object, std::vector<IoObject>& out, std::string& why) {
  IoObject o;
  const std::string_view type = object.attribute("type");
  if (type == "Bridge" && !read_bridge(object, o, why)) return false;
  if (type == "PCIDev") o.kind = Kind::device;
  if (type == "OSDev" && object.attribute("osdev_type") == "3") o.kind = Kind::openfabrics;
  if (type == "OSDev" && object.attribute("osdev_type") == "2") o.kind = Kind::network;
  if ((o.kind == Kind::bridge || o.kind == Kind::device) && !read_function(object, o, why))
    return false;
  o.name = object.attribute("name");
  if (o.kind == Kind::openfabrics && o.name.empty()) return refuse(why, "name", object);
  for (const XmlElement& c : object.children) {
    if (c.name == "info") o.infos.emplace_back(c.attribute("name"), c.attribute("value"));
    if (c.name == "object" && is_hwloc_io(c.attribute("type")) &&
        !read_hwloc_io(c, o.children, why))
      return false;
  }
  out.push_back(std::move(o));
  return true;
}

}  // namespace twinpath
