#include "plugin/nccl/caller.h"

#include <dlfcn.h>

namespace twinpath {

int nccl_version_of(LogSink log) {
  Dl_info logger{};
  if (log == nullptr || ::dladdr(reinterpret_cast<const void*>(log), &logger) == 0) return 0;
  void* library = ::dlopen(logger.dli_fname, RTLD_NOW | RTLD_NOLOAD);
  // A program that NCCL is linked into is not found by its name.
  if (library == nullptr) library = ::dlopen(nullptr, RTLD_NOW);
  if (library == nullptr) return 0;
  void* const found = ::dlsym(library, "ncclGetVersion");
  int version = 0;
  // The search goes on in what the library needs, where another NCCL may be.
  if (Dl_info info{}; found != nullptr && ::dladdr(found, &info) != 0 &&
                      info.dli_fbase == logger.dli_fbase &&
                      reinterpret_cast<int (*)(int*)>(found)(&version) != 0)
    version = 0;
  (void)::dlclose(library);
  return version;
}

}  // namespace twinpath
