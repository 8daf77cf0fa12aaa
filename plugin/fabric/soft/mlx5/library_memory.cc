// Memory that the device sees: doorbell pages (UAR), and buffers of queues (umem).
#include <fcntl.h>
#include <unistd.h>

#include <cerrno>

#include "plugin/base/page_size.h"
#include "plugin/fabric/soft/mlx5/library.h"
#include "plugin/fabric/soft/uverbs_rules.h"

namespace twinpath::soft::mlx5 {
namespace {

struct ContextUmem : mlx5dv_devx_umem {
  ibv_context* context = nullptr;
  std::shared_ptr<void> held;
};

// Why a umem is refused, or 0.  A dma-buf, of which `addr` is a place, becomes its address.
int refusal(const Surroundings& around, ibv_context* context, mlx5dv_devx_umem_in& in) {
  if ((in.comp_mask & ~std::uint64_t{MLX5DV_UMEM_MASK_DMABUF}) != 0) return EOPNOTSUPP;
  if (const int error = refuse_umem(in.access, in.pgsz_bitmap, page_size()); error != 0)
    return error;
  const std::uint64_t place = reinterpret_cast<std::uintptr_t>(in.addr);
  if (const int error = refuse_range(place, in.size, page_size()); error != 0) return error;
  if ((in.comp_mask & MLX5DV_UMEM_MASK_DMABUF) == 0)
    return around.pin == nullptr ? 0 : around.pin(context, place, in.size, in.access);
  if (fcntl(in.dmabuf_fd, F_GETFD) < 0) return EBADF;
  gpu::DmabufMemory known;
  // It does not tell the address by which the soft HCA finds memory.
  if (around.find_dmabuf == nullptr || !around.find_dmabuf(in.dmabuf_fd, known)) return EOPNOTSUPP;
  if (refuse_dmabuf_range({place, in.size, place, in.access}, known.bytes) != 0) return EINVAL;
  in.addr = reinterpret_cast<void*>(known.address + place);
  return 0;
}

}  // namespace

mlx5dv_devx_uar* Library::alloc_uar(ibv_context* context, std::uint32_t type) {
  return of(context).pages->take(type);
}

bool Library::adorned(const mlx5dv_devx_uar& uar) { return DoorbellPages::adorned(uar); }
ibv_context* Library::context_of(const mlx5dv_devx_uar& uar) {
  return DoorbellPages::context_of(uar);
}
ibv_context* Library::context_of(const mlx5dv_devx_umem& umem) {
  return static_cast<const ContextUmem&>(umem).context;
}

void Library::free_uar(mlx5dv_devx_uar* freed) {
  of(DoorbellPages::context_of(*freed)).pages->give_back(freed);
}

mlx5dv_devx_umem* Library::umem_reg(ibv_context* context, void* address, std::size_t bytes,
                                    std::uint32_t access) {
  mlx5dv_devx_umem_in in{};
  in.addr = address;
  in.size = bytes;
  in.access = access;
  in.pgsz_bitmap = UINT64_MAX & ~std::uint64_t{page_size() - 1};
  return umem_reg_ex(context, &in);
}

mlx5dv_devx_umem* Library::umem_reg_ex(ibv_context* context, mlx5dv_devx_umem_in* given) {
  mlx5dv_devx_umem_in in = *given;
  if (!device_of(context).variant().commands) {
    errno = EINVAL;
    return nullptr;
  }
  if (const int why = refusal(around_, context, in); why != 0) {
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
