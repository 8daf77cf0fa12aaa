// What codes and texts of a port mean: pure, tested with tables.
#include <array>
#include <charconv>

#include "plugin/fabric/port.h"

namespace twinpath {

int roce_version_from_text(std::string_view text) {
  if (text.find("RoCE v2") != std::string_view::npos) return 2;
  if (text.find("RoCE v1") != std::string_view::npos) return 1;
  return 0;
}

std::string_view pci_address(std::string_view path) {
  const std::size_t slash = path.rfind('/');
  const std::string_view last = slash == std::string_view::npos ? path : path.substr(slash + 1);
  constexpr std::string_view kShape = "dddd:dd:dd.d";
  if (last.size() != kShape.size()) return {};
  for (std::size_t i = 0; i < last.size(); ++i) {
    const bool hex =
        std::string_view("0123456789abcdefABCDEF").find(last[i]) != std::string_view::npos;
    if (kShape[i] == 'd' ? !hex : last[i] != kShape[i]) return {};
  }
  return last;
}

int rate_from_text(std::string_view text) {
  // Digits, and one more behind a point where there is one: "2.5 Gb/sec (1X SDR)".
  int tenths = 0;
  const char* const end = text.data() + text.size();
  auto [at, error] = std::from_chars(text.data(), end, tenths);
  constexpr int kMostGbps = 200'000;
  if (error != std::errc{} || tenths < 0 || tenths > kMostGbps) return 0;
  tenths *= 10;
  if (end - at > 1 && *at == '.' && at[1] >= '0' && at[1] <= '9') {
    tenths += at[1] - '0';
    at += 2;
  }
  const std::string_view unit(at, static_cast<std::size_t>(end - at));
  return unit.starts_with(" Gb/sec") ? tenths * 100 : 0;
}

const char* port_state_text(ibv_port_state state) {
  switch (state) {
    case IBV_PORT_NOP:
      return "NOP";
    case IBV_PORT_DOWN:
      return "DOWN";
    case IBV_PORT_INIT:
      return "INIT";
    case IBV_PORT_ARMED:
      return "ARMED";
    case IBV_PORT_ACTIVE:
      return "ACTIVE";
    case IBV_PORT_ACTIVE_DEFER:
      return "ACTIVE_DEFER";
  }
  return "unknown";
}

int port_speed_mbps(std::uint32_t speed_code, std::uint8_t width_code) {
  // Codes are single bits: SDR, DDR, QDR, FDR10, FDR, EDR, HDR, NDR, XDR per lane.
  struct Rate {
    std::uint32_t code;
    int value;
  };
  constexpr std::array<Rate, 9> kLaneMbps{{{1, 2500},
                                           {2, 5000},
                                           {4, 10000},
                                           {8, 10000},
                                           {16, 14000},
                                           {32, 25000},
                                           {64, 50000},
                                           {128, 100000},
                                           {256, 200000}}};
  constexpr std::array<Rate, 5> kLanes{{{1, 1}, {2, 4}, {4, 8}, {8, 12}, {16, 2}}};
  const auto find = [](const auto& table, std::uint32_t code) {
    for (const Rate& r : table) {
      if (r.code == code) return r.value;
    }
    return 0;
  };
  return find(kLaneMbps, speed_code) * find(kLanes, width_code);
}

}  // namespace twinpath
