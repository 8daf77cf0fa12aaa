#include "plugin/rdma/staging.h"

#include <algorithm>
#include <chrono>
#include <thread>

#include "plugin/base/clock.h"
#include "plugin/base/log.h"
#include "plugin/base/run_clock.h"
#include "plugin/gpu/driver.h"

namespace twinpath {
namespace {

constexpr std::int64_t kCopyPatience = 10 * kSecond;

}  // namespace

ChunkPlan plan_chunks(std::size_t bytes) {
  constexpr auto kMost = static_cast<std::size_t>(kMostChunks);
  ChunkPlan plan;
  plan.bytes = bytes;
  const std::size_t share = bytes / kMost + (bytes % kMost != 0 ? 1 : 0);
  plan.chunk_bytes =
      std::max(kStagedChunk, (share + kStripeAlign - 1) / kStripeAlign * kStripeAlign);
  plan.count = bytes == 0 ? 1 : static_cast<int>((bytes - 1) / plan.chunk_bytes + 1);
  return plan;
}

Staging staging_of(const EndPlan& plan) {
  if (plan.direct_max == 0) return Staging::always;
  return plan.direct_max == kAnySize ? Staging::never : Staging::some;
}

Status not_reachable(const char* call, const std::string& peer, const ProxyMemory& memory,
                     std::size_t bytes) {
  TP_WARN(
      "%s of %zu bytes with %s: the GPU memory at 0x%llx was registered on a connection that %s; "
      "register it on this one",
      call, bytes, peer.c_str(), static_cast<unsigned long long>(memory.address),
      memory.direct ? "does not stage it" : "stages all of it");
  return Status::bad_argument;
}

Result<std::shared_ptr<Mirror>> Mirror::make(std::uint64_t address, std::size_t bytes) {
  const gpu::PointerInfo info = gpu::inspect_pointer(reinterpret_cast<const void*>(address));
  const gpu::cuda::Driver* d = gpu::cuda::driver();
  if (d == nullptr || info.kind != gpu::MemoryKind::cuda) {
    TP_WARN(
        "cannot stage %zu bytes at 0x%llx: the CUDA driver of this process does not know them as "
        "memory of a GPU; register memory of cudaMalloc or ncclMemAlloc",
        bytes, static_cast<unsigned long long>(address));
    return Status::bad_argument;
  }
  if (std::string why; gpu::copies_ready(why) != Status::ok) {
    TP_WARN(
        "%s: GPU memory is copied within the program instead, where a cudaFree behind a collective "
        "may hang (TWINPATH_SOFT_CUDA=inprocess says so without this line)",
        why.c_str());
    gpu::copy_elsewhere("");
  }
  const gpu::cuda::ScopedContext scope(*d, info.gpu);
  void* data = nullptr;
  const gpu::cuda::Result r =
      scope ? d->host_alloc(&data, bytes, gpu::cuda::kHostAllocPortable) : scope.result();
  if (r != gpu::cuda::kSuccess || data == nullptr) {
    TP_WARN(
        "cannot stage memory of GPU %d: %zu bytes of pinned host memory could not be had (%s); "
        "free host memory or raise the limit of the container (docker --memory, ulimit -l), or "
        "let the adapter reach the GPU (TWINPATH_MODE=proxy)",
        info.gpu, bytes, error_name(*d, r).c_str());
    return Status::no_memory;
  }
  std::shared_ptr<Mirror> mirror(new Mirror);
  mirror->gpu_ = info.gpu;
  mirror->address_ = address;
  mirror->data_ = static_cast<std::uint8_t*>(data);
  mirror->memory.address = reinterpret_cast<std::uintptr_t>(data);
  mirror->memory.length = bytes;
  // The thread allocates pinned memory when it starts: now rather than with the first message.
  gpu::prepare_copies(info.gpu, gpu::kPrepareLimit);
  auto reach = gpu::keep_in_reach(reinterpret_cast<const void*>(address), bytes);
  if (!reach) {
    mirror->free();
    return reach.status();
  }
  mirror->reach_ = std::move(reach).take();
  TP_INFO(net, "GPU %d: %zu bytes at 0x%llx are staged through pinned host memory at %p", info.gpu,
          bytes, static_cast<unsigned long long>(address), data);
  return mirror;
}

void Mirror::free() {
  const gpu::cuda::Driver* d = gpu::cuda::driver();
  if (data_ == nullptr || d == nullptr) return;
  const gpu::cuda::ScopedContext scope(*d, gpu_);
  if (scope) (void)d->host_free(data_);
  data_ = nullptr;
  reach_.reset();
}

bool Mirror::shut() {
  shut_.store(true);
  return wait_for_copies(inside_, "memory was given back");
}

bool wait_for_copies(const std::atomic<int>& count, const char* what) {
  if (count.load() == 0) return true;
  RunClock waited(kSecond);
  while (count.load() != 0) {
    if (waited.look(now_ns()) > kCopyPatience && count.load() != 0) {
      TP_WARN(
          "%s while %d copies between GPU and host memory are under way, and they do not end; "
          "their memory is left allocated; see the lines about the copy thread and dmesg",
          what, count.load());
      return false;
    }
    std::this_thread::sleep_for(std::chrono::microseconds(20));
  }
  return true;
}

}  // namespace twinpath
