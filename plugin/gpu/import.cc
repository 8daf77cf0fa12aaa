// Making allocations reachable from every GPU that this process uses.
#include "plugin/gpu/import.h"

#include <algorithm>
#include <utility>

#include "plugin/base/log.h"
#include "plugin/gpu/driver.h"

namespace twinpath::gpu {
namespace {

using cuda::Driver;
using cuda::kSuccess;

Status failed(const Driver& d, const char* call, cuda::Result r) {
  TP_WARN("CUDA memory of another GPU or process: %s failed (%s)", call, error_name(d, r).c_str());
  return Status::system;
}

bool can_reach(const Driver& d, int from, int owner) {
  if (from == owner || owner == kGpuNotVisible) return true;
  int yes = 0;
  return d.can_access_peer(&yes, from, owner) == kSuccess && yes != 0;
}

// A GPU of this process in whose context memory of `owner` can be handled: the owner itself when
// the program uses it, else another that reaches it; -1: none.
int gpu_for(const Driver& d, int owner) {
  const int n = gpu_count(d);
  if (owner < n && in_use(d, owner)) return owner;
  for (int gpu = 0; gpu < n; ++gpu)
    if (in_use(d, gpu) && can_reach(d, gpu, owner)) return gpu;
  return -1;
}

// A VMM allocation mapped once more.  Members are undone in reverse by the destructor, so a
// half-made object cleans up after itself.
class MappedHandle : public ImportedAllocation {
 public:
  MappedHandle(const Driver& d, cuda::Handle handle, std::uint64_t bytes, int gpu, int context_gpu)
      : d_(d), handle_(handle), bytes_(bytes), gpu_(gpu), context_gpu_(context_gpu) {}
  ~MappedHandle() override {
    cuda::ScopedContext scope(d_, context_gpu_);
    if (mapped_) (void)d_.unmap(address_, bytes_);
    if (address_ != 0) (void)d_.address_free(address_, reserved_);
    (void)d_.handle_release(handle_);
  }
  Status map() {
    cuda::AllocationProperties properties;
    properties.type = cuda::kAllocationPinned;
    properties.handle_types = cuda::kHandlePosixFd;
    properties.location = {cuda::kLocationDevice, gpu_ == kGpuNotVisible ? context_gpu_ : gpu_};
    std::size_t unit = 0;
    cuda::Result r = d_.granularity(&unit, &properties, 0);
    if (r != kSuccess || unit == 0) return failed(d_, "cuMemGetAllocationGranularity", r);
    const std::size_t size = (bytes_ + unit - 1) / unit * unit;
    r = d_.address_reserve(&address_, size, unit, 0, 0);
    if (r != kSuccess) {
      address_ = 0;
      return failed(d_, "cuMemAddressReserve", r);
    }
    reserved_ = size;
    r = d_.map(address_, bytes_, 0, handle_, 0);
    if (r != kSuccess) return failed(d_, "cuMemMap", r);
    mapped_ = true;
    return open_access();
  }
  std::uint64_t address() const override { return address_; }
  std::uint64_t bytes() const override { return bytes_; }
  int gpu() const override { return gpu_; }

 private:
  // One call a GPU, so that one without a path does not deny the others.
  Status open_access() {
    int opened = 0;
    cuda::Result r = kSuccess;
    for (int gpu = 0, n = gpu_count(d_); gpu < n; ++gpu) {
      if (!can_reach(d_, gpu, gpu_)) continue;
      const cuda::AccessDescription access{{cuda::kLocationDevice, gpu}, cuda::kAccessReadWrite};
      const cuda::Result one = d_.set_access(address_, bytes_, &access, 1);
      if (one == kSuccess) {
        ++opened;
      } else {
        r = one;
      }
    }
    return opened > 0 ? Status::ok : failed(d_, "cuMemSetAccess", r);
  }

  const Driver& d_;
  const cuda::Handle handle_;
  const std::uint64_t bytes_;
  const int gpu_, context_gpu_;
  std::size_t reserved_ = 0;
  cuda::Address address_ = 0;
  bool mapped_ = false;
};

// cudaMalloc memory of another process, opened in one context.
class OpenedIpc : public ImportedAllocation {
 public:
  OpenedIpc(const Driver& d, cuda::Address address, std::uint64_t bytes, int gpu, int context_gpu)
      : d_(d), address_(address), bytes_(bytes), gpu_(gpu), context_gpu_(context_gpu) {}
  ~OpenedIpc() override {
    cuda::ScopedContext scope(d_, context_gpu_);
    (void)d_.ipc_close(address_);
  }
  std::uint64_t address() const override { return address_; }
  std::uint64_t bytes() const override { return bytes_; }
  int gpu() const override { return gpu_; }

 private:
  const Driver& d_;
  const cuda::Address address_;
  const std::uint64_t bytes_;
  const int gpu_, context_gpu_;
};

// cudaMalloc memory of this process: reachable where it is once peer access is on.
class OwnMemory : public ImportedAllocation {
 public:
  explicit OwnMemory(const PointerInfo& info) : info_(info) {}
  std::uint64_t address() const override { return info_.alloc_base; }
  std::uint64_t bytes() const override { return info_.alloc_bytes; }
  int gpu() const override { return info_.gpu; }

 private:
  const PointerInfo info_;
};

void enable_peer(const Driver& d, int from, int to) {
  if (!can_reach(d, from, to)) return;
  cuda::ScopedContext target(d, to);
  cuda::ScopedContext accessing(d, from);
  if (!target || !accessing) return;
  const cuda::Result r = d.ctx_enable_peer(target.context(), 0);
  if (r != kSuccess && r != cuda::kPeerAccessAlreadyEnabled)
    TP_INFO(net, "GPU %d: no peer access to GPU %d (%s): copies go through the host", from, to,
            error_name(d, r).c_str());
}

// Both ways between `gpu` and every other GPU that the program uses.
void enable_peers(const Driver& d, int gpu) {
  for (int other = 0, n = gpu_count(d); other < n; ++other) {
    if (other == gpu || !in_use(d, other)) continue;
    enable_peer(d, gpu, other);
    enable_peer(d, other, gpu);
  }
}

using Imported = Result<std::shared_ptr<ImportedAllocation>>;

Imported map_handle(const Driver& d, cuda::Handle handle, std::uint64_t bytes, int owner,
                    int context_gpu) {
  auto made = std::make_shared<MappedHandle>(d, handle, bytes, owner, context_gpu);
  TP_TRY(made->map());
  return std::shared_ptr<ImportedAllocation>(std::move(made));
}

Imported open_ipc(const Driver& d, const ExportedAllocation& e, int owner, int context_gpu) {
  cuda::IpcHandle handle{};
  std::copy(std::begin(e.ipc_handle), std::end(e.ipc_handle), handle.bytes);
  cuda::Address address = 0;
  const cuda::Result r = d.ipc_open(&address, handle, cuda::kIpcLazyPeerAccess);
  if (r != kSuccess) return failed(d, "cuIpcOpenMemHandle", r);
  if (context_gpu == owner) enable_peers(d, owner);
  return std::shared_ptr<ImportedAllocation>(
      std::make_shared<OpenedIpc>(d, address, e.bytes, owner, context_gpu));
}

}  // namespace

int find_gpu(const Driver& d, const GpuUuid& uuid) {
  for (int gpu = 0, n = gpu_count(d); gpu < n; ++gpu) {
    GpuUuid id{};
    if (d.device_uuid(id.bytes, gpu) == kSuccess && id == uuid) return gpu;
  }
  return kGpuNotVisible;
}

Imported import_here(ExportedAllocation exported) {
  const Driver* d = cuda::driver();
  if (d == nullptr) return Status::unsupported;
  const int owner = find_gpu(*d, exported.gpu);
  const int context_gpu = gpu_for(*d, owner);
  if (context_gpu < 0) {
    TP_WARN(
        "GPU memory of another process: no GPU that this process uses reaches its GPU; call "
        "cudaSetDevice before, or keep GPUDirect off between these GPUs (NCCL_NET_GDR_LEVEL=LOC)");
    return Status::unsupported;
  }
  cuda::ScopedContext scope(*d, context_gpu);
  if (!scope) return failed(*d, "cuDevicePrimaryCtxRetain", scope.result());
  switch (exported.kind) {
    case ExportedAllocation::Kind::posix_fd: {
      cuda::Handle handle = 0;
      const auto fd = static_cast<std::uintptr_t>(exported.fd.get());
      const cuda::Result r =
          d->handle_import(&handle, reinterpret_cast<void*>(fd), cuda::kHandlePosixFd);
      if (r != kSuccess) return failed(*d, "cuMemImportFromShareableHandle", r);
      return map_handle(*d, handle, exported.bytes, owner, context_gpu);
    }
    case ExportedAllocation::Kind::ipc:
      return open_ipc(*d, exported, owner, context_gpu);
    case ExportedAllocation::Kind::none:
      break;
  }
  return Status::bad_argument;
}

Imported import_local_here(const PointerInfo& info) {
  const Driver* d = cuda::driver();
  if (d == nullptr) return Status::unsupported;
  if (info.kind != MemoryKind::cuda) return Status::bad_argument;
  prepare_copies(info.gpu);
  cuda::ScopedContext scope(*d, info.gpu);
  if (!scope) return failed(*d, "cuDevicePrimaryCtxRetain", scope.result());
  cuda::Handle handle = 0;
  if (d->handle_retain(&handle, reinterpret_cast<void*>(info.alloc_base)) == kSuccess)
    return map_handle(*d, handle, info.alloc_bytes, info.gpu, info.gpu);
  enable_peers(*d, info.gpu);
  return std::shared_ptr<ImportedAllocation>(std::make_shared<OwnMemory>(info));
}

}  // namespace twinpath::gpu
