// softhca-show-files FOLDER: writes below FOLDER what a kernel would show of the software HCA's
// adapters in /sys/class/infiniband and /dev/infiniband.  `run --files` calls it, and --version of
// it.
//
// The node in /dev is a link to /dev/null: programs ask whether it is a character device that they
// may open, and then leave it to libibverbs.
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <string>

#include "plugin/base/options.h"
#include "plugin/base/version.h"
#include "plugin/fabric/soft/like.h"
#include "tools/softhca/facade.h"

namespace {

namespace fs = std::filesystem;

// Ranks of a job that start together write the same folder, and some read it already: each file is
// made beside its place and moved there.
fs::path beside(const fs::path& file) {
  fs::create_directories(file.parent_path());
  return file.parent_path() / ("." + file.filename().string() + "." + std::to_string(::getpid()));
}

void line(const fs::path& file, const std::string& text) {
  const fs::path made = beside(file);
  std::ofstream(made) << text << '\n';
  fs::rename(made, file);
}

void link(const fs::path& target, const fs::path& name) {
  const fs::path made = beside(name);
  fs::create_symlink(target, made);
  fs::rename(made, name);
}

std::string gid_text(const ibv_gid& gid) {
  std::string text;
  for (int i = 0; i < 16; i += 2) {
    char group[8];
    std::snprintf(group, sizeof group, "%s%02x%02x", i == 0 ? "" : ":", gid.raw[i], gid.raw[i + 1]);
    text += group;
  }
  return text;
}

// The kernel has one text for InfiniBand and for RoCE v1.
const char* gid_type(const twinpath::soft::Personality& p, bool ethernet, int index) {
  const int version = twinpath::soft::gid_kind(p, index).roce_version;
  return ethernet && version == 2 ? "RoCE v2" : "IB/RoCE v1";
}

void show(const twinpath::Verbs& verbs, bool ethernet, ibv_device* device, const fs::path& root) {
  const fs::path shown = root / "sys/class/infiniband" / device->name;
  link("/dev/null", root / "dev/infiniband" / device->dev_name);
  line(shown / "node_type", "1: CA");
  line(shown / "fw_ver", TWINPATH_VERSION);
  ibv_context* const context = verbs.open_device(device);
  if (context == nullptr) return;
  const auto& like = twinpath::soft::personality_of(context);
  if (device->ibdev_path[0] != 0) {
    link(device->ibdev_path, shown / "device");
  } else if (!like.name.empty() && !like.identity.driver.empty()) {
    link(fs::path("/sys/bus/pci/drivers") / like.identity.driver, shown / "device/driver");
  }
  if (!like.name.empty()) ethernet = !like.ports.infiniband;
  ibv_port_attr attr;
  for (std::uint8_t port = 1; verbs.query_port(context, port, &attr) == 0; ++port) {
    const fs::path files = shown / "ports" / std::to_string(port);
    line(files / "link_layer", ethernet ? "Ethernet" : "InfiniBand");
    line(files / "state", attr.state == IBV_PORT_ACTIVE ? "4: ACTIVE" : "1: DOWN");
    for (int i = 0; i < attr.gid_tbl_len && twinpath::soft::gid_kind(like, i).used; ++i) {
      ibv_gid gid{};
      (void)verbs.query_gid(context, port, i, &gid);
      line(files / "gids" / std::to_string(i), gid_text(gid));
      line(files / "gid_attrs/types" / std::to_string(i), gid_type(like, ethernet, i));
    }
  }
  verbs.close_device(context);
}

}  // namespace

int main(int count, char** arguments) try {
  if (count == 2 && std::string(arguments[1]) == "--version") {
    std::printf("softhca %s\n", twinpath::built_from());
    return 0;
  }
  if (count != 2) {
    std::fprintf(stderr, "usage: softhca-show-files FOLDER, or --version\n");
    return 2;
  }
  const auto* const facade = twinpath::softhca::facade();
  if (facade == nullptr) return 1;  // said why
  const bool ethernet = facade->link_layer == twinpath::softhca::LinkLayer::ethernet;
  ibv_device** const list = facade->verbs.get_device_list(nullptr);
  for (ibv_device** d = list; *d != nullptr; ++d) show(facade->verbs, ethernet, *d, arguments[1]);
  facade->verbs.free_device_list(list);
  return 0;
} catch (const std::exception& e) {
  std::fprintf(stderr, "softhca-show-files: %s\n", e.what());
  return 1;
}
