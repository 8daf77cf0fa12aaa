#include "topology/model/pci_ids.h"

#include <algorithm>
#include <iterator>
#include <utility>
#include <vector>

namespace twinpath {
namespace {

using Id = std::pair<std::uint16_t, std::uint16_t>;

template <std::size_t N>
bool among(const PciId& id, const Id (&list)[N]) {
  return std::find(std::begin(list), std::end(list), Id{id.vendor, id.device}) != std::end(list);
}

// What follows a bridge of this kind on the way down.
BridgeKind below(BridgeKind kind) {
  switch (kind) {
    case BridgeKind::host_bridge:
      return BridgeKind::root_port;
    case BridgeKind::root_port:
    case BridgeKind::downstream:
      return BridgeKind::upstream;
    case BridgeKind::upstream:
      return BridgeKind::downstream;
    case BridgeKind::unknown:
      break;
  }
  return BridgeKind::unknown;
}

}  // namespace

bool is_gpu(const PciId& id) {
  const std::uint32_t base = id.class_code >> 16;
  // AMD's RV100 family lives on as the display chip of management controllers (ES1000).
  if (id.vendor == kAmdGpu && id.device >> 8 == 0x51) return false;
  return (base == 0x03 || base == 0x12) && (id.vendor == kNvidia || id.vendor == kAmdGpu);
}

bool is_dma_function(const PciId& id) {
  return id.vendor == kMellanox && id.class_code >> 8 == 0x0801;
}

bool is_slingshot(const PciId& id) {
  return hca_kind(id) == HcaKind::cxi && id.class_code >> 16 == 0x02;
}

bool is_bridge(const PciId& id) { return id.class_code >> 8 == 0x0604; }

bool is_bluefield(const PciId& id) {
  return id.vendor == kMellanox && id.device >= 0xa2d0 && id.device <= 0xa2df;
}

HcaKind hca_kind(const PciId& id, std::string_view driver) {
  // Connect-IB (0x1011) was the first of the mlx5 driver.
  if (id.vendor == kMellanox && ((id.device >= 0x1011 && id.device < 0x2000) || is_bluefield(id)))
    return HcaKind::mlx5;
  if (id.vendor == kAmazon && (id.device & 0xfff0) == 0xefa0) return HcaKind::efa;
  if (id.vendor == kCray) return HcaKind::cxi;
  // Scalable functions are "mlx5_core.sf".
  return driver.starts_with("mlx5_core") ? HcaKind::mlx5 : HcaKind::other;
}

std::string_view foreign_transport(const PciId& id) {
  constexpr std::uint16_t kChelsio = 0x1425;
  constexpr std::uint16_t kCisco = 0x1137;
  switch (hca_kind(id)) {
    case HcaKind::efa:
      return "EFA";
    case HcaKind::cxi:
      return "Slingshot";
    default:
      return id.vendor == kChelsio ? "iWARP" : id.vendor == kCisco ? "usNIC" : "";
  }
}

std::string_view model_name(const PciId& id) {
  struct Model {
    std::uint16_t vendor, device;
    std::string_view name;
  };
  constexpr Model kModels[] = {{kMellanox, 0x1011, "Connect-IB"},
                               {kMellanox, 0x1013, "ConnectX-4"},
                               {kMellanox, 0x1014, "ConnectX-4 VF"},
                               {kMellanox, 0x1015, "ConnectX-4 Lx"},
                               {kMellanox, 0x1016, "ConnectX-4 Lx VF"},
                               {kMellanox, 0x1017, "ConnectX-5"},
                               {kMellanox, 0x1018, "ConnectX-5 VF"},
                               {kMellanox, 0x1019, "ConnectX-5 Ex"},
                               {kMellanox, 0x101a, "ConnectX-5 Ex VF"},
                               {kMellanox, 0x101b, "ConnectX-6"},
                               {kMellanox, 0x101c, "ConnectX-6 VF"},
                               {kMellanox, 0x101d, "ConnectX-6 Dx"},
                               {kMellanox, 0x101e, "ConnectX VF"},
                               {kMellanox, 0x101f, "ConnectX-6 Lx"},
                               {kMellanox, 0x1021, "ConnectX-7"},
                               {kMellanox, 0x1023, "ConnectX-8"},
                               {kMellanox, 0x2100, "ConnectX-8 data direct"},
                               {kMellanox, 0xa2d2, "BlueField"},
                               {kMellanox, 0xa2d6, "BlueField-2"},
                               {kMellanox, 0xa2dc, "BlueField-3"},
                               {kCray, 0x0501, "Slingshot Cassini"},
                               {kAmazon, 0xefa0, "EFA"},
                               {kAmazon, 0xefa1, "EFA"},
                               {kAmazon, 0xefa2, "EFA"},
                               {kAmazon, 0xefa3, "EFA"}};
  for (const Model& m : kModels)
    if (m.vendor == id.vendor && m.device == id.device) return m.name;
  return {};
}

bool is_on_card_bridge(const PciId& id) {
  constexpr Id kList[] = {{0x1022, 0x1470}, {0x1022, 0x1471}, {0x1022, 0x14a0},
                          {0x1022, 0x14a1}, {0x1002, 0x1478}, {0x1002, 0x1479}};
  return among(id, kList);
}

bool is_emulated_bridge(const PciId& id) {
  constexpr Id kList[] = {{0x104c, 0x8232}, {0x104c, 0x8233}, {0x1b36, 0x0001}, {0x1b36, 0x000c},
                          {0x15ad, 0x0790}, {0x15ad, 0x07a0}, {kAmazon, 0x0200}};
  return among(id, kList);
}

void complete_bridges(Machine& machine) {
  for (Bridge& b : machine.bridges) {
    b.on_card = b.on_card || is_on_card_bridge(b.pci.id);
    b.emulated = b.emulated || is_emulated_bridge(b.pci.id);
    if (b.kind != BridgeKind::unknown || !b.pci.parent) continue;
    b.kind = below(machine.bridges[static_cast<std::size_t>(*b.pci.parent)].kind);
    b.kind_guessed = true;
  }
}

}  // namespace twinpath
