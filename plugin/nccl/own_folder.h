#pragma once
// The folder of the library that this code was linked into: what belongs to the plugin lies there.
// Links are followed: an installed plugin is found as libnccl-net-twinpath.so, a link in the
// loader's folder, where nothing else of ours lies.
#include <dlfcn.h>
#include <stdlib.h>

#include <memory>
#include <string>

namespace twinpath {

inline std::string own_folder() {
  static const char here = 0;
  Dl_info info{};
  if (::dladdr(&here, &info) == 0 || info.dli_fname == nullptr) return ".";
  const auto release = [](char* text) { ::free(text); };
  const std::unique_ptr<char, decltype(release)> real(::realpath(info.dli_fname, nullptr), release);
  const std::string path = real ? real.get() : info.dli_fname;
  const std::size_t slash = path.rfind('/');
  return slash == std::string::npos ? "." : path.substr(0, slash);
}

}  // namespace twinpath
