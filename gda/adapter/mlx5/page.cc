#include "gda/adapter/mlx5/page.h"

#include <cerrno>
#include <cstring>

#include "plugin/base/log.h"

namespace twinpath::gda::mlx5 {
namespace {

constexpr std::uint32_t kDedicated = 1u << 31;  // younger than some rdma-cores' headers

}  // namespace

Result<DoorbellPage> DoorbellPage::make(const Adapter& adapter) {
  int first_error = 0;
  for (const std::uint32_t type : {kDedicated, std::uint32_t{MLX5DV_UAR_ALLOC_TYPE_NC}}) {
    errno = 0;
    mlx5dv_devx_uar* const page = adapter.mlx5().devx_alloc_uar(adapter.context(), type);
    if (page != nullptr) return DoorbellPage(Handle<mlx5dv_devx_uar>(page, Destroyer{&adapter}));
    if (first_error == 0) first_error = errno;
  }
  const int error = errno;
  TP_WARN(
      "%s gives no doorbell page without write gathering: %s (errno %d), and of a queue's own: %s "
      "(errno %d); needed are Linux 5.7 and rdma-core 32 or newer, or use TWINPATH_MODE=proxy",
      adapter.name(), std::strerror(error), error, std::strerror(first_error), first_error);
  return error == ENOMEM ? Status::no_memory : Status::unsupported;
}

}  // namespace twinpath::gda::mlx5
