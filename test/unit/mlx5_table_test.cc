// The table of mlx5 calls: from a library, and from the software HCA.
#include "plugin/fabric/mlx5.h"

#include <dlfcn.h>

#include <cerrno>
#include <cstdlib>

#include "test/support/catch.h"
#include "test/support/needs.h"

using namespace twinpath;

TEST_CASE("a libmlx5 that is not there, or too old, is named with what to install") {
  Mlx5 table;
  std::string why;
  CHECK_FALSE(load_libmlx5(table, why, "libmlx5-that-nobody-has.so.1"));
  CHECK(why.find("libmlx5-that-nobody-has.so.1") != std::string::npos);
  CHECK(why.find("install rdma-core") != std::string::npos);
  CHECK_FALSE(load_libmlx5(table, why, "libc.so.6"));
  CHECK(why == "libc.so.6 has no mlx5dv_is_supported@MLX5_1.8; install rdma-core 22 or newer");
  CHECK(table.is_supported == nullptr);

  // The name alone is not enough: an older version of it takes another structure.
  const char* const old = std::getenv("TWINPATH_TEST_OLD_MLX5");
  REQUIRE(old != nullptr);
  CHECK_FALSE(load_libmlx5(table, why, old));
  CHECK(why.find("has no mlx5dv_init_obj@MLX5_1.2; install") != std::string::npos);
  CHECK(table.is_supported == nullptr);
}

TEST_CASE("rdma-core's own libmlx5 has every call, in the version that is asked for") {
  void* const library = dlopen("libmlx5.so.1", RTLD_NOW | RTLD_LOCAL);
  NEEDS(library != nullptr, "no libmlx5.so.1 on this machine");
  Mlx5 table;
  std::string why;
  CHECK(load_libmlx5(table, why));
  CHECK(why.empty());
  CHECK(table.devx_obj_create == reinterpret_cast<decltype(table.devx_obj_create)>(
                                     dlsym(library, "mlx5dv_devx_obj_create")));
}

TEST_CASE("the software HCA's table is of the fabric, and whole") {
  std::string why;
  auto table = load_mlx5(FabricKind::soft, why);
  REQUIRE(table);
#define TP_CHECK(name, version, release) CHECK(table->name != nullptr);
  TP_MLX5(TP_CHECK)
#undef TP_CHECK
  Config config;
  config.fabric = FabricChoice::soft;
  // An adapter that was closed and opened again begins anew.
  for (int round = 0; round < 2; ++round) {
    auto fabric = open_fabric(config);
    REQUIRE(fabric);
    REQUIRE(!(*fabric)->ports.empty());
    ibv_context* const context = (*fabric)->ports[0].context;
    CHECK(table->is_supported(context->device));
    mlx5dv_devx_uar* const uar = table->devx_alloc_uar(context, MLX5DV_UAR_ALLOC_TYPE_NC);
    REQUIRE(uar != nullptr);
    std::uint8_t in[16] = {0x01, 0x00, 0, 0, 0, 0, 0, 0x01}, out[16 + 4096] = {};
    CHECK(table->devx_general_cmd(context, in, sizeof in, out, sizeof out) == 0);
    in[0] = 0x99;
    out[0] = 0xa5;
    // The driver knows no such command and does not ask the adapter.
    CHECK(table->devx_general_cmd(context, in, sizeof in, out, sizeof out) == EINVAL);
    CHECK(out[0] == 0xa5);
    table->devx_free_uar(uar);
  }
}
