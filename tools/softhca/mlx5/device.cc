// The device itself, and libmlx5's view of objects that libibverbs made.
#include <infiniband/mlx5dv.h>
#include <unistd.h>

#include <cerrno>
#include <memory>
#include <string_view>

#include "tools/softhca/mlx5/devices.h"
#include "tools/softhca/mlx5/recorder.h"

// Link-time optimization of g++ moves functions between assembler files and knows of a version only
// by the attribute; clang has no such attribute, and reads the directive itself.
#if __has_attribute(symver)
#define VERSIONED(version) __attribute__((symver(version)))
#else
#define VERSIONED(version)
#endif

using namespace twinpath::softhca::mlx5;

namespace {

int init_obj(mlx5dv_obj* obj, std::uint64_t types) {
  const bool cq = (types & MLX5DV_OBJ_CQ) != 0, srq = (types & MLX5DV_OBJ_SRQ) != 0;
  const bool ah = (types & MLX5DV_OBJ_AH) != 0, pd = (types & MLX5DV_OBJ_PD) != 0;
  if (const int why = library().init_obj(obj, types); why != 0) return why;
  Record record("init_obj", cq    ? obj->cq.in->context
                            : srq ? obj->srq.in->context
                            : ah  ? obj->ah.in->context
                                  : obj->pd.in->context);
  record.number("types", types);
  if (cq) record.number("cqn", obj->cq.out->cqn);
  if (srq) record.number("srqn", obj->srq.out->srqn);
  if (ah) {
    record.bytes("av",
                 {reinterpret_cast<const std::uint8_t*>(obj->ah.out->av), sizeof *obj->ah.out->av});
  }
  if (pd) record.number("pdn", obj->pd.out->pdn);
  record.write(0);
  return 0;
}

struct EventChannel : mlx5dv_devx_event_channel {
  int other_end = -1;
};

}  // namespace

// Not in the headers of rdma-core 44.
extern "C" {
ibv_mr* mlx5dv_reg_dmabuf_mr(ibv_pd* pd, std::uint64_t offset, std::size_t bytes,
                             std::uint64_t iova, int fd, int access, int mlx5_access);
int mlx5dv_get_data_direct_sysfs_path(ibv_context* context, char* path, std::size_t bytes);
int softhca_init_obj_1_2(mlx5dv_obj* obj, std::uint64_t types)
    VERSIONED("mlx5dv_init_obj@@MLX5_1.2");
int softhca_init_obj_1_0(mlx5dv_obj* obj, std::uint64_t types)
    VERSIONED("mlx5dv_init_obj@MLX5_1.0");
}

extern "C" {

// By name, as programs do that do not ask here.
bool mlx5dv_is_supported(ibv_device* device) {
  return std::string_view(device->name).starts_with("mlx5_");
}

ibv_context* mlx5dv_open_device(ibv_device* device, mlx5dv_context_attr* attr) {
  const bool good = (attr->flags & ~std::uint32_t{MLX5DV_CONTEXT_FLAGS_DEVX}) == 0 &&
                    attr->comp_mask == 0 && mlx5dv_is_supported(device);
  if (!good) {
    errno = EOPNOTSUPP;
    return nullptr;
  }
  ibv_context* const context = ibv_open_device(device);
  Record record("open_device", context);
  record.number("flags", attr->flags).write(context == nullptr ? errno : 0);
  return context;
}

int mlx5dv_query_device(ibv_context* context, mlx5dv_context* attr) {
  if (!mlx5dv_is_supported(context->device)) return EOPNOTSUPP;
  return library().query_device(context, attr);
}

// The first version has the address of a pointer to the doorbell page of a completion queue where
// the second has the pointer; here neither has one.
int softhca_init_obj_1_2(mlx5dv_obj* obj, std::uint64_t types) { return init_obj(obj, types); }
int softhca_init_obj_1_0(mlx5dv_obj* obj, std::uint64_t types) { return init_obj(obj, types); }
#if !__has_attribute(symver)
__asm__(".symver softhca_init_obj_1_2, mlx5dv_init_obj@@MLX5_1.2");
__asm__(".symver softhca_init_obj_1_0, mlx5dv_init_obj@MLX5_1.0");
#endif

ibv_mr* mlx5dv_reg_dmabuf_mr(ibv_pd* pd, std::uint64_t offset, std::size_t bytes,
                             std::uint64_t iova, int fd, int access, int mlx5_access) {
  if (mlx5_access != 0) {  // the second way to the GPU that some adapters have
    errno = EOPNOTSUPP;
    return nullptr;
  }
  return ibv_reg_dmabuf_mr(pd, offset, bytes, iova, fd, access);
}

int mlx5dv_get_data_direct_sysfs_path(ibv_context*, char*, std::size_t) { return ENODEV; }

// A channel on which nothing ever comes: subscriptions are refused.
mlx5dv_devx_event_channel* mlx5dv_devx_create_event_channel(
    ibv_context* context, mlx5dv_devx_create_event_channel_flags flags) {
  Record record("devx_create_event_channel", context);
  record.number("flags", static_cast<std::uint64_t>(flags));
  auto channel = std::make_unique<EventChannel>();
  int ends[2];
  if (pipe(ends) != 0) {
    record.write(errno);
    return nullptr;
  }
  channel->fd = ends[0];
  channel->other_end = ends[1];
  record.write(0);
  return channel.release();
}

void mlx5dv_devx_destroy_event_channel(mlx5dv_devx_event_channel* given) {
  auto* const channel = static_cast<EventChannel*>(given);
  close(channel->fd);
  close(channel->other_end);
  delete channel;
}

ssize_t mlx5dv_devx_get_event(mlx5dv_devx_event_channel* channel,
                              mlx5dv_devx_async_event_hdr* event, std::size_t bytes) {
  return read(channel->fd, event, bytes);
}

}  // extern "C"
