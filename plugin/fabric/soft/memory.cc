// Protection domains and memory regions.
#include <fcntl.h>

#include <cerrno>

#include "plugin/base/log.h"
#include "plugin/fabric/soft/control.h"
#include "plugin/fabric/soft/hca.h"
#include "plugin/fabric/soft/slow_step.h"

namespace twinpath::soft {
namespace {

std::atomic<std::uint32_t> next_pd{1};

ibv_mr* register_range(ibv_pd* pd, void* address, std::size_t bytes, std::uint64_t iova,
                       unsigned access, bool dmabuf) {
  auto* context = static_cast<SoftContext*>(pd->context);
  Hca& hca = *context->hca;
  // Remote write and atomics need local write (IB specification vol. 1, 10.6.3.1).
  if ((access & (IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC)) != 0 &&
      (access & IBV_ACCESS_LOCAL_WRITE) == 0) {
    errno = EINVAL;
    return nullptr;
  }
  auto mr = std::make_unique<SoftMr>();
  static_cast<ibv_mr&>(*mr) = ibv_mr{};
  mr->info = inspect_pointer(address);
  const bool cuda = mr->info.kind == MemoryKind::cuda;
  if ((cuda || dmabuf) && !hca.config().soft_cuda) {
    errno = EOPNOTSUPP;
    return nullptr;
  }
  if (dmabuf && !cuda) {
    // The model moves CUDA memory by its address; another exporter's dma-buf has none for us.
    TP_WARN(
        "soft HCA %s: a dma-buf of %zu bytes is not CUDA memory of this process; the soft HCA "
        "cannot reach it",
        context->soft_device->name, bytes);
    errno = EOPNOTSUPP;
    return nullptr;
  }
  if (cuda && check_range(mr->info, address, bytes) != Status::ok) {
    errno = EOPNOTSUPP;
    return nullptr;
  }
  if (cuda) mr->alloc_id = hca.acquire_allocation(mr->info);
  auto base = reinterpret_cast<std::uint64_t>(address);
  mr->context = context;
  mr->pd = pd;
  mr->addr = address;
  mr->length = bytes;
  mr->lkey = mr->rkey = hca.keys().add(static_cast<SoftPd*>(pd)->number, base, iova, bytes, access,
                                       mr->info, mr->alloc_id);
  if (mr->lkey == 0) {
    if (cuda) hca.release_allocation(mr->alloc_id);
    TP_WARN(
        "soft HCA %s: all %u memory keys are in use; deregister memory or register larger "
        "ranges",
        context->soft_device->name, kKeyEntries - 1);
    errno = ENOMEM;
    return nullptr;
  }
  ++static_cast<SoftPd*>(pd)->users;
  return mr.release();
}

}  // namespace

ibv_pd* alloc_pd(ibv_context* context) {
  auto pd = std::make_unique<SoftPd>();
  static_cast<ibv_pd&>(*pd) = ibv_pd{};
  pd->context = context;
  pd->number = next_pd.fetch_add(1);
  return pd.release();
}

int dealloc_pd(ibv_pd* p) {
  auto* pd = static_cast<SoftPd*>(p);
  if (pd->users.load() != 0) return EBUSY;
  delete pd;
  return 0;
}

ibv_mr* reg_mr_iova2(ibv_pd* pd, void* address, std::size_t bytes, std::uint64_t iova,
                     unsigned access) {
  return register_range(pd, address, bytes, iova, access, false);
}

ibv_mr* reg_dmabuf_mr(ibv_pd* pd, std::uint64_t, std::size_t bytes, std::uint64_t iova, int fd,
                      int access) {
  // iova is the CUDA address: that is how GPUDirect users register, and all the model needs.
  if (fd < 0 || fcntl(fd, F_GETFD) < 0) {
    errno = EBADF;
    return nullptr;
  }
  return register_range(pd, reinterpret_cast<void*>(iova), bytes, iova,
                        static_cast<unsigned>(access), true);
}

int dereg_mr(ibv_mr* m) {
  SlowStep slow("deregistering memory");
  auto* mr = static_cast<SoftMr*>(m);
  auto* context = static_cast<SoftContext*>(mr->context);
  context->hca->keys().remove(mr->lkey);
  if (mr->alloc_id != 0) context->hca->release_allocation(mr->alloc_id);
  --static_cast<SoftPd*>(mr->pd)->users;
  delete mr;
  return 0;
}

}  // namespace twinpath::soft
