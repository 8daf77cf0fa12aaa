// Memory that the device sees: doorbell pages (UAR), and buffers of queues (umem).
#include <infiniband/mlx5dv.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>

#include "tools/softhca/mlx5/devices.h"
#include "tools/softhca/mlx5/recorder.h"

using namespace twinpath::softhca::mlx5;

namespace {

mlx5dv_devx_umem* make_umem(Record& record, ibv_context* context, mlx5dv_devx_umem_in& in) {
  record.number("addr", reinterpret_cast<std::uintptr_t>(in.addr))
      .number("size", in.size)
      .number("access", in.access)
      .number("pgsz_bitmap", in.pgsz_bitmap)
      .number("dmabuf", in.comp_mask & MLX5DV_UMEM_MASK_DMABUF);
  mlx5dv_devx_umem* const umem = library().umem_reg_ex(context, &in);
  if (umem != nullptr) record.number("umem_id", umem->umem_id);
  record.write(umem == nullptr ? errno : 0);
  return umem;
}

}  // namespace

extern "C" {

mlx5dv_devx_uar* mlx5dv_devx_alloc_uar(ibv_context* context, std::uint32_t type) {
  Record record("devx_alloc_uar", context);
  record.number("type", type);
  mlx5dv_devx_uar* const uar = library().alloc_uar(context, type);
  if (uar != nullptr)
    record.number("page_id", uar->page_id).number("cuda", model::Library::adorned(*uar) ? 1 : 0);
  record.write(uar == nullptr ? errno : 0);
  return uar;
}

void mlx5dv_devx_free_uar(mlx5dv_devx_uar* uar) {
  Record record("devx_free_uar", model::Library::context_of(*uar));
  record.number("page_id", uar->page_id);
  library().free_uar(uar);
  record.write(0);
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

int mlx5dv_devx_umem_dereg(mlx5dv_devx_umem* umem) {
  Record record("devx_umem_dereg", model::Library::context_of(*umem));
  record.number("umem_id", umem->umem_id);
  const int result = library().umem_dereg(umem);
  record.write(result);
  return result;
}

}  // extern "C"
