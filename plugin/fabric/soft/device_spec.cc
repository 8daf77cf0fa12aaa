#include "plugin/fabric/soft/device_spec.h"

#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <climits>
#include <cstdlib>

#include "plugin/base/limits.h"

namespace twinpath::soft {
namespace {

constexpr std::size_t kMostPkeys = 32;

std::optional<int> integer(std::string_view s, int low, int high) {
  int v = 0;
  const bool hex = s.starts_with("0x");
  if (hex) s.remove_prefix(2);
  auto [end, ec] = std::from_chars(s.data(), s.data() + s.size(), v, hex ? 16 : 10);
  if (ec != std::errc{} || end != s.data() + s.size() || v < low || v > high) return std::nullopt;
  return v;
}

bool good_name(std::string_view s) {
  return !s.empty() && s.size() < 32 && std::all_of(s.begin(), s.end(), [](unsigned char c) {
    return std::isalnum(c) != 0 || c == '_' || c == '-' || c == '.';
  });
}

// A BDF becomes the path that sysfs gives it on this machine, when there is such a function.
std::string sysfs_path(std::string_view value) {
  std::string path(value);
  if (path.front() != '/') path = "/sys/bus/pci/devices/" + path;
  char real[PATH_MAX];
  return realpath(path.c_str(), real) != nullptr ? std::string(real) : path;
}

// An adapter as its keys have come so far.
struct Item {
  DeviceSpec spec;
  std::optional<bool> infiniband;
};

std::string known_personalities() {
  std::string names;
  for (const Personality& p : personalities())
    names += (names.empty() ? "" : ", ") + std::string(p.name);
  return names;
}

bool set_key(Item& item, std::string_view key, std::string_view value, std::string& why) {
  DeviceSpec& d = item.spec;
  auto bad = [&](const char* wanted) {
    why = std::string(key) + "=" + std::string(value) + ": expected " + wanted;
    return false;
  };
  if (key == "speed") {
    auto v = integer(value, 1, 6400);
    if (!v) return bad("Gbit/s, 1 to 6400");
    d.speed_gbps = *v;
  } else if (key == "ports") {
    auto v = integer(value, 1, 8);
    if (!v) return bad("1 to 8");
    d.ports = *v;
  } else if (key == "mtu") {
    auto v = integer(value, 256, 4096);
    if (!v || (*v & (*v - 1)) != 0) return bad("256, 512, 1024, 2048 or 4096");
    d.mtu = *v;
  } else if (key == "state") {
    if (value != "up" && value != "down") return bad("up or down");
    d.up = value == "up";
  } else if (key == "link") {
    if (value != "roce" && value != "ib") return bad("roce or ib");
    item.infiniband = value == "ib";
  } else if (key == "peermem") {
    if (value != "yes" && value != "no") return bad("yes or no");
    d.peermem = value == "yes";
  } else if (key == "ece") {
    auto v = integer(value, 1, 255);
    if (!v) return bad("1 to 255");
    d.ece = static_cast<std::uint32_t>(*v);
  } else if (key == "like") {
    d.like = find_personality(value);
    if (d.like == nullptr) return bad(known_personalities().c_str());
  } else if (key == "pkeys") {
    d.pkeys.clear();
    for (std::string_view rest = value; !rest.empty();) {
      const auto v = integer(rest.substr(0, rest.find(':')), 0, 0xffff);
      if (!v || d.pkeys.size() == kMostPkeys) return bad("1 to 32 numbers up to 65535");
      d.pkeys.push_back(static_cast<std::uint16_t>(*v));
      rest = rest.find(':') == std::string_view::npos ? "" : rest.substr(rest.find(':') + 1);
    }
    if (d.pkeys.empty()) return bad("1 to 32 numbers up to 65535");
  } else if (key == "pci") {
    if (value.empty()) return bad("a PCI address such as 0000:17:00.0 or a sysfs path");
    d.pci_path = sysfs_path(value);
  } else if (key == "place") {
    if (value.find('=') == std::string_view::npos)
      return bad("below=ADDRESS, bridge=ADDRESS or numa=NUMBER");
    d.place = value;
  } else if (key == "mlx5") {
    std::string wanted;
    if (!mlx5::parse_variant(value, d.mlx5, wanted)) return bad(wanted.c_str());
  } else {
    why = "unknown key '" + std::string(key) +
          "' (known: speed, ports, pci, place, mtu, state, link, ece, pkeys, peermem, mlx5, like)";
    return false;
  }
  return true;
}

// What the adapter's kind says where the specification does not, once all keys are known.
bool settle(Item& item, std::string& why) {
  DeviceSpec& d = item.spec;
  const Personality& like = *d.like;
  const bool own = like.name.empty();
  if (d.speed_gbps == 0 || like.ports.fixed_speed) d.speed_gbps = like.ports.speed_gbps;
  if (!own && item.infiniband && *item.infiniband != like.ports.infiniband) {
    why = std::string("link=") + (*item.infiniband ? "ib" : "roce") + ": " +
          std::string(like.name) + " is " + (like.ports.infiniband ? "InfiniBand" : "Ethernet");
    return false;
  }
  d.infiniband = item.infiniband.value_or(like.ports.infiniband);
  if (!own && like.ports.ece == 0 && d.ece != 0) {
    why = "ece=" + std::to_string(d.ece) + ": " + std::string(like.name) + " has no such options";
    return false;
  }
  if (d.ece == 0) d.ece = like.ports.ece;
  constexpr std::string_view kOurs = "soft";
  const std::string_view name = d.name;
  if (!own && name.starts_with(kOurs) && integer(name.substr(kOurs.size()), 0, 9999))
    d.name = std::string(like.identity.device) + d.name.substr(kOurs.size());
  return true;
}

}  // namespace

std::optional<std::vector<DeviceSpec>> parse_device_specs(std::string_view text, std::string& why) {
  std::vector<Item> items;
  std::size_t current = 0;  // keys are for the items from here on
  while (!text.empty()) {
    std::size_t comma = text.find(',');
    std::string_view item = text.substr(0, comma);
    text = comma == std::string_view::npos ? std::string_view{} : text.substr(comma + 1);
    std::size_t equals = item.find('=');
    if (equals != std::string_view::npos) {
      if (items.empty()) {
        why = "'" + std::string(item) + "' stands before any adapter name";
        return std::nullopt;
      }
      for (std::size_t i = current; i < items.size(); ++i) {
        if (!set_key(items[i], item.substr(0, equals), item.substr(equals + 1), why))
          return std::nullopt;
      }
      continue;
    }
    current = items.size();
    if (const auto count = integer(item, 1, kMaxPorts); count && items.empty()) {
      for (int i = 0; i < *count; ++i) items.emplace_back().spec.name = "soft" + std::to_string(i);
      continue;
    }
    if (!good_name(item)) {
      why = "'" + std::string(item) + "' is not an adapter name (letters, digits, _ - .)";
      return std::nullopt;
    }
    items.emplace_back().spec.name = std::string(item);
  }
  int ports = 0;
  std::vector<DeviceSpec> out;
  for (Item& item : items) {
    if (!settle(item, why)) return std::nullopt;
    ports += item.spec.ports;
    const std::string& name = item.spec.name;
    if (std::any_of(out.begin(), out.end(), [&](const DeviceSpec& d) { return d.name == name; })) {
      why = "adapter '" + name + "' is named twice";
      return std::nullopt;
    }
    out.push_back(std::move(item.spec));
  }
  if (out.empty() || ports > kMaxPorts) {
    why = out.empty() ? "no adapter is named" : "more than 32 ports in all";
    return std::nullopt;
  }
  return out;
}

}  // namespace twinpath::soft
