#pragma once
// LOWER SEAM, beside the verbs table: libmlx5's calls as a table of function pointers, for adapters
// whose queues are made by commands (DevX) because they lie in memory that verbs cannot use.
//
// Either of libmlx5.so.1 or of the software HCA's model, as the verbs table of the same fabric is:
// contexts and protection domains of one must not be given to the other.  Rules as in verbs.h:
// nothing links -lmlx5, no exported mlx5dv_* symbol is named elsewhere.
//
// Threads: any, once filled.  Errors are libmlx5's: an errno value, or null with errno set.  A
// command that the adapter refuses has its status in the answer's first byte.
#include <infiniband/mlx5dv.h>

#include <cstddef>
#include <cstdint>
#include <string>

#include "plugin/base/config.h"
#include "plugin/base/status.h"
#include "plugin/fabric/fabric.h"

namespace twinpath {

// X(member, symbol version, rdma-core that has it; what is needed)
#define TP_MLX5(X)                      \
  X(is_supported, "MLX5_1.8", "22")     \
  X(query_device, "MLX5_1.0", "22")     \
  X(init_obj, "MLX5_1.2", "22")         \
  X(devx_alloc_uar, "MLX5_1.7", "22")   \
  X(devx_free_uar, "MLX5_1.7", "22")    \
  X(devx_umem_reg, "MLX5_1.7", "22")    \
  X(devx_umem_dereg, "MLX5_1.7", "22")  \
  X(devx_obj_create, "MLX5_1.7", "22")  \
  X(devx_obj_modify, "MLX5_1.7", "22")  \
  X(devx_obj_query, "MLX5_1.7", "22")   \
  X(devx_obj_destroy, "MLX5_1.7", "22") \
  X(devx_general_cmd, "MLX5_1.7", "22") \
  X(devx_query_eqn, "MLX5_1.7", "22")

struct Mlx5 {
#define TP_MLX5_MEMBER(name, version, release) decltype(&::mlx5dv_##name) name = nullptr;
  TP_MLX5(TP_MLX5_MEMBER)
#undef TP_MLX5_MEMBER
  // Null where libmlx5 is older than MLX5_1.19 (rdma-core 35): no queues in dma-bufs.
  decltype(&::mlx5dv_devx_umem_reg_ex) devx_umem_reg_ex = nullptr;
  // Null where it is older than MLX5_1.25 (rdma-core 54), which our headers need not know.
  ibv_mr* (*reg_dmabuf_mr)(ibv_pd* pd, std::uint64_t offset, std::size_t bytes, std::uint64_t iova,
                           int fd, int access, int mlx5_access) = nullptr;
  // As long as that: the place below /sys of the context's data-direct function, 0 or an errno.
  int (*get_data_direct_sysfs_path)(ibv_context* context, char* path, std::size_t bytes) = nullptr;
};

// Fills the table from `library` (dlopen, never closed).  On failure `why_not` names the library or
// the symbol with its version, and what to install; the table is as it was.
bool load_libmlx5(Mlx5& table, std::string& why_not, const char* library = "libmlx5.so.1");

// The table that belongs to `fabric`.
Result<Mlx5> load_mlx5(FabricKind fabric, std::string& why_not);

}  // namespace twinpath
