#include "plugin/nccl/default_name.h"

#include <dlfcn.h>

#include "plugin/base/log.h"

namespace twinpath {

void keep_default_name(const std::string& folder) {
  const std::string path = folder + "/again/libnccl-net.so";
  if (::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE) != nullptr) return;
  const char* const why = ::dlerror();
  TP_INFO(
      init,
      "NCCL 2.28.3 to 2.29.7 will not find this plugin again once its last communicator is gone "
      "(%s); NCCL_NET_PLUGIN_REF_COUNT=1 keeps it",
      why == nullptr ? path.c_str() : why);
}

}  // namespace twinpath
