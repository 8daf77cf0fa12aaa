#pragma once
// One port of a fabric with mlx5 adapters, as a team opens it: the software HCA with its model in
// this process, or with TWINPATH_FABRIC=verbs what libibverbs and libmlx5 show (tools/softhca's, by
// the environment).
#include <cstdlib>
#include <memory>
#include <string>
#include <string_view>

#include "gda/adapter/mlx5/context_queues.h"
#include "test/gda/mlx5/recording.h"
#include "test/support/catch.h"

namespace twinpath::test {

inline bool on_libraries() {
  const char* const fabric = std::getenv("TWINPATH_FABRIC");
  return fabric != nullptr && std::string_view(fabric) == "verbs";
}

struct Bench {
  // On the model in this process, `variant`: words of plugin/fabric/soft/mlx5/variant.h, and
  // `faults`: TWINPATH_SOFT_FAULTS, of which a process has one list.
  explicit Bench(std::size_t port_number = 0, const std::string& variant = "",
                 const std::string& faults = "") {
    config.fabric = on_libraries() ? FabricChoice::verbs : FabricChoice::soft;
    config.soft_hcas = variant.empty() ? "2" : "soft0,mlx5=" + variant + ",soft1,mlx5=" + variant;
    config.soft_faults = faults;
    if (!faults.empty()) config.soft_cuda = SoftCuda::inprocess;
    auto opened = open_fabric(config);
    REQUIRE(opened);
    fabric = std::move(opened).take();
    // One port is enough, for both ends.
    REQUIRE_FALSE(fabric->ports.empty());
    Port& port = fabric->ports[port_number % fabric->ports.size()];
    adapter = std::make_unique<Adapter>(fabric->verbs, port.context, port.pd, port.device);
    rail.port = {&port, adapter.get()};
    rail.mtu = port.active_mtu;
    rail.lid = port.lid;
    std::string why;
    auto gid = choose_gid(port, config, why);
    REQUIRE(gid);
    rail.gid = *gid;
    auto table = load_mlx5(fabric->kind, why);
    INFO(why);
    REQUIRE(table);
    mlx5 = *table;
    record_commands(mlx5);
  }

  Config config;
  std::unique_ptr<Fabric> fabric;
  std::unique_ptr<Adapter> adapter;
  Rail rail;
  Mlx5 mlx5;
};

}  // namespace twinpath::test
