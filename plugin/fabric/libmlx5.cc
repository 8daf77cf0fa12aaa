// Fills the table of mlx5 calls from libmlx5.so.1.  Symbols are taken with the version whose
// structures our headers declare.
#include <dlfcn.h>

#include "plugin/fabric/mlx5.h"
#include "plugin/fabric/soft_hca.h"

namespace twinpath {

bool load_libmlx5(Mlx5& table, std::string& why_not, const char* library) {
  // It stays open for the life of the process, as libibverbs does, whose provider it is.
  void* const handle = dlopen(library, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  if (handle == nullptr) {
    const char* const text = dlerror();
    why_not = std::string(text == nullptr ? library : text) +
              "; install rdma-core's provider of mlx5 adapters (package ibverbs-providers or "
              "libibverbs)";
    return false;
  }
  Mlx5 found;
#define TP_LOAD(name, version, release)                                                          \
  found.name = reinterpret_cast<decltype(found.name)>(dlvsym(handle, "mlx5dv_" #name, version)); \
  if (found.name == nullptr) {                                                                   \
    why_not = std::string(library) + " has no mlx5dv_" #name "@" version                         \
                                     "; install rdma-core " release " or newer";                 \
    return false;                                                                                \
  }
  TP_MLX5(TP_LOAD)
#undef TP_LOAD
  found.devx_umem_reg_ex = reinterpret_cast<decltype(found.devx_umem_reg_ex)>(
      dlvsym(handle, "mlx5dv_devx_umem_reg_ex", "MLX5_1.19"));
  found.reg_dmabuf_mr = reinterpret_cast<decltype(found.reg_dmabuf_mr)>(
      dlvsym(handle, "mlx5dv_reg_dmabuf_mr", "MLX5_1.25"));
  found.get_data_direct_sysfs_path = reinterpret_cast<decltype(found.get_data_direct_sysfs_path)>(
      dlvsym(handle, "mlx5dv_get_data_direct_sysfs_path", "MLX5_1.25"));
  table = found;
  return true;
}

Result<Mlx5> load_mlx5(FabricKind fabric, std::string& why_not) {
  Mlx5 table;
  if (fabric == FabricKind::soft) {
    const SoftHca* const soft = open_soft_hca(why_not);
    if (soft == nullptr) return Status::unsupported;
    soft->load_mlx5(table);
    return table;
  }
  if (!load_libmlx5(table, why_not)) return Status::unsupported;
  return table;
}

}  // namespace twinpath
