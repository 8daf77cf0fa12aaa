#include "gda/memory/device_memory.h"

#include <poll.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <new>

#include "plugin/base/log.h"
#include "plugin/base/page_size.h"
#include "plugin/base/wait_within.h"
#include "plugin/gpu/driver.h"

namespace twinpath::gda {
namespace {

namespace cuda = gpu::cuda;

constexpr std::size_t kStageBytes = 64 * 1024;
// The copy engine has other work at most; a copy that takes this long will not end.
constexpr std::int64_t kCopyLimit = 20 * kSecond;

std::uint64_t address_of(const void* p) { return reinterpret_cast<std::uintptr_t>(p); }

Status check_copy(std::size_t size, std::size_t offset, std::size_t bytes) {
  if (offset <= size && bytes <= size - offset) return Status::ok;
  TP_WARN("device memory: copy of %zu bytes to %zu of %zu; this is a defect, please report it",
          bytes, offset, size);
  return Status::internal;
}

Status cuda_failed(const cuda::Driver& d, int gpu, const char* what, std::size_t bytes,
                   cuda::Result r) {
  TP_WARN("GPU %d: %s of %zu bytes failed (%s); free some memory on it, or see dmesg for the GPU",
          gpu, what, bytes, error_name(d, r).c_str());
  return Status::system;
}

// --- no GPU ---------------------------------------------------------------------------

class HostBlock final : public DeviceBlock {
 public:
  HostBlock(std::uint8_t* p, std::size_t bytes) : p_(p), bytes_(bytes) {}
  ~HostBlock() override { std::free(p_); }
  std::uint64_t device_address() const override { return address_of(p_); }
  std::uint8_t* host() const override { return p_; }
  std::size_t bytes() const override { return bytes_; }
  Status copy_in(std::size_t offset, const void* from, std::size_t bytes) override {
    TP_TRY(check_copy(bytes_, offset, bytes));
    if (bytes != 0) std::memcpy(p_ + offset, from, bytes);
    return Status::ok;
  }

 private:
  std::uint8_t* const p_;
  const std::size_t bytes_;
};

Result<std::unique_ptr<DeviceBlock>> make_host_block(std::size_t bytes) {
  auto* p = static_cast<std::uint8_t*>(std::aligned_alloc(page_size(), page_end(bytes)));
  if (p == nullptr) {
    TP_WARN("out of memory: %zu bytes for queues", bytes);
    return Status::no_memory;
  }
  std::memset(p, 0, page_end(bytes));
  return std::unique_ptr<DeviceBlock>(std::make_unique<HostBlock>(p, bytes));
}

// --- GPU ------------------------------------------------------------------------------

// A reference to a GPU's primary context: memory lives in it, so it must not go first.
class HeldContext {
 public:
  HeldContext(const cuda::Driver& d, int gpu) : d_(d), gpu_(gpu) {
    cuda::Context ignored = nullptr;
    result_ = d.primary_retain(&ignored, gpu);
  }
  ~HeldContext() {
    if (result_ == cuda::kSuccess) (void)d_.primary_release(gpu_);
  }
  HeldContext(const HeldContext&) = delete;
  HeldContext& operator=(const HeldContext&) = delete;
  cuda::Result result() const { return result_; }

 private:
  const cuda::Driver& d_;
  const int gpu_;
  cuda::Result result_;
};

// Brings bytes into the memory of one GPU: a stream and pinned memory, kept while any block of
// that GPU is, because making and freeing them may wait for kernels.
class Stager {
 public:
  static std::shared_ptr<Stager> of(const cuda::Driver& d, int gpu);
  Stager(const cuda::Driver& d, int gpu) : d_(d), gpu_(gpu), held_(d, gpu) {}
  ~Stager();
  Stager(const Stager&) = delete;
  Stager& operator=(const Stager&) = delete;

  // Null `from`: zeros.  Returns when the bytes are there.
  Status put(cuda::Address to, const void* from, std::size_t bytes);

 private:
  Status prepare();
  Status copy(cuda::Address to, std::size_t bytes);

  const cuda::Driver& d_;
  const int gpu_;
  const HeldContext held_;
  std::mutex mutex_;
  cuda::Stream stream_ = nullptr;
  void* stage_ = nullptr;
  bool stuck_ = false;  // a copy may still read stage_
};

// One per GPU of the process, like the GPU's context itself; only a cache, empty when no block
// is left.
std::shared_ptr<Stager> Stager::of(const cuda::Driver& d, int gpu) {
  static std::mutex mutex;
  static std::map<int, std::weak_ptr<Stager>> known;
  const std::lock_guard lock(mutex);
  std::shared_ptr<Stager> stager = known[gpu].lock();
  if (!stager) known[gpu] = stager = std::make_shared<Stager>(d, gpu);
  return stager;
}

Stager::~Stager() {
  if (stuck_) return;
  const cuda::ScopedContext scope(d_, gpu_);
  if (!scope) return;
  if (stream_ != nullptr) (void)d_.stream_destroy(stream_);
  if (stage_ != nullptr) (void)d_.host_free(stage_);
}

Status Stager::prepare() {
  if (stuck_) return Status::system;
  if (stage_ == nullptr) {
    const cuda::Result r =
        d_.host_alloc(&stage_, kStageBytes, cuda::kHostAllocPortable | cuda::kHostAllocMapped);
    if (r != cuda::kSuccess) {
      stage_ = nullptr;
      return cuda_failed(d_, gpu_, "allocation of pinned memory", kStageBytes, r);
    }
  }
  if (stream_ == nullptr) {
    const cuda::Result r = d_.stream_create(&stream_, cuda::kStreamNonBlocking);
    if (r != cuda::kSuccess) {
      stream_ = nullptr;
      return cuda_failed(d_, gpu_, "making a stream for copies", 0, r);
    }
  }
  return Status::ok;
}

Status Stager::put(cuda::Address to, const void* from, std::size_t bytes) {
  const std::lock_guard lock(mutex_);
  const cuda::ScopedContext scope(d_, gpu_);
  if (!scope) return cuda_failed(d_, gpu_, "copy into its memory", bytes, scope.result());
  TP_TRY(prepare());
  if (from == nullptr) std::memset(stage_, 0, std::min(bytes, kStageBytes));
  for (std::size_t done = 0; done < bytes;) {
    const std::size_t n = std::min(bytes - done, kStageBytes);
    if (from != nullptr) std::memcpy(stage_, static_cast<const std::uint8_t*>(from) + done, n);
    TP_TRY(copy(to + done, n));
    done += n;
  }
  return Status::ok;
}

// A copy and no memset: that would run on the SMs, which spinning kernels may fill.
Status Stager::copy(cuda::Address to, std::size_t bytes) {
  cuda::Result r = d_.copy_async(to, address_of(stage_), bytes, stream_);
  RunLimit limit(kCopyLimit);
  for (int i = 0; r == cuda::kSuccess; ++i) {
    r = d_.stream_query(stream_);
    if (r == cuda::kSuccess) return Status::ok;
    if (r != cuda::kNotReady || limit.over(now_ns())) break;
    r = cuda::kSuccess;
    if (i > 1000) (void)::poll(nullptr, 0, 1);
  }
  stuck_ = true;
  return cuda_failed(d_, gpu_, "copy into its memory", bytes, r);
}

class GpuBlock final : public DeviceBlock {
 public:
  GpuBlock(const cuda::Driver& d, int gpu, cuda::Address base, std::size_t bytes)
      : d_(d), gpu_(gpu), stager_(Stager::of(d, gpu)), base_(base), bytes_(bytes) {}
  ~GpuBlock() override {
    const cuda::ScopedContext scope(d_, gpu_);
    if (scope) (void)d_.mem_free(base_);
  }
  Status clear() { return stager_->put(device_address(), nullptr, bytes_); }
  std::uint64_t device_address() const override { return page_end(base_); }
  std::uint8_t* host() const override { return nullptr; }
  std::size_t bytes() const override { return bytes_; }
  Status copy_in(std::size_t offset, const void* from, std::size_t bytes) override {
    TP_TRY(check_copy(bytes_, offset, bytes));
    return bytes == 0 ? Status::ok : stager_->put(device_address() + offset, from, bytes);
  }

 private:
  const cuda::Driver& d_;
  const int gpu_;
  const std::shared_ptr<Stager> stager_;  // holds the context
  const cuda::Address base_;
  const std::size_t bytes_;
};

class PinnedBlock final : public DeviceBlock {
 public:
  PinnedBlock(const cuda::Driver& d, int gpu, void* base, std::size_t bytes)
      : d_(d), gpu_(gpu), held_(d, gpu), base_(base), bytes_(bytes) {}
  ~PinnedBlock() override {
    const cuda::ScopedContext scope(d_, gpu_);
    if (scope) (void)d_.host_free(base_);
  }
  std::uint64_t device_address() const override { return page_end(address_of(base_)); }
  std::uint8_t* host() const override {
    return static_cast<std::uint8_t*>(base_) + (device_address() - address_of(base_));
  }
  std::size_t bytes() const override { return bytes_; }
  Status copy_in(std::size_t offset, const void* from, std::size_t bytes) override {
    TP_TRY(check_copy(bytes_, offset, bytes));
    if (bytes != 0) std::memcpy(host() + offset, from, bytes);
    return Status::ok;
  }

 private:
  const cuda::Driver& d_;
  const int gpu_;
  const HeldContext held_;
  void* const base_;
  const std::size_t bytes_;
};

// Both with room to align: the driver hands out small pieces of larger blocks.
Result<std::unique_ptr<DeviceBlock>> make_gpu_block(const cuda::Driver& d, int gpu,
                                                    std::size_t bytes) {
  cuda::Address base = 0;
  const cuda::Result r = d.mem_alloc(&base, bytes + page_size());
  if (r != cuda::kSuccess) return cuda_failed(d, gpu, "allocation of its memory", bytes, r);
  auto block = std::make_unique<GpuBlock>(d, gpu, base, bytes);
  TP_TRY(block->clear());
  return std::unique_ptr<DeviceBlock>(std::move(block));
}

Result<std::unique_ptr<DeviceBlock>> make_pinned_block(const cuda::Driver& d, int gpu,
                                                       std::size_t bytes) {
  void* base = nullptr;
  cuda::Result r =
      d.host_alloc(&base, bytes + page_size(), cuda::kHostAllocPortable | cuda::kHostAllocMapped);
  if (r != cuda::kSuccess) return cuda_failed(d, gpu, "allocation of pinned memory", bytes, r);
  auto block = std::make_unique<PinnedBlock>(d, gpu, base, bytes);
  cuda::Address seen = 0;
  r = d.host_device_pointer(&seen, base, 0);
  if (r != cuda::kSuccess) return cuda_failed(d, gpu, "mapping pinned memory", bytes, r);
  if (seen != address_of(base)) {
    TP_WARN(
        "GPU %d: pinned memory has another address on the GPU (no unified addressing); "
        "GPU-initiated transport is not possible there, use TWINPATH_MODE=proxy",
        gpu);
    return Status::unsupported;
  }
  std::memset(block->host(), 0, bytes);
  return std::unique_ptr<DeviceBlock>(std::move(block));
}

}  // namespace

Result<std::unique_ptr<DeviceBlock>> DeviceBlock::make(int gpu, Place place, std::size_t bytes) {
  if (bytes == 0) {
    TP_WARN("device memory: 0 bytes asked for; this is a defect, please report it");
    return Status::internal;
  }
  const cuda::Driver* d = gpu < 0 ? nullptr : cuda::driver();
  // A stand-in for the driver may lack what only this file needs.
  if (d == nullptr || d->mem_alloc == nullptr || d->host_device_pointer == nullptr)
    return make_host_block(bytes);
  const cuda::ScopedContext scope(*d, gpu);
  if (!scope) {
    TP_WARN("GPU %d: no context (%s)", gpu, error_name(*d, scope.result()).c_str());
    return Status::system;
  }
  return place == Place::gpu ? make_gpu_block(*d, gpu, bytes) : make_pinned_block(*d, gpu, bytes);
}

Result<std::shared_ptr<gpu::ImportedAllocation>> reach_block(int gpu, const DeviceBlock& block) {
  if (block.host() != nullptr) return std::shared_ptr<gpu::ImportedAllocation>();
  gpu::prepare_copies(gpu, gpu::kPrepareLimit);
  return gpu::keep_in_reach(reinterpret_cast<const void*>(block.device_address()), block.bytes());
}

}  // namespace twinpath::gda
