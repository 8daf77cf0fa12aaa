#include "tools/coll_perf/environment.h"

#include <dlfcn.h>

#include <cstdlib>

#include "tools/coll_perf/error.h"
#include "tools/common/net_plugin.h"

namespace twinpath::coll {
namespace {

void set_if_unset(std::vector<std::string>& lines, const char* name, const std::string& value,
                  const char* why) {
  if (std::getenv(name) != nullptr) return;
  setenv(name, value.c_str(), 1);
  lines.push_back(std::string(name) + "=" + value + "  (set by " + why + ")");
}

// The name in the plugin's newest table: NCCL_NET=<name> makes NCCL fail where it would
// otherwise fall back to its own sockets without a word.
std::string plugin_name(const std::string& path) {
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    const char* why = dlerror();
    throw ToolError(kExitMissing, strf("the net plugin cannot be opened (%s); give its path with "
                                       "--plugin",
                                       why != nullptr ? why : path.c_str()));
  }
  std::string name;
  for (int version = 12; version >= 6 && name.empty(); --version) {
    // Every version's table begins with its name.
    const void* table = dlsym(library, strf("ncclNetPlugin_v%d", version).c_str());
    if (table != nullptr) name = *static_cast<const char* const*>(table);
  }
  dlclose(library);
  if (name.empty()) {
    throw ToolError(kExitMissing, path +
                                      " has no ncclNetPlugin_v6 to _v12: it is not a net "
                                      "plugin; give its path with --plugin");
  }
  return name;
}

}  // namespace

std::vector<std::string> apply_environment(const Options& options, int nccl_version) {
  std::vector<std::string> lines;
  if (!options.plugin.empty() || options.via_plugin) {
    const std::string path = tools::find_plugin(options.plugin);
    const std::string name = plugin_name(path);
    if (nccl_version != 0 && nccl_version < 22100 && path.find('/') != std::string::npos) {
      throw ToolError(kExitMissing,
                      strf("NCCL %d.%d takes no path in NCCL_NET_PLUGIN (2.21 and newer do): put "
                           "the folder of %s into LD_LIBRARY_PATH and leave out --plugin",
                           nccl_version / 10000, nccl_version / 100 % 100, path.c_str()));
    }
    const char* old = std::getenv("NCCL_NET_PLUGIN");
    if (old == nullptr || (!options.plugin.empty() && path != old)) {
      setenv("NCCL_NET_PLUGIN", path.c_str(), 1);
      lines.push_back("NCCL_NET_PLUGIN=" + path + "  (set by --plugin)");
    }
    set_if_unset(lines, "NCCL_NET", name, "--plugin, so that NCCL falls back to nothing else");
  }
  if (options.via_plugin) {
    const char* why = "--via-plugin";
    set_if_unset(lines, "NCCL_P2P_DISABLE", "1", why);
    set_if_unset(lines, "NCCL_SHM_DISABLE", "1", why);
    set_if_unset(lines, "NCCL_NET_GDR_LEVEL", "SYS", why);
    set_if_unset(lines, "NCCL_NVLS_ENABLE", "0", why);
  }
  if (options.scenario == Scenario::again && std::getenv("NCCL_NET") == nullptr) {
    throw ToolError(
        kExitUsage,
        "--scenario again needs NCCL_NET, as --plugin and --via-plugin set it: without, "
        "later communicators may use another network, and nobody sees it");
  }
  return lines;
}

std::vector<std::string> choose_fabric(const Options& options) {
  std::vector<std::string> lines;
  if (options.via_plugin || options.cpu_ranks > 0)
    set_if_unset(lines, "TWINPATH_FABRIC", "soft", options.via_plugin ? "--via-plugin" : "--cpu");
  return lines;
}

}  // namespace twinpath::coll
