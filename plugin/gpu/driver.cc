// Finding the CUDA driver that the program has loaded, and contexts on its GPUs.
#include "plugin/gpu/driver.h"

#include <dlfcn.h>
#include <link.h>

#include <atomic>
#include <cstddef>
#include <memory>
#include <mutex>

#include "plugin/base/log.h"

namespace twinpath::gpu {
namespace cuda {
namespace {

using GetProcAddress12 = Result (*)(const char*, void**, int, std::uint64_t, int*);
using GetProcAddress11 = Result (*)(const char*, void**, int, std::uint64_t);

// Process-wide like the driver itself, which is one library with one state per process.
struct Lookup {
  std::mutex mutex;
  std::atomic<const Driver*> found{nullptr};
  std::atomic<const Driver*> fake{nullptr};
  Driver table;
  bool refused = false;  // loaded, but of no use
  // How many libraries the program had loaded when the driver was not among them; 0: not known.
  unsigned long long absent_at = 0;
  std::string note;
};
Lookup& lookup() {
  static Lookup l;
  return l;
}

struct Entry {
  const char* symbol;
  int version;
  bool required;
  void* slot;
};

void* find(void* library, const Entry& e) {
  void* p = nullptr;
  if (void* f = dlsym(library, "cuGetProcAddress_v2"); f != nullptr) {
    int why = 0;
    if (reinterpret_cast<GetProcAddress12>(f)(e.symbol, &p, e.version, 0, &why) != kSuccess)
      return nullptr;
  } else if (void* old = dlsym(library, "cuGetProcAddress"); old != nullptr) {
    if (reinterpret_cast<GetProcAddress11>(old)(e.symbol, &p, e.version, 0) != kSuccess)
      return nullptr;
  }
  return p;
}

// Grows with every library that the program loads; 0: not known.
unsigned long long libraries_loaded() {
  unsigned long long n = 0;
  dl_iterate_phdr(
      [](dl_phdr_info* info, std::size_t size, void* out) {
        if (size >= offsetof(dl_phdr_info, dlpi_subs))
          *static_cast<unsigned long long*>(out) = info->dlpi_adds;
        return 1;  // every call tells it: no need to see the other libraries
      },
      &n);
  return n;
}

// A reference to the driver that the program has loaded, or null; mutex held.
void* open_loaded(Lookup& l) {
  // Every connection and registration asks, and a dlopen that finds nothing walks the whole search
  // path for it: 40 failing opens for one connection.
  const unsigned long long loaded = libraries_loaded();
  if (loaded != 0 && loaded == l.absent_at) return nullptr;
  void* library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
  if (library == nullptr) l.absent_at = loaded;
  return library;
}

// Fills the table; mutex held.
void load(Lookup& l) {
  void* library = open_loaded(l);
  if (library == nullptr) {
    l.note = "CUDA driver library not loaded by the program";
    return;
  }
  Driver& t = l.table;
  const Entry entries[] = {
#define TP_CUDA_ENTRY(member, symbol, version, required, parameters) \
  {symbol, version, required, &t.member},
      TP_CUDA_FUNCTIONS(TP_CUDA_ENTRY)
#undef TP_CUDA_ENTRY
  };
  l.note.clear();
  for (const Entry& e : entries) {
    void* p = find(library, e);
    // All members are plain function pointers, which on POSIX have the form of void*.
    __builtin_memcpy(e.slot, &p, sizeof p);
    if (p != nullptr) continue;
    if (e.required) {
      l.refused = true;
      l.note = std::string(e.symbol) + " missing in the CUDA driver: GPU memory is not used; " +
               "install a driver of CUDA 11.7 or later";
      TP_WARN("%s", l.note.c_str());
      return;
    }
    l.note = std::string(e.symbol) + " missing in the CUDA driver: copies are slower";
  }
  l.found.store(&t, std::memory_order_release);
}

}  // namespace

const Driver* driver() {
  Lookup& l = lookup();
  if (const Driver* d = l.fake.load(std::memory_order_acquire); d != nullptr) return d;
  if (const Driver* d = l.found.load(std::memory_order_acquire); d != nullptr) return d;
  std::lock_guard lock(l.mutex);
  if (l.found.load(std::memory_order_relaxed) == nullptr && !l.refused) load(l);
  return l.found.load(std::memory_order_relaxed);
}

bool library_loaded() {
  Lookup& l = lookup();
  std::lock_guard lock(l.mutex);
  void* library = open_loaded(l);
  if (library == nullptr) return false;
  (void)dlclose(library);  // the program's own reference keeps it
  return true;
}

void set_driver_for_test(const Driver* fake) {
  lookup().fake.store(fake, std::memory_order_release);
}

std::string error_name(const Driver& d, Result r) {
  const char* name = nullptr;
  if (d.get_error_name(r, &name) == kSuccess && name != nullptr) return name;
  return "CUDA error " + std::to_string(r);
}

ScopedContext::ScopedContext(const Driver& d, Device gpu) : d_(d), gpu_(gpu) {
  result_ = d.primary_retain(&context_, gpu);
  if (result_ != kSuccess) return;
  result_ = d.ctx_push(context_);
  if (result_ != kSuccess) {
    (void)d.primary_release(gpu);
    return;
  }
  (void)d.exchange_capture_mode(&capture_mode_);
}

ScopedContext::~ScopedContext() {
  if (result_ != kSuccess) return;
  (void)d_.exchange_capture_mode(&capture_mode_);
  Context popped = nullptr;
  (void)d_.ctx_pop(&popped);
  (void)d_.primary_release(gpu_);
}

bool in_use(const Driver& d, Device gpu) {
  unsigned flags = 0;
  int active = 0;
  return d.primary_state(gpu, &flags, &active) == kSuccess && active != 0;
}

int gpu_count(const Driver& d) {
  int n = 0;
  return d.device_count(&n) == kSuccess ? n : 0;
}

}  // namespace cuda

std::string cuda_notes() {
  (void)cuda::driver();
  cuda::Lookup& l = cuda::lookup();
  std::lock_guard lock(l.mutex);
  return l.note;
}

Status gpu_uuid(int gpu, GpuUuid& out) {
  const cuda::Driver* d = cuda::driver();
  if (d == nullptr) return Status::unsupported;
  const cuda::Result r = d->device_uuid(out.bytes, gpu);
  if (r == cuda::kSuccess) return Status::ok;
  TP_WARN("GPU %d: no UUID (%s)", gpu, cuda::error_name(*d, r).c_str());
  return Status::system;
}

}  // namespace twinpath::gpu
