// Whether a GPU maps the doorbell page of an mlx5 adapter: tried with a page of its own, which goes
// again.
#include <cerrno>
#include <cstring>

#include "plugin/gpu/mapped_page.h"
#include "topology/probe/probe.h"

namespace twinpath {
namespace {

namespace cuda = gpu::cuda;

constexpr std::uint32_t kDedicated = 1u << 31;  // younger than some rdma-cores' headers

Probe map(const cuda::Driver& d, int gpu, void* bell, bool virtual_function) {
  cuda::Result refused = cuda::kSuccess;
  if (gpu::MappedPage::map(d, gpu, bell, true, refused) != nullptr)
    return {Answer::yes, 0, Reason::none, "cuMemHostRegister"};
  return {Answer::no, refused, reason_of_uar_error(refused, virtual_function),
          "cuMemHostRegister: " + cuda::error_name(d, refused)};
}

}  // namespace

std::function<Probe(int gpu, ibv_pd* pd)> doorbell_step(
    const Mlx5& mlx5, std::function<bool(const ibv_device*)> virtual_function) {
  return [&mlx5, virtual_function](int gpu, ibv_pd* pd) -> Probe {
    if (!mlx5.is_supported(pd->context->device)) return not_tried("no mlx5 adapter");
    const cuda::Driver* const d = cuda::driver();
    if (d == nullptr || d->host_register == nullptr || d->host_unregister == nullptr)
      return not_tried("the program has not loaded a CUDA driver that maps memory of the host");
    if (!cuda::in_use(*d, gpu)) return not_tried("the program does not use this GPU");
    mlx5dv_devx_uar* page = mlx5.devx_alloc_uar(pd->context, kDedicated);
    if (page == nullptr) page = mlx5.devx_alloc_uar(pd->context, MLX5DV_UAR_ALLOC_TYPE_NC);
    if (page == nullptr)
      return {Answer::no, errno, Reason::devx_none,
              "mlx5dv_devx_alloc_uar: " + std::string(std::strerror(errno))};
    Probe answer = map(*d, gpu, page->reg_addr, virtual_function(pd->context->device));
    mlx5.devx_free_uar(page);
    return answer;
  };
}

}  // namespace twinpath
