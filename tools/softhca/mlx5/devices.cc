#include "tools/softhca/mlx5/devices.h"

#include <cstdio>

#include "plugin/fabric/soft/pin.h"
#include "tools/softhca/address.h"
#include "tools/softhca/mlx5/cuda_register.h"
#include "tools/softhca/mlx5/gpu_memory.h"

namespace twinpath::softhca::mlx5 {
namespace {

int query_port(ibv_context* context, std::uint8_t port, ibv_port_attr* attr) {
  return ibv_query_port(context, port, attr);  // the header's inline one
}

std::shared_ptr<void> register_doorbell(void* doorbell) {
  auto registered = std::make_shared<CudaRegister>(doorbell);
  return registered->done() ? registered : nullptr;
}

model::Surroundings surroundings() {
  model::Surroundings around;
  Verbs& v = around.verbs;
  v.query_device = ::ibv_query_device;
  v.query_port = query_port;
  v.query_gid = ::ibv_query_gid;
  v.create_cq = ::ibv_create_cq;
  v.destroy_cq = ::ibv_destroy_cq;
  v.create_qp = ::ibv_create_qp;
  v.modify_qp = ::ibv_modify_qp;
  v.query_qp = ::ibv_query_qp;
  v.destroy_qp = ::ibv_destroy_qp;
  around.variant_of = [](ibv_context* context) {
    model::Variant variant;
    softhca_mlx5_variant(context, &variant);
    return variant;
  };
  around.pd_number = softhca_pd_number;
  around.address_of = softhca_address;
  around.post_masked_atomic = softhca_post_masked_atomic;
  around.pin = [](ibv_context*, std::uint64_t address, std::size_t bytes, unsigned access) {
    // Of a GPU: as where nvidia_peermem is loaded, for a dma-buf of the program's tells no address.
    std::uint8_t first = 0;
    if (read_gpu_memory(address, &first, sizeof first)) return 0;
    return soft::refuse_pinning(address, bytes, access);
  };
  around.read_elsewhere = read_gpu_memory;
  around.write_elsewhere = write_gpu_memory;
  around.adorn_register = register_doorbell;
  around.say = [](const char* line) { std::fprintf(stderr, "soft HCA: %s\n", line); };
  return around;
}

}  // namespace

model::Library& library() {
  // Global because the calls of libmlx5 have no argument to carry it.
  static auto* const instance = new model::Library(surroundings());
  return *instance;
}

}  // namespace twinpath::softhca::mlx5
