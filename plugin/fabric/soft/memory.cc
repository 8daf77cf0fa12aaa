// Protection domains and memory regions.
#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "plugin/base/log.h"
#include "plugin/base/page_size.h"
#include "plugin/fabric/soft/control.h"
#include "plugin/fabric/soft/extended.h"
#include "plugin/fabric/soft/hca.h"
#include "plugin/fabric/soft/pin.h"
#include "plugin/fabric/soft/slow_step.h"
#include "plugin/fabric/soft/uverbs_rules.h"
#include "plugin/gpu/dmabuf.h"

namespace twinpath::soft {
namespace {

std::atomic<std::uint32_t> next_pd{1};

ibv_mr* register_range(ibv_pd* pd, void* address, std::size_t bytes, std::uint64_t iova,
                       unsigned access, bool dmabuf) {
  auto* context = soft(pd->context);
  Hca& hca = *context->hca;
  if ((access & ~like(pd->context).memory.access) != 0) {
    errno = EINVAL;
    return nullptr;
  }
  auto mr = std::make_unique<SoftMr>();
  static_cast<ibv_mr&>(*mr) = ibv_mr{};
  mr->info = inspect_pointer(address);
  const bool cuda = mr->info.kind == MemoryKind::cuda;
  if ((cuda || dmabuf) && hca.config().soft_cuda == SoftCuda::off) {
    errno = EOPNOTSUPP;
    return nullptr;
  }
  // The kernel finds no pages of the host there: only nvidia_peermem knows the address.
  if (cuda && !dmabuf && !context->soft_device->spec.peermem) {
    errno = EFAULT;
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
  if (!cuda) {
    if (const int error = refuse_pinning(reinterpret_cast<std::uintptr_t>(address), bytes, access);
        error != 0) {
      errno = error;
      return nullptr;
    }
  }
  if (cuda) {
    mr->alloc_id = hca.allocations().acquire(mr->info);
    if (mr->alloc_id == 0) {
      errno = EOPNOTSUPP;
      return nullptr;
    }
    // Not with the first message: it may wait for what itself waits for that message (engine.h).
    prepare_copies(mr->info.gpu, gpu::kPrepareLimit);
  }
  auto base = reinterpret_cast<std::uint64_t>(address);
  mr->context = &context->context;
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

std::uint32_t pd_number(const ibv_pd* pd) {
  return static_cast<const SoftPd*>(pd)->number & 0xffffff;
}

int dealloc_pd(ibv_pd* p) {
  auto* pd = static_cast<SoftPd*>(p);
  if (pd->users.load() != 0) return EBUSY;
  delete pd;
  return 0;
}

ibv_mr* reg_mr_iova2(ibv_pd* pd, void* address, std::size_t bytes, std::uint64_t iova,
                     unsigned access) {
  const Registered r{reinterpret_cast<std::uintptr_t>(address), bytes, iova, access};
  if (const int error = refuse_memory(r, page_size()); error != 0) {
    errno = error;
    return nullptr;
  }
  return register_range(pd, address, bytes, iova, access, false);
}

ibv_mr* reg_dmabuf_mr(ibv_pd* pd, std::uint64_t offset, std::size_t bytes, std::uint64_t iova,
                      int fd, int access) {
  if (!like(pd->context).memory.dmabuf) {
    errno = EOPNOTSUPP;
    return nullptr;
  }
  const Registered r{offset, bytes, iova, static_cast<unsigned>(access)};
  const auto refused = [](int error) -> ibv_mr* {
    errno = error;
    return nullptr;
  };
  if (const int error = refuse_dmabuf(r, page_size()); error != 0) return refused(error);
  if (fd < 0 || fcntl(fd, F_GETFD) < 0) return refused(EBADF);
  // One that we have made is known by itself.  Any tells its size (dma_buf_llseek).
  gpu::DmabufMemory memory;
  const bool known = gpu::find_dmabuf(fd, memory);
  const off_t end = known ? static_cast<off_t>(memory.bytes) : lseek(fd, 0, SEEK_END);
  if (end < 0) return refused(EINVAL);
  if (const int error = refuse_dmabuf_range(r, static_cast<std::uint64_t>(end)); error != 0)
    return refused(error);
  // Of others iova is the CUDA address: that is how GPUDirect users register.
  // Programs that want addresses from 0 register by address when this is not known, without a
  // warning.
  if (!known && iova == 0) return refused(EOPNOTSUPP);
  return register_range(pd, reinterpret_cast<void*>(known ? memory.address + offset : iova), bytes,
                        iova, r.access, true);
}

int refuse_umem_pages(ibv_context* context, std::uint64_t address, std::size_t bytes,
                      unsigned access) {
  if (inspect_pointer(reinterpret_cast<void*>(address)).kind == MemoryKind::cuda)
    return soft(context)->soft_device->spec.peermem ? 0 : EFAULT;
  return refuse_pinning(address, bytes, access);
}

void rename_keys(ibv_mr* mr, std::uint8_t low) {
  mr->lkey = mr->rkey = soft(mr->context)->hca->keys().rename(mr->lkey, low);
}

void change_region(ibv_mr* m, ibv_pd* pd, void* address, std::size_t bytes, std::uint64_t iova,
                   unsigned access, std::uint8_t low) {
  auto* const mr = static_cast<SoftMr*>(m);
  ++static_cast<SoftPd*>(pd)->users;
  --static_cast<SoftPd*>(mr->pd)->users;
  mr->pd = pd;
  mr->addr = address;
  mr->length = bytes;
  Region to{};  // of domain 0, which is nobody's
  to.kind = static_cast<std::uint32_t>(mr->info.kind);
  if (bytes != 0) {
    to.access = access;
    to.pd = static_cast<SoftPd*>(pd)->number;
    to.iova = iova;
    to.length = bytes;
    to.base = reinterpret_cast<std::uintptr_t>(address);
  }
  mr->lkey = mr->rkey = soft(mr->context)->hca->keys().change(mr->lkey, low, to);
}

namespace {

// The bytes at `address` of a region, for `copy`.
template <class Copy>
bool copy_region(ibv_pd* pd, std::uint64_t address, std::uint32_t lkey, std::size_t bytes,
                 std::uint32_t access, Copy copy) {
  const HeldKey key = soft(pd->context)
                          ->hca->keys()
                          .view()
                          .hold(lkey, address, bytes, access, static_cast<SoftPd*>(pd)->number);
  if (!key) return false;
  const bool host = key.kind == static_cast<std::uint32_t>(MemoryKind::host);
  if (host) copy(reinterpret_cast<std::uint8_t*>(key.base + (address - key.iova)));
  KeyView::drop(key);
  return host;
}

}  // namespace

bool read_region(ibv_pd* pd, std::uint64_t address, std::uint32_t lkey, void* to,
                 std::size_t bytes) {
  return copy_region(pd, address, lkey, bytes, 0,
                     [&](const std::uint8_t* from) { std::memcpy(to, from, bytes); });
}

bool write_region(ibv_pd* pd, std::uint64_t address, std::uint32_t lkey, const void* from,
                  std::size_t bytes) {
  return copy_region(pd, address, lkey, bytes, IBV_ACCESS_LOCAL_WRITE,
                     [&](std::uint8_t* to) { std::memcpy(to, from, bytes); });
}

int dereg_mr(ibv_mr* m) {
  SlowStep slow("deregistering memory");
  auto* mr = static_cast<SoftMr*>(m);
  auto* context = soft(mr->context);
  context->hca->keys().remove(mr->lkey);
  if (mr->alloc_id != 0) context->hca->release_allocation(mr->alloc_id);
  --static_cast<SoftPd*>(mr->pd)->users;
  delete mr;
  return 0;
}

}  // namespace twinpath::soft
