// See gdrcopy.h.
#include "plugin/gpu/gdrcopy.h"

#include <dlfcn.h>
#include <fcntl.h>

#include <cerrno>
#include <cstring>
#include <mutex>

#include "plugin/base/owned.h"

namespace twinpath::gpu {
namespace {

constexpr const char* kLibrary = "libgdrapi.so.2";
constexpr const char* kNode = "/dev/gdrdrv";
constexpr int kOldestDriver = 2;  // major number

const char*& library_path() {
  static const char* path = kLibrary;
  return path;
}

// Held for every call of the library, and while it is opened and closed.
std::mutex& calls() {
  static auto* const mutex = new std::mutex;  // kept for exit handlers that end contexts
  return *mutex;
}

constexpr int kUsesDmaBuf = 3;  // GDR_ATTR_USING_DMA_BUF_MMAP, from 2.6 on

std::string text_of(int error) { return std::strerror(error); }

std::string pin_refusal(int error) {
  switch (error) {
    case EPERM:
    case EACCES:
      return "it may not pin GPU memory: " + text_of(error);
    case ENOMEM:
      return "it cannot pin GPU memory: BAR1 is full (nvidia-smi -q -d MEMORY)";
    default:
      return "it cannot pin GPU memory: " + text_of(error) + " (see dmesg)";
  }
}

}  // namespace

// The library, opened, and its connection to the kernel module.
class GdrLibrary {
 public:
  // As in gdrapi.h, in numbers: a handle is a structure of one word, passed by value.
  struct Handle {
    unsigned long word = 0;
  };
  using Gdr = void*;
  // The beginning of gdr_info and gdr_info_v2, with room for what versions put behind it.
  struct Info {
    std::uint64_t address = 0;
    std::uint64_t bytes = 0;
    std::uint32_t page_bytes = 0;
    std::uint64_t others[16] = {};
  };

  // Null and `why`.  calls() is held.
  static std::shared_ptr<GdrLibrary> open(std::string& why);
  ~GdrLibrary() {
    if (gdr != nullptr) (void)close(gdr);
    if (library_ != nullptr) ::dlclose(library_);
  }
  GdrLibrary(const GdrLibrary&) = delete;
  GdrLibrary& operator=(const GdrLibrary&) = delete;

  Gdr gdr = nullptr;
  std::string versions;

  int (*pin)(Gdr, unsigned long, std::size_t, std::uint64_t, std::uint32_t, Handle*) = nullptr;
  int (*unpin)(Gdr, Handle) = nullptr;
  int (*map)(Gdr, Handle, void**, std::size_t) = nullptr;
  int (*unmap)(Gdr, Handle, void*, std::size_t) = nullptr;
  int (*get_info)(Gdr, Handle, Info*) = nullptr;

 private:
  GdrLibrary() = default;
  template <typename Function>
  bool find(const char* name, Function*& out) {
    out = reinterpret_cast<Function*>(::dlsym(library_, name));
    return out != nullptr;
  }
  bool load(std::string& why);
  bool connect(std::string& why);

  void* library_ = nullptr;
  Gdr (*open_)() = nullptr;
  int (*close)(Gdr) = nullptr;
  void (*runtime_version_)(int*, int*) = nullptr;
  int (*driver_version_)(Gdr, int*, int*) = nullptr;
  int (*attribute_)(Gdr, int, int*) = nullptr;  // from 2.5 on
};

bool GdrLibrary::load(std::string& why) {
  library_ = ::dlopen(library_path(), RTLD_NOW | RTLD_LOCAL);
  if (library_ == nullptr) {
    const char* const said = ::dlerror();
    why = "GDRCopy is not installed (" + std::string(said == nullptr ? library_path() : said) + ")";
    return false;
  }
  (void)find("gdr_get_attribute", attribute_);
  const bool all = find("gdr_open", open_) && find("gdr_close", close) &&
                   find("gdr_pin_buffer", pin) && find("gdr_unpin_buffer", unpin) &&
                   find("gdr_map", map) && find("gdr_unmap", unmap) &&
                   find("gdr_runtime_get_version", runtime_version_) &&
                   find("gdr_driver_get_version", driver_version_) &&
                   (find("gdr_get_info_v2", get_info) || find("gdr_get_info", get_info));
  if (!all) why = std::string(library_path()) + " is older than GDRCopy 2.0";
  return all;
}

bool GdrLibrary::connect(std::string& why) {
  int major = 0, minor = 0;
  const auto version = [&] { return std::to_string(major) + "." + std::to_string(minor); };
  runtime_version_(&major, &minor);
  versions = "libgdrapi " + version();
  gdr = open_();
  if (gdr == nullptr) {
    // The library does not tell.
    const UniqueFd node(::open(kNode, O_RDWR | O_CLOEXEC));
    why = versions + ": " + gdrdrv_refusal(node ? 0 : errno);
    return false;
  }
  // From 2.6 on there is a way without the module, which has no version.
  int dma_buf = 0;
  if (attribute_ != nullptr && attribute_(gdr, kUsesDmaBuf, &dma_buf) == 0 && dma_buf != 0) {
    versions += " without gdrdrv, by dma-buf";
    return true;
  }
  if (const int error = driver_version_(gdr, &major, &minor); error != 0) {
    why = versions + ": gdrdrv does not tell its version (" + text_of(error) + ")";
    return false;
  }
  versions += ", gdrdrv " + version();
  if (major >= kOldestDriver) return true;
  why = versions + ": gdrdrv is older than 2.0; update it";
  return false;
}

std::shared_ptr<GdrLibrary> GdrLibrary::open(std::string& why) {
  // One connection for all mappings; closed with the last, so that a module can be unloaded.
  static auto* const known = new std::weak_ptr<GdrLibrary>;
  if (auto library = known->lock()) return library;
  std::shared_ptr<GdrLibrary> made(new GdrLibrary);
  if (!made->load(why) || !made->connect(why)) return nullptr;
  *known = made;
  return made;
}

std::unique_ptr<GdrMapping> GdrMapping::map(std::uint64_t address, std::uint64_t bytes,
                                            std::string& why) {
  if (address % kGdrPage != 0 || bytes == 0) {
    why = "the memory does not begin with a page of the GPU; this is a defect, please report it";
    return nullptr;
  }
  const std::lock_guard hold(calls());
  auto library = GdrLibrary::open(why);
  if (library == nullptr) return nullptr;
  const std::size_t room = gdr_page_end(bytes);
  GdrLibrary::Handle handle;
  if (const int error = library->pin(library->gdr, address, room, 0, 0, &handle); error != 0) {
    why = library->versions + ": " + pin_refusal(error);
    return nullptr;
  }
  void* mapped = nullptr;
  if (const int error = library->map(library->gdr, handle, &mapped, room); error != 0) {
    why = library->versions + ": it cannot map GPU memory: " + text_of(error);
    (void)library->unpin(library->gdr, handle);
    return nullptr;
  }
  // What is mapped may begin before what was asked for.
  GdrLibrary::Info info;
  const int error = library->get_info(library->gdr, handle, &info);
  if (error != 0 || info.address > address || address - info.address > info.bytes ||
      info.bytes - (address - info.address) < room) {
    why = library->versions + ": it does not tell what it has mapped";
    (void)library->unmap(library->gdr, handle, mapped, room);
    (void)library->unpin(library->gdr, handle);
    return nullptr;
  }
  std::unique_ptr<GdrMapping> made(new GdrMapping(library));
  made->handle_ = handle.word;
  made->mapped_ = mapped;
  made->mapped_bytes_ = room;
  made->data_ = static_cast<std::uint8_t*>(mapped) + (address - info.address);
  why = library->versions;
  return made;
}

GdrMapping::~GdrMapping() {
  const std::lock_guard hold(calls());
  // In this order: unpinning takes the memory from under a mapping.
  const GdrLibrary::Handle handle{handle_};
  (void)library_->unmap(library_->gdr, handle, mapped_, mapped_bytes_);
  (void)library_->unpin(library_->gdr, handle);
  library_.reset();  // closing it is a call, too
}

GdrState gdrcopy_state() {
  const std::lock_guard hold(calls());
  GdrState state;
  if (const auto library = GdrLibrary::open(state.text); library != nullptr) {
    state.usable = true;
    state.text = library->versions;
  }
  return state;
}

std::string gdrdrv_refusal(int error) {
  switch (error) {
    case 0:
      return "it does not work with this gdrdrv (cat /sys/module/gdrdrv/version); install both of "
             "one version";
    case ENOENT:
    case ENXIO:
    case ENODEV:
      return "its kernel module is not loaded (modprobe gdrdrv)";
    case EPERM:
    case EACCES:
      return "no permission to open /dev/gdrdrv (chmod a+rw; in a container --device /dev/gdrdrv)";
    default:
      return "/dev/gdrdrv cannot be opened: " + text_of(error);
  }
}

void set_gdrapi_for_test(const char* path) {
  const std::lock_guard hold(calls());
  library_path() = path == nullptr ? kLibrary : path;
}

}  // namespace twinpath::gpu
