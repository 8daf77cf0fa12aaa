// The model as a library: its C entry, and plugin/gpu as the host has it (soft_library.h).
#include <atomic>
#include <cstring>
#include <string>
#include <utility>

#include "plugin/base/version.h"
#include "plugin/fabric/soft/entry.h"
#include "plugin/fabric/soft_library.h"

namespace twinpath {
namespace {

// Process-wide, as what it gives is.  Partner of the acquire in host(): whoever has the table of
// functions got it after the store, by way of the entry's result.
constinit std::atomic<const SoftHost*> the_host{nullptr};

const SoftHost& host() { return *the_host.load(std::memory_order_acquire); }

const char* misfit(const SoftHost& host, const std::uint32_t* sizes, std::size_t count) {
  if (count != kSoftHcaSizes.size() ||
      std::memcmp(sizes, kSoftHcaSizes.data(), sizeof kSoftHcaSizes) != 0)
    return "its structures have other sizes";
  static const std::string own = std::string("it is ") + built_from();
  return std::strcmp(host.build, built_from()) == 0 ? nullptr : own.c_str();
}

}  // namespace

// What the model calls of plugin/gpu.
namespace gpu {

PointerInfo inspect_pointer(const void* p) { return host().inspect_pointer(p); }
Status check_range(const PointerInfo& info, const void* p, std::uint64_t bytes) {
  return host().check_range(info, p, bytes);
}
Result<ExportedAllocation> export_allocation(const PointerInfo& info) {
  return host().export_allocation(info);
}
Result<std::shared_ptr<ImportedAllocation>> import_allocation(ExportedAllocation exported) {
  return host().import_allocation(std::move(exported));
}
Result<std::shared_ptr<ImportedAllocation>> import_local(const PointerInfo& info) {
  return host().import_local(info);
}
Result<std::shared_ptr<ImportedAllocation>> keep_in_reach(const void* p, std::uint64_t bytes) {
  return host().keep_in_reach(p, bytes);
}
void prepare_copies(int gpu, std::int64_t wait_ns) { host().prepare_copies(gpu, wait_ns); }
Status submit_copy(CopyJob* job) { return host().submit_copy(job); }
bool copied_elsewhere() { return host().copied_elsewhere(); }
bool find_dmabuf(int fd, DmabufMemory& out) { return host().find_dmabuf(fd, out); }

}  // namespace gpu

extern "C" __attribute__((visibility("default"))) const SoftHca* twinpath_softhca_v1(
    const SoftHost* host, const std::uint32_t* sizes, std::size_t count, const char** why) {
  *why = misfit(*host, sizes, count);
  if (*why != nullptr) return nullptr;
  use_log_of(*host->log);
  the_host.store(host, std::memory_order_release);
  return &soft::entry();
}

}  // namespace twinpath
