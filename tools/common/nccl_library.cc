#include "tools/common/nccl_library.h"

#include <dlfcn.h>

#include <utility>

namespace twinpath::tools {

NcclLibrary::NcclLibrary(const std::string& path, std::string oldest, const std::string& install)
    : file_(path.empty() ? "libnccl.so.2" : path),
      oldest_(std::move(oldest)),
      library_(dlopen(file_.c_str(), RTLD_NOW | RTLD_LOCAL)) {
  if (library_ != nullptr) return;
  const char* why = dlerror();
  throw ToolError(kExitMissing,
                  "NCCL cannot be opened (" + (why != nullptr ? why : file_) + "); " + install);
}

void* NcclLibrary::symbol(const char* name) const { return dlsym(library_, name); }

void NcclLibrary::lacks(const char* name) const {
  throw ToolError(kExitMissing, file_ + " has no " + name + ": it is not NCCL, or older than " +
                                    oldest_ + "; give another one with --nccl PATH");
}

std::string nccl_version_text(int version) {
  // From 2.9 on a release is major * 10000 + minor * 100 + patch, before that 1000.
  const int major = version >= 10000 ? version / 10000 : version / 1000;
  const int minor = version >= 10000 ? version / 100 % 100 : version / 100 % 10;
  return std::to_string(major) + "." + std::to_string(minor) + "." + std::to_string(version % 100);
}

std::string nccl_error_text(int result, const char* text, const char* last) {
  std::string out = "NCCL error " + std::to_string(result) + " (" + text + ")";
  if (last != nullptr && last[0] != '\0') out += std::string(", last: ") + last;
  while (!out.empty() && out.back() == '\n') out.pop_back();
  return out;
}

}  // namespace twinpath::tools
