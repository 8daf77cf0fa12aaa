// The model of mlx5 adapters as a table: what load_libmlx5 finds in a library, from this process.
#include <cerrno>

#include "plugin/base/log.h"
#include "plugin/fabric/mlx5.h"
#include "plugin/fabric/soft/address.h"
#include "plugin/fabric/soft/control.h"
#include "plugin/fabric/soft/extended.h"
#include "plugin/fabric/soft/gpu_words.h"
#include "plugin/fabric/soft/mlx5/library.h"
#include "plugin/fabric/soft/objects.h"
#include "plugin/gpu/dmabuf.h"

namespace twinpath::soft {
namespace {

// One a process, as the adapters of which it is a view (hca.h): the calls have no argument to carry
// it.  Never destroyed, because contexts may be closed by exit handlers.
mlx5::Library& model() {
  static auto* const instance = [] {
    mlx5::Surroundings around;
    fill(around.verbs);
    around.variant_of = [](ibv_context* context) { return mlx5_variant(context); };
    around.pd_number = [](ibv_pd* pd) { return pd_number(pd); };
    around.address_of = [](ibv_ah* ah) { return static_cast<AddressHandle*>(ah); };
    around.post_masked_atomic = post_masked_atomic;
    around.push_by_reading = push_by_reading;
    around.pin = refuse_umem_pages;
    around.find_dmabuf = gpu::find_dmabuf;
    around.hold_memory = hold_gpu_memory;
    around.read_elsewhere = read_gpu_memory;
    around.write_elsewhere = write_gpu_memory;
    around.say = [](const char* line) { TP_WARN("soft HCA: %s", line); };
    return new mlx5::Library(around);
  }();
  return *instance;
}

ibv_mr* reg_dmabuf(ibv_pd* pd, std::uint64_t offset, std::size_t bytes, std::uint64_t iova, int fd,
                   int access, int mlx5_access) {
  if (mlx5_access != 0) {
    errno = EOPNOTSUPP;
    return nullptr;
  }
  return reg_dmabuf_mr(pd, offset, bytes, iova, fd, access);
}

}  // namespace

mlx5::Variant mlx5_variant(const ibv_context* context) {
  return static_cast<const SoftDevice*>(context->device)->spec.mlx5;
}

void forget_mlx5(ibv_context* context) { model().forget(context); }

void load_mlx5(Mlx5& table) {
  table = {};
  table.is_supported = [](ibv_device*) { return true; };
  table.query_device = [](ibv_context* c, mlx5dv_context* a) { return model().query_device(c, a); };
  table.init_obj = [](mlx5dv_obj* o, std::uint64_t types) { return model().init_obj(o, types); };
  table.devx_alloc_uar = [](ibv_context* c, std::uint32_t type) {
    return model().alloc_uar(c, type);
  };
  table.devx_free_uar = [](mlx5dv_devx_uar* uar) { model().free_uar(uar); };
  table.devx_umem_reg = [](ibv_context* c, void* address, std::size_t bytes, std::uint32_t access) {
    return model().umem_reg(c, address, bytes, access);
  };
  table.devx_umem_reg_ex = [](ibv_context* c, mlx5dv_devx_umem_in* in) {
    return model().umem_reg_ex(c, in);
  };
  table.devx_umem_dereg = [](mlx5dv_devx_umem* umem) { return model().umem_dereg(umem); };
  table.devx_obj_create = [](ibv_context* c, const void* in, std::size_t in_bytes, void* out,
                             std::size_t out_bytes) {
    return model().obj_create(c, in, in_bytes, out, out_bytes);
  };
  table.devx_obj_modify = [](mlx5dv_devx_obj* o, const void* in, std::size_t in_bytes, void* out,
                             std::size_t out_bytes) {
    return model().obj_modify(o, in, in_bytes, out, out_bytes);
  };
  table.devx_obj_query = [](mlx5dv_devx_obj* o, const void* in, std::size_t in_bytes, void* out,
                            std::size_t out_bytes) {
    return model().obj_query(o, in, in_bytes, out, out_bytes);
  };
  table.devx_obj_destroy = [](mlx5dv_devx_obj* o) { return model().obj_destroy(o); };
  table.devx_general_cmd = [](ibv_context* c, const void* in, std::size_t in_bytes, void* out,
                              std::size_t out_bytes) {
    return model().general_cmd(c, in, in_bytes, out, out_bytes);
  };
  table.devx_query_eqn = [](ibv_context* c, std::uint32_t vector, std::uint32_t* eqn) {
    return mlx5::Library::query_eqn(c, vector, eqn);
  };
  table.reg_dmabuf_mr = reg_dmabuf;
}

}  // namespace twinpath::soft
