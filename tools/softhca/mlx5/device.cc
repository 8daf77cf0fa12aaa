// The device itself, and libmlx5's view of objects that libibverbs made.
#include <infiniband/mlx5dv.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <string_view>

#include "tools/softhca/address.h"
#include "tools/softhca/mlx5/devices.h"
#include "tools/softhca/mlx5/recorder.h"

using namespace twinpath::softhca;
using namespace twinpath::softhca::mlx5;

namespace {

// Numbers of completion and receive queues that libibverbs made.  Global because the calls have no
// argument to carry them; a queue that is gone leaves its entry, whose number nobody else has.
std::uint32_t number_of(model::Kind kind, ibv_context* context, const void* queue) {
  struct Numbers {
    std::mutex lock;
    std::map<const void*, std::uint32_t> by_queue;
  };
  static auto* const numbers = new Numbers;
  std::lock_guard hold(numbers->lock);
  std::uint32_t& number = numbers->by_queue[queue];
  if (number == 0) number = next_number();
  device_of(context).add_verbs_object({kind, number});
  return number;
}

__be16 be16(std::uint16_t v) { return __builtin_bswap16(v); }
__be32 be32(std::uint32_t v) { return __builtin_bswap32(v); }

mlx5_wqe_av* vector_of(ibv_ah* ah) {
  AddressHandle& handle = *softhca_address(ah);
  static_assert(sizeof(mlx5_wqe_av) <= sizeof handle.vector);
  auto* const av = new (handle.vector) mlx5_wqe_av{};
  const ibv_ah_attr& attr = handle.attr;
  if (handle.ethernet) {
    av->rlid = be16(0xc000);  // there it stands for the UDP source port
    av->stat_rate_sl = static_cast<std::uint8_t>((attr.sl & 7) << 1);
    std::memcpy(av->rmac, handle.rmac, sizeof av->rmac);
  } else {
    av->fl_mlid = attr.src_path_bits & 0x7f;
    av->rlid = be16(attr.dlid);
    av->stat_rate_sl = attr.sl & 0xf;
  }
  if (attr.is_global != 0) {
    const std::uint32_t grh = handle.ethernet ? 0 : 1u << 30;
    av->tclass = attr.grh.traffic_class;
    av->hop_limit = attr.grh.hop_limit;
    av->grh_gid_fl =
        be32(grh | std::uint32_t{attr.grh.sgid_index} << 20 | (attr.grh.flow_label & 0xfffff));
    std::memcpy(av->rgid, attr.grh.dgid.raw, sizeof av->rgid);
  }
  return av;
}

void show(ibv_cq* in, mlx5dv_cq& out) {
  out = {};  // no buffer: the soft HCA keeps completions in a form of its own
  out.cqe_cnt = static_cast<std::uint32_t>(in->cqe);
  out.cqe_size = 64;
  out.cqn = number_of(model::Kind::cq, in->context, in);
}

void show(ibv_srq* in, mlx5dv_srq& out) {
  const bool wants_number = (out.comp_mask & MLX5DV_SRQ_MASK_SRQN) != 0;
  out = {};
  if (!wants_number) return;
  out.comp_mask = MLX5DV_SRQ_MASK_SRQN;
  out.srqn = number_of(model::Kind::srq, in->context, in);
  execution_of(in->context).know_srq(out.srqn, in);
}

int init_obj(mlx5dv_obj* obj, std::uint64_t types) {
  constexpr std::uint64_t kKnown = MLX5DV_OBJ_PD | MLX5DV_OBJ_AH | MLX5DV_OBJ_CQ | MLX5DV_OBJ_SRQ;
  if (types == 0) return EINVAL;
  if ((types & ~kKnown) != 0) return EOPNOTSUPP;
  const bool cq = (types & MLX5DV_OBJ_CQ) != 0, srq = (types & MLX5DV_OBJ_SRQ) != 0;
  const bool ah = (types & MLX5DV_OBJ_AH) != 0, pd = (types & MLX5DV_OBJ_PD) != 0;
  Record record("init_obj", cq    ? obj->cq.in->context
                            : srq ? obj->srq.in->context
                            : ah  ? obj->ah.in->context
                                  : obj->pd.in->context);
  record.number("types", types);
  if (cq) {
    show(obj->cq.in, *obj->cq.out);
    record.number("cqn", obj->cq.out->cqn);
  }
  if (srq) {
    show(obj->srq.in, *obj->srq.out);
    record.number("srqn", obj->srq.out->srqn);
  }
  if (ah) {
    *obj->ah.out = {vector_of(obj->ah.in), 0};
    record.bytes("av",
                 {reinterpret_cast<const std::uint8_t*>(obj->ah.out->av), sizeof *obj->ah.out->av});
  }
  if (pd) {
    *obj->pd.out = {softhca_pd_number(obj->pd.in), 0};
    // A program knows the number from here only.
    execution_of(obj->pd.in->context).know_pd(obj->pd.out->pdn, obj->pd.in);
    device_of(obj->pd.in->context).add_verbs_object({model::Kind::pd, obj->pd.out->pdn});
    record.number("pdn", obj->pd.out->pdn);
  }
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
int softhca_init_obj_1_2(mlx5dv_obj* obj, std::uint64_t types);
int softhca_init_obj_1_0(mlx5dv_obj* obj, std::uint64_t types);
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
  attr->version = 0;
  attr->flags = MLX5DV_CONTEXT_FLAGS_CQE_V1;
  attr->comp_mask = 0;  // nothing of what is asked for in it
  return 0;
}

// The first version has the address of a pointer to the doorbell page of a completion queue where
// the second has the pointer; here neither has one.
int softhca_init_obj_1_2(mlx5dv_obj* obj, std::uint64_t types) { return init_obj(obj, types); }
int softhca_init_obj_1_0(mlx5dv_obj* obj, std::uint64_t types) { return init_obj(obj, types); }
__asm__(".symver softhca_init_obj_1_2, mlx5dv_init_obj@@MLX5_1.2");
__asm__(".symver softhca_init_obj_1_0, mlx5dv_init_obj@MLX5_1.0");

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
