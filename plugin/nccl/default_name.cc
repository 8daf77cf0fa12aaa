#include "plugin/nccl/default_name.h"

#include <dlfcn.h>

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

}  // namespace

void keep_default_name(const std::string& folder) {
  const std::string path = folder + "/libnccl-net-again.so";
  std::string why;
  if (::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE) != nullptr) {
    why = wrong_way();
  } else if (const char* text = ::dlerror()) {
    why = text;
  }
  if (!why.empty())
    TP_INFO(init,
            "NCCL 2.28.3 to 2.29.7 will not find this plugin again once its last communicator is "
            "gone (%s); NCCL_NET_PLUGIN_REF_COUNT=1 keeps it",
            why.c_str());
}

}  // namespace twinpath
