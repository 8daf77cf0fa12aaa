#include "proxy/memory/mr_cache.h"

#include <sys/resource.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "plugin/base/log.h"
#include "plugin/base/reason_text.h"

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

std::string memlock_text() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_MEMLOCK, &limit) != 0) return "unknown";
  if (limit.rlim_cur == RLIM_INFINITY) return "unlimited";
  return std::to_string(limit.rlim_cur / 1024) + " KiB";
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
    const auto page = static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
    start = start / page * page;
    end = (end + page - 1) / page * page;
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
  if (mr == nullptr) {
    if (!request.quiet) report(request, error);
    return error == ENOMEM ? Status::no_memory : Status::system;
  }
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
  auto* data = reinterpret_cast<void*>(start);
  const int plain = kAccess | (request.remote_atomic ? int{IBV_ACCESS_REMOTE_ATOMIC} : 0);
  bool by_data_direct = request.kind == MrKind::dmabuf && request.data_direct &&
                        data_direct_accepted_ && verbs_.reg_data_direct != nullptr;
  auto once = [&](int access) -> ibv_mr* {
    errno = 0;
    if (request.kind != MrKind::dmabuf)
      return verbs_.reg_mr_iova2(pd_, data, bytes, start, static_cast<unsigned>(access));
    if (by_data_direct)
      return verbs_.reg_data_direct(pd_, request.dmabuf_offset, bytes, start, request.dmabuf_fd,
                                    access, kDataDirect);
    if (verbs_.reg_dmabuf_mr == nullptr) {
      errno = EOPNOTSUPP;
      return nullptr;
    }
    return verbs_.reg_dmabuf_mr(pd_, request.dmabuf_offset, bytes, start, request.dmabuf_fd,
                                access);
  };
  const bool relaxed = request.relaxed_ordering && relaxed_accepted_;
  const int wanted = plain | (relaxed ? int{IBV_ACCESS_RELAXED_ORDERING} : 0);
  ibv_mr* mr = once(wanted);
  error = errno;
  if (mr == nullptr && by_data_direct && error != ENOMEM) {
    by_data_direct = false;
    const int refused = error;
    mr = once(wanted);
    error = errno;
    if (mr != nullptr) {
      data_direct_accepted_ = false;
      TP_WARN(
          "the data-direct function of %s refuses GPU memory: %s; its own function "
          "moves it, past the CPU: look at ACS and IOMMU groups (rdma_topo), or set "
          "NCCL_IB_DATA_DIRECT=0",
          device_.c_str(), reason_text(refused).c_str());
    }
  }
  if (mr == nullptr && relaxed && (error == EINVAL || error == EOPNOTSUPP)) {
    mr = once(plain);
    error = errno;
    if (mr != nullptr) {
      relaxed_accepted_ = false;
      TP_INFO(net, "%s does not accept relaxed ordering; registering without it", device_.c_str());
    }
  }
  return mr;
}

void MrCache::report(const MrRequest& request, int error) const {
  std::string remedy;
  if (error == ENOMEM) {
    remedy = ": the limit of locked memory is " + memlock_text() +
             "; raise it with `ulimit -l unlimited` (containers: --ulimit memlock=-1)";
  } else if (request.kind == MrKind::cuda) {
    remedy = ": load nvidia_peermem, or let NCCL use dma-buf (NCCL_DMABUF_ENABLE=1)";
  } else if (request.kind == MrKind::dmabuf) {
    remedy = ": the kernel or the adapter's driver does not take this dma-buf";
  }
  TP_WARN("%s cannot register %zu bytes of %s at 0x%llx: %s%s", device_.c_str(), request.bytes,
          kind_name(request.kind), static_cast<unsigned long long>(request.address),
          reason_text(error).c_str(), remedy.c_str());
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
