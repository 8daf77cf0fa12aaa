// Protection domains and memory regions.
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>

#include "plugin/base/log.h"
#include "plugin/fabric/soft/control.h"
#include "plugin/fabric/soft/hca.h"
#include "plugin/fabric/soft/slow_step.h"
#include "plugin/gpu/dmabuf.h"

namespace twinpath::soft {
namespace {

std::atomic<std::uint32_t> next_pd{1};

constexpr int kPopulateWrite = 23;  // MADV_POPULATE_WRITE, which Debian 12's headers may lack

// Whether the mapping that holds `address` may be written.  Only looked up when the quick way
// gives no answer.
bool writable_mapping(std::uintptr_t address) {
  FILE* f = std::fopen("/proc/self/maps", "re");
  if (f == nullptr) return true;
  bool writable = true;
  char line[512];
  while (std::fgets(line, sizeof line, f) != nullptr) {
    unsigned long from = 0, to = 0;
    char rights[5] = "";
    if (std::sscanf(line, "%lx-%lx %4s", &from, &to, rights) != 3) continue;
    if (address < from || address >= to) continue;
    writable = rights[1] == 'w';
    break;
  }
  std::fclose(f);
  return writable;
}

// An adapter pins pages, so there must be some, and for writing where it may write.
bool can_pin(void* address, std::size_t bytes, unsigned access) {
  if (bytes == 0) return true;
  const auto page = static_cast<std::uintptr_t>(sysconf(_SC_PAGESIZE));
  const auto start = reinterpret_cast<std::uintptr_t>(address);
  if (start + bytes < start) return false;
  const auto page_of = [page](std::uintptr_t a) { return a & ~(page - 1); };
  // Has no effect but to look for holes.
  if (msync(reinterpret_cast<void*>(page_of(start)), start - page_of(start) + bytes, MS_ASYNC) !=
          0 &&
      errno == ENOMEM)
    return false;
  if ((access & IBV_ACCESS_LOCAL_WRITE) == 0) return true;
  // The ends stand for all: a range with other rights in its middle is not worth the walk.
  for (const std::uintptr_t at : {start, start + bytes - 1}) {
    // Fails for read-only pages, and also for drivers' pages and on kernels before 5.14.
    if (madvise(reinterpret_cast<void*>(page_of(at)), page, kPopulateWrite) != 0 &&
        !writable_mapping(at))
      return false;
  }
  return true;
}

ibv_mr* register_range(ibv_pd* pd, void* address, std::size_t bytes, std::uint64_t iova,
                       unsigned access, bool dmabuf) {
  auto* context = soft(pd->context);
  Hca& hca = *context->hca;
  // Remote write and atomics need local write (IB specification vol. 1, 10.6.3.1).
  if ((access & (IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC)) != 0 &&
      (access & IBV_ACCESS_LOCAL_WRITE) == 0) {
    errno = EINVAL;
    return nullptr;
  }
  if ((access & ~like(pd->context).access) != 0) {
    errno = EINVAL;
    return nullptr;
  }
  // No paging on demand, no flushes; hints of the optional range are accepted and mean nothing.
  constexpr unsigned kKnown = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE |
                              IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC |
                              IBV_ACCESS_MW_BIND | IBV_ACCESS_ZERO_BASED | IBV_ACCESS_HUGETLB;
  if ((access & ~(kKnown | IBV_ACCESS_OPTIONAL_RANGE)) != 0) {
    errno = EOPNOTSUPP;
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
  if (!cuda && !can_pin(address, bytes, access)) {
    errno = EFAULT;
    return nullptr;
  }
  if (cuda) {
    mr->alloc_id = hca.acquire_allocation(mr->info);
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
  return register_range(pd, address, bytes, iova, access, false);
}

ibv_mr* reg_dmabuf_mr(ibv_pd* pd, std::uint64_t offset, std::size_t bytes, std::uint64_t iova,
                      int fd, int access) {
  if (!like(pd->context).dmabuf) {
    errno = EOPNOTSUPP;
    return nullptr;
  }
  if (fd < 0 || fcntl(fd, F_GETFD) < 0) {
    errno = EBADF;
    return nullptr;
  }
  // One that we have made is known by itself.
  if (gpu::DmabufMemory known; gpu::find_dmabuf(fd, known)) {
    if (!known.holds(offset, bytes)) {
      errno = EINVAL;
      return nullptr;
    }
    return register_range(pd, reinterpret_cast<void*>(known.address + offset), bytes, iova,
                          static_cast<unsigned>(access), true);
  }
  // Of others iova is the CUDA address: that is how GPUDirect users register.
  // Programs that want addresses from 0 register by address when this is not known, without a
  // warning.
  if (iova == 0) {
    errno = EOPNOTSUPP;
    return nullptr;
  }
  return register_range(pd, reinterpret_cast<void*>(iova), bytes, iova,
                        static_cast<unsigned>(access), true);
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
