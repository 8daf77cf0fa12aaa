// Memory that the device sees: doorbell pages (UAR), and buffers of queues (umem).
#include <fcntl.h>
#include <infiniband/mlx5dv.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <memory>

#include "tools/softhca/mlx5/cuda_register.h"
#include "tools/softhca/mlx5/devices.h"
#include "tools/softhca/mlx5/recorder.h"

using namespace twinpath::softhca::mlx5;

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
  std::unique_ptr<CudaRegister> cuda;  // let go before the page
};

struct Umem : mlx5dv_devx_umem {
  ibv_context* context = nullptr;
};

// Why a umem is refused, or 0.
int refusal(const mlx5dv_devx_umem_in& in) {
  constexpr std::uint32_t kAccess = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE |
                                    IBV_ACCESS_REMOTE_READ | IBV_ACCESS_RELAXED_ORDERING;
  if ((in.comp_mask & ~std::uint64_t{MLX5DV_UMEM_MASK_DMABUF}) != 0) return EOPNOTSUPP;
  if (in.size == 0 || (in.access & ~kAccess) != 0 || in.pgsz_bitmap == 0) return EINVAL;
  if ((in.comp_mask & MLX5DV_UMEM_MASK_DMABUF) != 0) {
    if (fcntl(in.dmabuf_fd, F_GETFD) < 0) return EBADF;
    return EOPNOTSUPP;  // a dma-buf does not tell the address by which the soft HCA finds it
  }
  return in.addr == nullptr ? EFAULT : 0;
}

mlx5dv_devx_umem* make_umem(Record& record, ibv_context* context, const mlx5dv_devx_umem_in& in) {
  record.number("addr", reinterpret_cast<std::uintptr_t>(in.addr))
      .number("size", in.size)
      .number("access", in.access)
      .number("pgsz_bitmap", in.pgsz_bitmap)
      .number("dmabuf", in.comp_mask & MLX5DV_UMEM_MASK_DMABUF);
  if (const int why = refusal(in); why != 0) {
    record.write(why);
    errno = why;
    return nullptr;
  }
  auto umem = std::make_unique<Umem>();
  umem->context = context;
  // The kernel takes the largest page that fits; the smallest is what every place fits.
  umem->umem_id = device_of(context).add_umem(
      {reinterpret_cast<std::uintptr_t>(in.addr), in.size, in.pgsz_bitmap & -in.pgsz_bitmap});
  record.number("umem_id", umem->umem_id).write(0);
  return umem.release();
}

}  // namespace

extern "C" {

mlx5dv_devx_uar* mlx5dv_devx_alloc_uar(ibv_context* context, std::uint32_t type) {
  Record record("devx_alloc_uar", context);
  record.number("type", type);
  auto uar = std::make_unique<Uar>();
  const bool known =
      type == MLX5DV_UAR_ALLOC_TYPE_BF || type == MLX5DV_UAR_ALLOC_TYPE_NC || type == kDedicated;
  if (!known || uar->page.address() == nullptr) {
    const int why = known ? ENOMEM : EOPNOTSUPP;
    record.write(why);
    errno = why;
    return nullptr;
  }
  uar->context = context;
  uar->base_addr = uar->page.address();
  uar->reg_addr = uar->page.address() + kRegisterOffset;
  uar->page_id = device_of(context).add_uar();
  execution_of(context).know_page(uar->page_id, uar->reg_addr);
  uar->mmap_off = 0;
  uar->comp_mask = 0;
  uar->cuda = std::make_unique<CudaRegister>(uar->reg_addr);
  record.number("page_id", uar->page_id).number("cuda", uar->cuda->done() ? 1 : 0).write(0);
  return uar.release();
}

void mlx5dv_devx_free_uar(mlx5dv_devx_uar* freed) {
  auto* const uar = static_cast<Uar*>(freed);
  Record record("devx_free_uar", uar->context);
  record.number("page_id", uar->page_id);
  // The call cannot fail, and some programs make it while queues still ring there (NCCL's GDAKI:
  // two queue pairs share a page, and the first to go frees it).
  const bool now = device_of(uar->context).remove_uar(uar->page_id, [uar] {
    execution_of(uar->context).forget_page(uar->page_id);
    delete uar;
  });
  record.write(now ? 0 : EBUSY);
}

mlx5dv_devx_umem* mlx5dv_devx_umem_reg(ibv_context* context, void* address, std::size_t bytes,
                                       std::uint32_t access) {
  Record record("devx_umem_reg", context);
  mlx5dv_devx_umem_in in{};
  in.addr = address;
  in.size = bytes;
  in.access = access;
  in.pgsz_bitmap = UINT64_MAX & ~static_cast<std::uint64_t>(sysconf(_SC_PAGESIZE) - 1);
  return make_umem(record, context, in);
}

mlx5dv_devx_umem* mlx5dv_devx_umem_reg_ex(ibv_context* context, mlx5dv_devx_umem_in* in) {
  Record record("devx_umem_reg_ex", context);
  return make_umem(record, context, *in);
}

int mlx5dv_devx_umem_dereg(mlx5dv_devx_umem* given) {
  auto* const umem = static_cast<Umem*>(given);
  Record record("devx_umem_dereg", umem->context);
  record.number("umem_id", umem->umem_id);
  const int result = model::errno_of(
      model::status_of(device_of(umem->context).remove({model::Kind::umem, umem->umem_id})));
  record.write(result);
  if (result == 0) delete umem;
  return result;
}

}  // extern "C"
