#pragma once
// The folder of the library that this code was linked into: what belongs to the plugin lies there.
#include <dlfcn.h>

#include <string>

namespace twinpath {

inline std::string own_folder() {
  static const char here = 0;
  Dl_info info{};
  if (::dladdr(&here, &info) == 0 || info.dli_fname == nullptr) return ".";
  const std::string path = info.dli_fname;
  const std::size_t slash = path.rfind('/');
  return slash == std::string::npos ? "." : path.substr(0, slash);
}

}  // namespace twinpath
