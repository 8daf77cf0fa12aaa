#include "topology/read/hwloc_library.h"

#include <dlfcn.h>

namespace twinpath {
namespace {

struct Loaded {
  HwlocLibrary table;
  std::string error;
};

Loaded load() {
  Loaded out;
  void* const library = dlopen("libhwloc.so.15", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    const char* const text = dlerror();
    out.error = text == nullptr ? "libhwloc.so.15 cannot be opened" : text;
    return out;
  }
#define TP_LOAD(name, required)                                                                \
  out.table.name = reinterpret_cast<decltype(out.table.name)>(dlsym(library, "hwloc_" #name)); \
  if (required && out.table.name == nullptr) {                                                 \
    out.error = "libhwloc.so.15 has no hwloc_" #name "; hwloc 2.1 or newer is needed";         \
    return out;                                                                                \
  }
  TP_HWLOC(TP_LOAD)
#undef TP_LOAD
  const unsigned version = out.table.get_api_version();
  out.table.version = "hwloc interface " + std::to_string(version >> 16) + "." +
                      std::to_string((version >> 8) & 0xff);
  return out;
}

}  // namespace

const HwlocLibrary* hwloc_library(std::string& why_not) {
  static const Loaded loaded = load();
  why_not = loaded.error;
  return loaded.error.empty() ? &loaded.table : nullptr;
}

}  // namespace twinpath
