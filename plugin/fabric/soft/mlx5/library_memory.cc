// Memory that the device sees: doorbell pages (UAR), and buffers of queues (umem).
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>

#include "plugin/fabric/soft/mlx5/library.h"

namespace twinpath::soft::mlx5 {
namespace {

constexpr std::size_t kRegisterOffset = 0x800;  // of the first doorbell in its page
constexpr std::uint32_t kDedicated = 1u << 31;  // not in every rdma-core's headers

// Ordinary memory, where an adapter has registers: the device finds the last word that was stored.
class Page {
 public:
  Page() : bytes_(static_cast<std::size_t>(sysconf(_SC_PAGESIZE))) {
    void* const mapped =
        mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    address_ = mapped == MAP_FAILED ? nullptr : mapped;
  }
  ~Page() {
    if (address_ != nullptr) munmap(address_, bytes_);
  }
  Page(const Page&) = delete;
  Page& operator=(const Page&) = delete;
  char* address() const { return static_cast<char*>(address_); }

 private:
  std::size_t bytes_;
  void* address_ = nullptr;
};

struct Uar : mlx5dv_devx_uar {
  ibv_context* context = nullptr;
  Page page;
  std::shared_ptr<void> adornment;  // let go before the page
};

struct ContextUmem : mlx5dv_devx_umem {
  ibv_context* context = nullptr;
  std::shared_ptr<void> held;
};

// Why a umem is refused, or 0.  A dma-buf, of which `addr` is a place, becomes its address.
int refusal(const Surroundings& around, mlx5dv_devx_umem_in& in) {
  constexpr std::uint32_t kAccess = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE |
                                    IBV_ACCESS_REMOTE_READ | IBV_ACCESS_RELAXED_ORDERING;
  if ((in.comp_mask & ~std::uint64_t{MLX5DV_UMEM_MASK_DMABUF}) != 0) return EOPNOTSUPP;
  if (in.size == 0 || (in.access & ~kAccess) != 0 || in.pgsz_bitmap == 0) return EINVAL;
  if ((in.comp_mask & MLX5DV_UMEM_MASK_DMABUF) == 0) return in.addr == nullptr ? EFAULT : 0;
  if (fcntl(in.dmabuf_fd, F_GETFD) < 0) return EBADF;
  gpu::DmabufMemory known;
  const std::uint64_t place = reinterpret_cast<std::uintptr_t>(in.addr);
  // It does not tell the address by which the soft HCA finds memory.
  if (around.find_dmabuf == nullptr || !around.find_dmabuf(in.dmabuf_fd, known)) return EOPNOTSUPP;
  if (!known.holds(place, in.size)) return EINVAL;
  in.addr = reinterpret_cast<void*>(known.address + place);
  return 0;
}

}  // namespace

mlx5dv_devx_uar* Library::alloc_uar(ibv_context* context, std::uint32_t type) {
  auto uar = std::make_unique<Uar>();
  const bool known =
      type == MLX5DV_UAR_ALLOC_TYPE_BF || type == MLX5DV_UAR_ALLOC_TYPE_NC || type == kDedicated;
  if (!known || uar->page.address() == nullptr) {
    errno = known ? ENOMEM : EOPNOTSUPP;
    return nullptr;
  }
  uar->context = context;
  uar->base_addr = uar->page.address();
  uar->reg_addr = uar->page.address() + kRegisterOffset;
  uar->page_id = device_of(context).add_uar();
  execution_of(context).know_page(uar->page_id, uar->reg_addr);
  uar->mmap_off = 0;
  uar->comp_mask = 0;
  if (around_.adorn_page != nullptr) uar->adornment = around_.adorn_page(uar->reg_addr);
  return uar.release();
}

bool Library::adorned(const mlx5dv_devx_uar& uar) {
  return static_cast<const Uar&>(uar).adornment != nullptr;
}
ibv_context* Library::context_of(const mlx5dv_devx_uar& uar) {
  return static_cast<const Uar&>(uar).context;
}
ibv_context* Library::context_of(const mlx5dv_devx_umem& umem) {
  return static_cast<const ContextUmem&>(umem).context;
}

bool Library::free_uar(mlx5dv_devx_uar* freed) {
  auto* const uar = static_cast<Uar*>(freed);
  // The call cannot fail, and some programs make it while queues still ring there (NCCL's GDAKI:
  // two queue pairs share a page, and the first to go frees it).
  return device_of(uar->context).remove_uar(uar->page_id, [this, uar] {
    execution_of(uar->context).forget_page(uar->page_id);
    delete uar;
  });
}

mlx5dv_devx_umem* Library::umem_reg(ibv_context* context, void* address, std::size_t bytes,
                                    std::uint32_t access) {
  mlx5dv_devx_umem_in in{};
  in.addr = address;
  in.size = bytes;
  in.access = access;
  in.pgsz_bitmap = UINT64_MAX & ~static_cast<std::uint64_t>(sysconf(_SC_PAGESIZE) - 1);
  return umem_reg_ex(context, &in);
}

mlx5dv_devx_umem* Library::umem_reg_ex(ibv_context* context, mlx5dv_devx_umem_in* given) {
  mlx5dv_devx_umem_in in = *given;
  if (const int why = refusal(around_, in); why != 0) {
    errno = why;
    return nullptr;
  }
  auto umem = std::make_unique<ContextUmem>();
  umem->context = context;
  if (around_.hold_memory != nullptr)
    umem->held = around_.hold_memory(reinterpret_cast<std::uintptr_t>(in.addr), in.size);
  // The kernel takes the largest page that fits; the smallest is what every place fits.
  umem->umem_id = device_of(context).add_umem(
      {reinterpret_cast<std::uintptr_t>(in.addr), in.size, in.pgsz_bitmap & -in.pgsz_bitmap});
  return umem.release();
}

int Library::umem_dereg(mlx5dv_devx_umem* given) {
  auto* const umem = static_cast<ContextUmem*>(given);
  const int result =
      errno_of(status_of(device_of(umem->context).remove({Kind::umem, umem->umem_id})));
  if (result == 0) delete umem;
  return result;
}

}  // namespace twinpath::soft::mlx5
