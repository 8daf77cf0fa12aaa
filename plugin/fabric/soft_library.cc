// Opens the software HCA's library; see soft_library.h.
#include "plugin/fabric/soft_library.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <mutex>
#include <string>
#include <vector>

#include "plugin/base/own_folder.h"
#include "plugin/base/owned.h"
#include "plugin/base/refused.h"
#include "plugin/base/version.h"

namespace twinpath {
namespace {

// Beside the plugin.  A program of ours finds that in its build folder, copied together with it, or
// installed.
std::vector<std::string> folders() {
  const std::string here = own_folder();
  if (!in_program()) return {here};
  return {here + "/../../plugin/nccl", here, here + "/" TWINPATH_PLUGIN_FOLDER};
}

// Where the plugin is without it, it should be there.
std::string library_path() {
  const std::vector<std::string> all = folders();
  for (const char* sought : {kSoftHcaLibrary, "libnccl-net.so"})
    for (const std::string& folder : all)
      if (::access((folder + "/" + sought).c_str(), F_OK) == 0)
        return links_followed(folder) + "/" + kSoftHcaLibrary;
  return all.back() + "/" + kSoftHcaLibrary;
}

// What the system says to the loader's calls, made once more: the loader keeps it for itself.  0:
// nothing is wrong with them.
int error_of_loading(const std::string& path) {
  const UniqueFd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (file.get() < 0) return errno;
  struct stat about {};
  if (::fstat(file.get(), &about) != 0) return errno;
  // What is not in the file takes room, too; twice as much is enough.
  const std::size_t bytes = 2 * static_cast<std::size_t>(about.st_size);
  void* const at = ::mmap(nullptr, bytes, PROT_READ, MAP_PRIVATE, file.get(), 0);
  if (at == MAP_FAILED) return errno;
  const int error = ::mprotect(at, bytes, PROT_NONE) == 0 ? 0 : errno;
  (void)::munmap(at, bytes);
  return error;
}

std::string why_not_loaded(const std::string& path) {
  const char* const text = ::dlerror();
  const int error = error_of_loading(path);
  const bool wanting = error == EMFILE || error == ENFILE || error == ENOMEM ||
                       (is_refusal(error) && ::access(path.c_str(), R_OK) == 0);
  if (wanting) return path + " cannot be loaded: " + why_no_memory(error);
  return std::string(text != nullptr ? text : path.c_str()) +
         "; put the file there that was built with this plugin (package twinpath-softhca); "
         "TWINPATH_FABRIC=auto, the default, uses real adapters";
}

// Null: `why`.
const SoftHca* open(std::string& why) {
  const std::string path = library_path();
  void* const handle = ::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  if (handle == nullptr) {
    why = why_not_loaded(path);
    return nullptr;
  }
  auto* const entry = reinterpret_cast<SoftHcaEntry*>(::dlsym(handle, kSoftHcaEntry));
  const char* misfit = "it has another entry";
  const SoftHca* const hca =
      entry == nullptr ? nullptr
                       : entry(&soft_host(), kSoftHcaSizes.data(), kSoftHcaSizes.size(), &misfit);
  if (hca == nullptr)
    why = path + " is of another build than what opens it, " + built_from() + ": " + misfit +
          "; put the file there that was built with it";
  return hca;
}

}  // namespace

const SoftHost& soft_host() {
  static const SoftHost host = [] {
    SoftHost h;
    h.build = built_from();
    h.log = &log_state();
#define TP_SOFT_HOST_GIVE(name) h.name = gpu::name;
    TP_SOFT_HOST_GPU(TP_SOFT_HOST_GIVE)
#undef TP_SOFT_HOST_GIVE
    return h;
  }();
  return host;
}

// It stays open for the life of the process, as its threads do.  What it was refused for may
// change.
const SoftHca* open_soft_hca(std::string& why) {
  static std::mutex lock;
  static const SoftHca* opened = nullptr;
  const std::lock_guard hold(lock);
  if (opened == nullptr) opened = open(why);
  return opened;
}

bool soft_hca_is_there() { return ::access(library_path().c_str(), F_OK) == 0; }

}  // namespace twinpath
