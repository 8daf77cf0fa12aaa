#include "plugin/rdma/mr_cache.h"

#include <cerrno>
#include <cstring>

#include "plugin/base/log.h"
#include "plugin/base/page_size.h"
#include "plugin/base/reason_text.h"
#include "plugin/fabric/registration.h"

namespace twinpath {
namespace {

constexpr int kAccess = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ;

const char* kind_name(MrKind kind) {
  switch (kind) {
    case MrKind::host:
      return "host memory";
    case MrKind::cuda:
      return "CUDA memory";
    case MrKind::dmabuf:
      return "CUDA memory by dma-buf";
  }
  return "memory";
}

void report(const std::string& device, const MrRequest& request, const std::string& why) {
  TP_WARN("%s cannot register %zu bytes of %s at 0x%llx: %s", device.c_str(), request.bytes,
          kind_name(request.kind), static_cast<unsigned long long>(request.address), why.c_str());
}

}  // namespace

MrCache::~MrCache() {
  for (MrRegion& r : regions_) (void)verbs_.dereg_mr(r.mr);
}

Result<MrRegion*> MrCache::acquire(const MrRequest& request) {
  std::uint64_t start = request.address;
  std::uint64_t end = request.address + request.bytes;
  if (request.kind == MrKind::host) {
    // The kernel pins whole pages anyway; neighbours then share one region.  CUDA ranges stay
    // exact: the page around them need not belong to the allocation.
    start = page_start(start);
    end = page_end(end);
  }
  const bool data_direct = request.data_direct && request.kind == MrKind::dmabuf;
  std::lock_guard hold(mutex_);
  auto at = regions_.begin();
  for (; at != regions_.end() && at->start <= start; ++at) {
    if (at->end >= end && at->kind == request.kind &&
        at->relaxed_ordering == request.relaxed_ordering &&
        at->remote_atomic == request.remote_atomic && at->data_direct == data_direct) {
      ++at->users;
      if (counts_ != nullptr) counts_->hits.fetch_add(1, std::memory_order_relaxed);
      return &*at;
    }
  }
  int error = 0;
  ibv_mr* mr = register_range(request, start, static_cast<std::size_t>(end - start), error);
  if (mr == nullptr) return error == ENOMEM ? Status::no_memory : Status::system;
  if (counts_ != nullptr) {
    counts_->registrations.fetch_add(1, std::memory_order_relaxed);
    counts_->registered_bytes.fetch_add(end - start, std::memory_order_relaxed);
  }
  at = regions_.insert(at, MrRegion{start, end, request.kind, request.relaxed_ordering,
                                    request.remote_atomic, data_direct, mr, 1});
  return &*at;
}

ibv_mr* MrCache::register_range(const MrRequest& request, std::uint64_t start, std::size_t bytes,
                                int& error) {
  RangeRequest range;
  range.address = range.iova = start;
  range.bytes = bytes;
  range.access = kAccess | (request.remote_atomic ? int{IBV_ACCESS_REMOTE_ATOMIC} : 0);
  range.relaxed_ordering = request.relaxed_ordering && relaxed_accepted_;
  range.data_direct = request.data_direct && data_direct_accepted_;
  range.dmabuf_fd = request.dmabuf_fd;
  range.dmabuf_offset = request.dmabuf_offset;
  // Without a descriptor: one of our own, or, where there is none, the address.
  range.exported = request.kind == MrKind::dmabuf;
  range.by_address = request.kind != MrKind::dmabuf || request.dmabuf_fd < 0;
  const RangeMr made = request.kind == MrKind::host ? register_host_range(verbs_, pd_, range)
                                                    : register_gpu_range(verbs_, pd_, range);
  error = made.error;
  if (made.mr == nullptr) {
    if (!request.quiet) report(device_, request, made.refused);
    return nullptr;
  }
  if (range.relaxed_ordering && !made.relaxed_ordering) {
    relaxed_accepted_ = false;
    TP_INFO(net, "%s does not accept relaxed ordering; registering without it", device_.c_str());
  }
  if (made.data_direct_error != 0) {
    data_direct_accepted_ = false;
    TP_WARN(
        "the data-direct function of %s refuses GPU memory: %s; its own function "
        "moves it, past the CPU: look at ACS and IOMMU groups (rdma_topo), or set "
        "NCCL_IB_DATA_DIRECT=0",
        device_.c_str(), reason_text(made.data_direct_error).c_str());
  }
  return made.mr;
}

void MrCache::release(MrRegion* region) {
  if (region == nullptr) return;
  std::lock_guard hold(mutex_);
  if (--region->users > 0) return;
  for (auto at = regions_.begin(); at != regions_.end(); ++at) {
    if (&*at != region) continue;
    if (const int error = verbs_.dereg_mr(at->mr); error != 0)
      TP_WARN("%s cannot deregister 0x%llx: %s", device_.c_str(),
              static_cast<unsigned long long>(at->start), std::strerror(error));
    regions_.erase(at);
    return;
  }
}

std::size_t MrCache::regions() const {
  std::lock_guard hold(mutex_);
  return regions_.size();
}

}  // namespace twinpath
