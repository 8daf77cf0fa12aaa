// Finding a neighbour and allocating there.
#include "plugin/gpu/neighbour.h"

#include <utility>

#include "plugin/base/log.h"

namespace twinpath::gpu {
namespace {

using cuda::kSuccess;

bool reaches(const cuda::Driver& d, int from, int to) {
  int yes = 0;
  return d.can_access_peer(&yes, from, to) == kSuccess && yes != 0;
}

// Allocates on `other` memory that `gpu` can use.  The context of `other` stays retained then.
cuda::Result allocate(const cuda::Driver& d, int gpu, int other, std::uint64_t bytes,
                      cuda::Address& out) {
  cuda::ScopedContext theirs(d, other);
  if (!theirs) return theirs.result();
  cuda::Context held = nullptr;
  cuda::Result r = d.primary_retain(&held, other);
  if (r != kSuccess) return r;
  r = d.mem_alloc(&out, bytes);
  if (r == kSuccess) {
    cuda::ScopedContext ours(d, gpu);
    r = ours ? d.ctx_enable_peer(theirs.context(), 0) : ours.result();
    if (r == cuda::kPeerAccessAlreadyEnabled) r = kSuccess;
    if (r == kSuccess) return r;
  } else {
    out = 0;
  }
  if (out != 0) (void)d.mem_free(out);
  (void)d.primary_release(other);
  return r;
}

}  // namespace

Result<std::unique_ptr<NeighbourMemory>> NeighbourMemory::make(const cuda::Driver& d, int gpu,
                                                               std::uint64_t bytes) {
  cuda::Result r = kSuccess;
  int asked = -1;
  for (int i = 1, n = cuda::gpu_count(d); i < n; ++i) {
    const int other = (gpu + i) % n;
    if (!cuda::in_use(d, other) || !reaches(d, gpu, other) || !reaches(d, other, gpu)) continue;
    cuda::Address address = 0;
    asked = other;
    r = allocate(d, gpu, other, bytes, address);
    if (r != kSuccess) continue;
    TP_INFO(net, "GPU %d: large copies within it go through %llu MiB of GPU %d", gpu,
            static_cast<unsigned long long>(bytes >> 20), other);
    return std::make_unique<NeighbourMemory>(d, other, address);
  }
  if (asked < 0) return Status::again;
  TP_INFO(net,
          "GPU %d: %llu MiB on GPU %d could not be had (%s): copies within GPU %d go through host "
          "memory, at less bandwidth",
          gpu, static_cast<unsigned long long>(bytes >> 20), asked, cuda::error_name(d, r).c_str(),
          gpu);
  return Status::no_memory;
}

namespace {

struct Mapping {
  cuda::Handle handle = 0;
  cuda::Address address = 0;
  std::uint64_t bytes = 0;
};

cuda::Result map_there(const cuda::Driver& d, int gpu, int other, std::uint64_t bytes,
                       Mapping& out) {
  cuda::AllocationProperties properties;
  properties.type = cuda::kAllocationPinned;
  properties.location = {cuda::kLocationDevice, other};
  std::size_t unit = 0;
  cuda::Result r = d.granularity(&unit, &properties, 0);
  if (r != kSuccess || unit == 0) return r;
  out.bytes = (bytes + unit - 1) / unit * unit;
  if (r = d.handle_create(&out.handle, out.bytes, &properties, 0); r != kSuccess) return r;
  const cuda::AccessDescription access{{cuda::kLocationDevice, gpu}, cuda::kAccessReadWrite};
  if (r = d.address_reserve(&out.address, out.bytes, unit, 0, 0); r == kSuccess) {
    if (r = d.map(out.address, out.bytes, 0, out.handle, 0); r == kSuccess) {
      if (r = d.set_access(out.address, out.bytes, &access, 1); r == kSuccess) return r;
      (void)d.unmap(out.address, out.bytes);
    }
    (void)d.address_free(out.address, out.bytes);
  }
  (void)d.handle_release(out.handle);
  return r;
}

}  // namespace

Result<std::unique_ptr<NeighbourMemory>> NeighbourMemory::map(const cuda::Driver& d, int gpu,
                                                              std::uint64_t bytes) {
  if (d.handle_create == nullptr) return Status::unsupported;
  const cuda::ScopedContext scope(d, gpu);
  if (!scope) return Status::system;
  for (int i = 1, n = cuda::gpu_count(d); i < n; ++i) {
    const int other = (gpu + i) % n;
    Mapping made;
    if (!reaches(d, gpu, other) || map_there(d, gpu, other, bytes, made) != kSuccess) continue;
    TP_INFO(net, "GPU %d: large copies within it go through %llu MiB of GPU %d", gpu,
            static_cast<unsigned long long>(made.bytes >> 20), other);
    return std::make_unique<NeighbourMemory>(d, gpu, made.address, made.bytes, made.handle);
  }
  TP_INFO(net,
          "GPU %d: no other GPU is reached: large copies within it go through host memory, at less "
          "bandwidth",
          gpu);
  return Status::no_memory;
}

NeighbourMemory::~NeighbourMemory() {
  if (address_ == 0) return;
  if (mapped_ != 0) {
    const cuda::ScopedContext scope(d_, gpu_);
    (void)d_.unmap(address_, mapped_);
    (void)d_.address_free(address_, mapped_);
    (void)d_.handle_release(handle_);
    return;
  }
  {
    cuda::ScopedContext scope(d_, gpu_);
    if (scope) (void)d_.mem_free(address_);
  }
  (void)d_.primary_release(gpu_);
}

void NeighbourStage::open() {
  const std::lock_guard lock(mutex_);
  open_ = true;
}

void NeighbourStage::prepare(const cuda::Driver& d, int gpu, std::uint64_t bytes, bool map) {
  const std::lock_guard lock(mutex_);
  if (!open_ || memory_ || alone_) return;
  auto made = map ? NeighbourMemory::map(d, gpu, bytes) : NeighbourMemory::make(d, gpu, bytes);
  if (made) {
    memory_ = std::move(*made);
    address_.store(memory_->address(), std::memory_order_release);
  } else {
    alone_ = made.status() != Status::again;
  }
}

void NeighbourStage::close() {
  const std::lock_guard lock(mutex_);
  address_.store(0, std::memory_order_relaxed);
  memory_.reset();
  open_ = alone_ = false;
}

void NeighbourStage::leave() {
  const std::lock_guard lock(mutex_);
  if (memory_) memory_->forget();
  open_ = false;
}

}  // namespace twinpath::gpu
