#include "tools/info/fabrics.h"

#include <dlfcn.h>

#include <algorithm>
#include <cstdarg>
#include <cstdio>
#include <mutex>

#include "plugin/base/log.h"
#include "plugin/fabric/fabric.h"
#include "proxy/transport.h"
#include "tools/common/table.h"
#include "tools/common/units.h"

namespace twinpath::tools {
namespace {

// Log lines of the code that is looked at.  The sink is a plain function, so what it writes to
// must be static; the lock is for the plugin's own threads.
struct Captured {
  std::mutex mutex;
  std::vector<std::pair<LogLevel, std::string>> lines;
};
Captured& captured() {
  static Captured c;
  return c;
}

void capture(LogLevel level, unsigned long, const char*, int, const char* format, ...) {
  char text[1024];
  va_list args;
  va_start(args, format);
  std::vsnprintf(text, sizeof text, format, args);
  va_end(args);
  Captured& c = captured();
  const std::lock_guard lock(c.mutex);
  c.lines.emplace_back(level, text);
}

FabricReport look_at(const Config& base, FabricChoice choice) {
  FabricReport report;
  report.kind = choice == FabricChoice::verbs ? "verbs" : "soft";
  Config config = base;
  config.fabric = choice;
  captured().lines.clear();
  const LogSink before = set_log_sink(capture);
  Status status = Status::ok;
  {
    Result<std::unique_ptr<Fabric>> fabric = open_fabric(config);
    status = fabric.status();
    if (fabric) {
      auto transport = make_proxy_transport(std::move(fabric).take(), config);
      status = transport.status();
      if (transport)
        for (std::size_t i = 0; i < (*transport)->device_count(); ++i)
          if (auto props = (*transport)->device(static_cast<int>(i)); props)
            report.devices.push_back(std::move(props).take());
    }
  }
  (void)set_log_sink(before);
  const std::lock_guard lock(captured().mutex);
  std::string warning, last;
  for (const auto& [level, line] : captured().lines) {
    report.messages.push_back(line);
    last = line;
    if (level != LogLevel::warn) continue;
    if (warning.empty()) warning = line;
    report.warnings.push_back(line);
  }
  report.refused = status == Status::bad_argument;
  if (report.devices.empty()) {
    report.why_not = !warning.empty() ? warning : last;
    if (report.why_not.empty())
      report.why_not = status == Status::ok ? "no device" : status_name(status);
  }
  return report;
}

// What NCCL_IB_HCA says of it.
std::string network_place(const DeviceProps& d) {
  const auto text = [](int id) { return id < 0 ? std::string("-") : std::to_string(id); };
  return text(d.rail_id) + "/" + text(d.plane_id);
}

std::string memory_kinds(const DeviceProps& d) {
  std::string text = "host";
  if (d.gpu_direct) text += ", CUDA";
  if (d.dmabuf) text += ", dma-buf";
  return text;
}

}  // namespace

std::vector<FabricReport> look_at_fabrics(const Config& config) {
  // As NCCL does before it asks a plugin; without the driver no device offers GPU memory.
  (void)dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL);
  std::vector<FabricReport> fabrics{look_at(config, FabricChoice::verbs),
                                    look_at(config, FabricChoice::soft)};
  switch (config.fabric) {
    case FabricChoice::verbs:
      fabrics[0].selected = true;
      break;
    case FabricChoice::soft:
      fabrics[1].selected = true;
      break;
    case FabricChoice::automatic:
      fabrics[0].selected = !fabrics[0].devices.empty();
      break;
  }
  return fabrics;
}

std::vector<std::string> refused_settings(const std::vector<FabricReport>& fabrics) {
  std::vector<std::string> out;
  for (const FabricReport& f : fabrics) {
    if (!f.selected && !f.refused) continue;
    for (const std::string& w : f.warnings)
      if (std::find(out.begin(), out.end(), w) == out.end()) out.push_back(w);
  }
  return out;
}

nlohmann::json fabrics_json(const std::vector<FabricReport>& fabrics) {
  nlohmann::json all = nlohmann::json::array();
  for (const FabricReport& f : fabrics) {
    nlohmann::json devices = nlohmann::json::array();
    for (const DeviceProps& d : f.devices)
      devices.push_back({{"name", d.name},
                         {"pci_path", d.pci_path},
                         {"guid", d.guid},
                         {"speed_mbps", d.speed_mbps},
                         {"port", d.port},
                         {"rail_id", d.rail_id},
                         {"plane_id", d.plane_id},
                         {"max_recvs", d.max_recvs},
                         {"max_message_bytes", d.max_message_bytes},
                         {"gpu_direct", d.gpu_direct},
                         {"dmabuf", d.dmabuf},
                         {"force_flush", d.force_flush},
                         {"members", d.members}});
    all.push_back({{"fabric", f.kind},
                   {"selected", f.selected},
                   {"why_not", f.why_not},
                   {"devices", std::move(devices)},
                   {"messages", f.messages}});
  }
  return all;
}

void print_fabrics(const std::vector<FabricReport>& fabrics, const Config& config, bool verbose) {
  bool any = false;
  for (const FabricReport& f : fabrics) {
    any = any || f.selected;
    std::printf("\nFabric %s%s\n", f.kind.c_str(), f.selected ? " (used with these settings)" : "");
    if (f.devices.empty()) std::printf("  no device: %s\n", f.why_not.c_str());
    if (verbose)
      for (const std::string& line : f.messages) std::printf("  | %s\n", line.c_str());
    if (f.devices.empty()) continue;
    Table table({{"  device", "", 0, true},
                 {"speed", "Gb/s"},
                 {"port"},
                 {"rail/plane"},
                 {"GUID"},
                 {"memory", "", 0, true},
                 {"PCI", "", 0, true}});
    for (const DeviceProps& d : f.devices) {
      char guid[32];
      std::snprintf(guid, sizeof guid, "%016llx", static_cast<unsigned long long>(d.guid));
      table.add({"  " + d.name, fixed(d.speed_mbps / 1000.0, 0), std::to_string(d.port),
                 network_place(d), guid, memory_kinds(d), d.pci_path.empty() ? "-" : d.pci_path});
    }
    table.print(stdout);
  }
  if (any) return;
  // The soft HCA is a package of its own: it is named where it is there.
  const bool soft = std::any_of(fabrics.begin(), fabrics.end(), [](const FabricReport& f) {
    return f.kind == "soft" && !f.devices.empty();
  });
  std::printf("\nNo fabric would be used: NCCL falls back to its own transports. %s.\n",
              config.ib_disable ? "NCCL_IB_DISABLE=1 says so; unset it"
              : soft            ? "Set TWINPATH_FABRIC=soft to use the software HCA"
                                : "The reasons are above");
}

}  // namespace twinpath::tools
