#pragma once
// libmlx5 for softhca-mlx5-selftest.
#include <dlfcn.h>
#include <infiniband/mlx5dv.h>
#include <infiniband/verbs.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>

#include "tools/softhca/mlx5/selftest_commands.h"

namespace twinpath::softhca {

// Opened as DOCA opens it: by the name without a number, symbols without a version.
struct Library {
  const char* missing = nullptr;  // a call that is not there
  int commands = 0;               // sent by what follows the calls
  Bytes last{16};                 // what make() was answered
  void* handle = dlopen("libmlx5.so", RTLD_LAZY);
#define TP_CALL(name) \
  decltype(&::mlx5dv_##name) name = load<decltype(&::mlx5dv_##name)>("mlx5dv_" #name)
  TP_CALL(is_supported);
  TP_CALL(open_device);
  TP_CALL(query_device);
  TP_CALL(create_qp);
  TP_CALL(init_obj);
  TP_CALL(devx_alloc_uar);
  TP_CALL(devx_free_uar);
  TP_CALL(devx_umem_reg);
  TP_CALL(devx_umem_reg_ex);
  TP_CALL(devx_umem_dereg);
  TP_CALL(devx_obj_create);
  TP_CALL(devx_obj_modify);
  TP_CALL(devx_obj_query);
  TP_CALL(devx_obj_destroy);
  TP_CALL(devx_general_cmd);
  TP_CALL(devx_query_eqn);
  TP_CALL(devx_create_event_channel);
  TP_CALL(devx_destroy_event_channel);
  TP_CALL(devx_get_event);
#undef TP_CALL
  using DataDirect = int (*)(ibv_context*, char*, std::size_t);
  DataDirect data_direct = load<DataDirect>("mlx5dv_get_data_direct_sysfs_path");
  using RegDmabuf = ibv_mr* (*)(ibv_pd*, std::uint64_t, std::size_t, std::uint64_t, int, int, int);
  RegDmabuf reg_dmabuf_mr = load<RegDmabuf>("mlx5dv_reg_dmabuf_mr");

  template <class T>
  T load(const char* name) {
    void* const found = handle == nullptr ? nullptr : dlsym(handle, name);
    if (found == nullptr) missing = name;
    return reinterpret_cast<T>(found);
  }

  int query(ibv_context* context, Bytes in, Bytes& out) {
    ++commands;
    return devx_general_cmd(context, in.data(), in.size(), out.data(), out.size());
  }

  mlx5dv_devx_obj* make(ibv_context* context, Bytes in, std::uint32_t& number) {
    ++commands;
    Bytes out(16);
    mlx5dv_devx_obj* const made =
        devx_obj_create(context, in.data(), in.size(), out.data(), out.size());
    number = out.get(8, 23, 0);
    last = out;
    return out.get(0, 31, 24) == 0 ? made : nullptr;
  }

  int change(mlx5dv_devx_obj* object, Bytes in) {
    ++commands;
    Bytes out(16);
    return devx_obj_modify(object, in.data(), in.size(), out.data(), out.size());
  }

  std::uint32_t state_of(mlx5dv_devx_obj* object, std::uint32_t qpn) {
    ++commands;
    Bytes in = command(0x50b, 16).put(8, 23, 0, qpn), out(272);
    const int rc = devx_obj_query(object, in.data(), in.size(), out.data(), out.size());
    return rc == 0 ? out.get(0x18, 31, 28) : 99;
  }

  mlx5dv_devx_umem* umem(ibv_context* context, void* address, std::size_t bytes) {
    mlx5dv_devx_umem_in in{};
    in.addr = address;
    in.size = bytes;
    in.access = IBV_ACCESS_LOCAL_WRITE;
    in.pgsz_bitmap = static_cast<std::uint64_t>(sysconf(_SC_PAGESIZE));
    return devx_umem_reg_ex(context, &in);
  }
};

}  // namespace twinpath::softhca
