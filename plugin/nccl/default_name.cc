#include "plugin/nccl/default_name.h"

#include <dlfcn.h>

#include <cstdlib>

#include "plugin/base/log.h"

namespace twinpath {
namespace {

const void* library_of(const void* address) {
  Dl_info info{};
  return address != nullptr && ::dladdr(address, &info) != 0 ? info.dli_fbase : nullptr;
}

// Empty, or what the name leads to instead.
std::string wrong_way() {
  static const char here = 0;
  void* const found = ::dlopen("libnccl-net.so", RTLD_NOW | RTLD_NOLOAD);
  if (found == nullptr) return "the loader does not take its soname for a name";
  const bool ours = library_of(::dlsym(found, "ncclNetPlugin_v11")) == library_of(&here);
  (void)::dlclose(found);
  return ours ? "" : "another libnccl-net.so was loaded before";
}

// NCCL reads any number as strtoll does, and takes 0 for no.
bool kept_by_nccl() {
  const char* const count = std::getenv("NCCL_NET_PLUGIN_REF_COUNT");
  return count != nullptr && std::strtoll(count, nullptr, 0) > 0;
}

}  // namespace

void keep_default_name(const std::string& folder, int nccl) {
  std::string why = wrong_way();
  if (why.empty()) return;  // NCCL found it by that name
  const std::string path = folder + "/libnccl-net-again.so";
  if (::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE) != nullptr) {
    why = wrong_way();
  } else if (const char* text = ::dlerror()) {
    why = text;
  }
  if (why.empty()) return;
  if (forgets_names(nccl) && !kept_by_nccl())
    TP_WARN(
        "this NCCL will not find the plugin again once its last communicator is gone (%s): install "
        "the plugin with all of its files, or set NCCL_NET_PLUGIN_REF_COUNT=1",
        why.c_str());
  else
    TP_INFO(init,
            "NCCL 2.28.3 to 2.29.7 would not find this plugin again once its last communicator is "
            "gone (%s); NCCL_NET_PLUGIN_REF_COUNT=1 keeps it",
            why.c_str());
}

}  // namespace twinpath
