// See gdrapi_stand_in.h.  Signatures are those of gdrapi.h 2.0 and later.
#include "test/gda/gdrapi_stand_in.h"

#include <sys/mman.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <thread>

namespace {

using twinpath::test::GdrStandIn;

constexpr std::uint64_t kPage = 64 * 1024;

GdrStandIn& state() {
  static GdrStandIn all;
  return all;
}

void note(const char* rule) {
  if (state().broken.empty()) state().broken = rule;
}

// Every function: the library is not made for threads.
class Call {
 public:
  Call() {
    if (inside.fetch_add(1) != 0) note("two threads at once");
    std::this_thread::yield();
  }
  ~Call() { --inside; }
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;

 private:
  static inline std::atomic<int> inside{0};
};

struct Pinned {
  std::uint64_t address = 0;
  std::size_t bytes = 0;
  void* view = nullptr;
  std::size_t view_bytes = 0;
};
std::map<unsigned long, Pinned>& pins() {
  static std::map<unsigned long, Pinned> all;
  return all;
}

bool within_one_allocation(std::uint64_t begin, std::uint64_t end) {
  for (const auto& [first, bytes] : state().allocations)
    if (begin >= first && end <= first + bytes) return true;
  return false;
}

}  // namespace

extern "C" {

struct gdr_mh_t {
  unsigned long h;
};
struct gdr_info_t {
  std::uint64_t va;
  std::uint64_t mapped_size;
  std::uint32_t page_size;
  std::uint64_t tm_cycles;
  std::uint32_t cycles_per_ms;
  unsigned mapped : 1;
  unsigned wc_mapping : 1;
  int mapping_type;
};

__attribute__((visibility("default"))) GdrStandIn* gdr_stand_in() {
  state().freeing = [](std::uint64_t address, std::size_t bytes) {
    for (const auto& [handle, p] : pins())
      if (address < p.address + p.bytes && p.address < address + bytes) note("freed while pinned");
  };
  return &state();
}

__attribute__((visibility("default"))) void* gdr_open() {
  const Call call;
  if (!state().module_loaded) return nullptr;
  ++state().opened;
  return &state();
}

__attribute__((visibility("default"))) int gdr_close(void*) {
  const Call call;
  if (!pins().empty()) note("closed while memory is pinned");
  std::atomic_ref<int>(state().closes).fetch_add(1);
  std::this_thread::sleep_for(std::chrono::milliseconds(state().close_ms));
  --state().opened;
  return 0;
}

__attribute__((visibility("default"))) int gdr_pin_buffer(void*, unsigned long address,
                                                          std::size_t bytes, std::uint64_t,
                                                          std::uint32_t, gdr_mh_t* handle) {
  const Call call;
  if (state().pin_error != 0) return state().pin_error;
  const std::uint64_t begin = address / kPage * kPage;
  const std::uint64_t end = (address + bytes + kPage - 1) / kPage * kPage;
  if (bytes == 0 || !within_one_allocation(address, address + bytes)) return EINVAL;
  if (!within_one_allocation(begin, end)) note("pins a page that others have a part of");
  static unsigned long last = 0;
  handle->h = ++last;
  pins()[last] = {address, bytes, nullptr, 0};
  ++state().pinned;
  ++state().pins;
  return 0;
}

__attribute__((visibility("default"))) int gdr_map(void*, gdr_mh_t handle, void** view,
                                                   std::size_t bytes) {
  const Call call;
  if (state().map_error != 0) return state().map_error;
  const auto found = pins().find(handle.h);
  if (found == pins().end() || found->second.address % kPage != 0) return EINVAL;
  Pinned& p = found->second;
  if (p.view != nullptr) return EAGAIN;
  if (bytes > p.bytes) return EINVAL;
  void* const made =
      mremap(reinterpret_cast<void*>(p.address), 0, bytes, MREMAP_MAYMOVE);  // a second view
  if (made == MAP_FAILED) return errno;
  p.view = *view = made;
  p.view_bytes = bytes;
  ++state().mapped;
  return 0;
}

__attribute__((visibility("default"))) int gdr_unmap(void*, gdr_mh_t handle, void* view,
                                                     std::size_t bytes) {
  const Call call;
  const auto found = pins().find(handle.h);
  if (found == pins().end() || found->second.view != view || found->second.view_bytes != bytes) {
    note("unmaps what it has not mapped");
    return EINVAL;
  }
  munmap(view, bytes);
  found->second.view = nullptr;
  --state().mapped;
  return 0;
}

__attribute__((visibility("default"))) int gdr_unpin_buffer(void*, gdr_mh_t handle) {
  const Call call;
  const auto found = pins().find(handle.h);
  if (found == pins().end()) {
    note("unpins what is not pinned");
    return EINVAL;
  }
  if (found->second.view != nullptr) note("unpinned while mapped");
  pins().erase(found);
  --state().pinned;
  return 0;
}

__attribute__((visibility("default"))) int gdr_get_info_v2(void*, gdr_mh_t handle,
                                                           gdr_info_t* info) {
  const Call call;
  if (state().info_error != 0) return state().info_error;
  const auto found = pins().find(handle.h);
  if (found == pins().end()) return EINVAL;
  *info = {found->second.address + state().info_shift,
           found->second.bytes,
           kPage,
           1,
           1,
           found->second.view != nullptr,
           1,
           1};
  return 0;
}

__attribute__((visibility("default"))) void gdr_runtime_get_version(int* major, int* minor) {
  const Call call;
  *major = 2;
  *minor = 6;
}

__attribute__((visibility("default"))) int gdr_driver_get_version(void*, int* major, int* minor) {
  const Call call;
  if (state().by_dma_buf) note("asks a module that is not there; GDRCopy 2.6 ends the process");
  *major = state().driver_major;
  *minor = state().driver_minor;
  return state().version_error;
}

__attribute__((visibility("default"))) int gdr_get_attribute(void*, int attribute, int* value) {
  const Call call;
  *value = attribute == 3 && state().by_dma_buf ? 1 : 0;
  return 0;
}

}  // extern "C"
