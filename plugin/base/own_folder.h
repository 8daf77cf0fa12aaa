#pragma once
// The folder of the library or program that this code was linked into: what belongs to the plugin
// lies there.  Links are followed: an installed plugin is found as libnccl-net-twinpath.so, a link
// in the loader's folder, where nothing else of ours lies.
#include <dlfcn.h>
#include <stdlib.h>
#include <sys/auxv.h>

#include <memory>
#include <string>

namespace twinpath {

// False: linked into a library.
inline bool in_program() {
  static const char here = 0;
  Dl_info own{}, program{};
  return ::dladdr(&here, &own) != 0 &&
         ::dladdr(reinterpret_cast<const void*>(::getauxval(AT_ENTRY)), &program) != 0 &&
         own.dli_fbase == program.dli_fbase;
}

// Of a name that leads nowhere: the name.
inline std::string links_followed(const std::string& name) {
  const auto release = [](char* text) { ::free(text); };
  const std::unique_ptr<char, decltype(release)> real(::realpath(name.c_str(), nullptr), release);
  return real ? real.get() : name;
}

inline std::string own_folder() {
  static const char here = 0;
  Dl_info info{};
  if (::dladdr(&here, &info) == 0 || info.dli_fname == nullptr) return ".";
  // The loader knows a program by what it was called, which may have been looked for in PATH.
  const std::string path = links_followed(in_program() ? "/proc/self/exe" : info.dli_fname);
  const std::size_t slash = path.rfind('/');
  return slash == std::string::npos ? "." : path.substr(0, slash);
}

}  // namespace twinpath
