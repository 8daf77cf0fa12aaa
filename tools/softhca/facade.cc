// The one table of the process.
#include "tools/softhca/facade.h"

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <string_view>

#include "plugin/base/options.h"

namespace twinpath::softhca {
namespace {

constexpr const char* kLinkVariable = "SOFTHCA_LINK_LAYER";

std::unique_ptr<Facade> load() {
  auto made = std::make_unique<Facade>();
  std::string why;
  const char* const layer = std::getenv(kLinkVariable);
  const std::string_view name = layer == nullptr ? "ethernet" : layer;
  if (name != "ethernet" && name != "infiniband") {
    std::fprintf(stderr, "soft HCA: %s=%s: expected ethernet or infiniband; no adapter is shown\n",
                 kLinkVariable, layer);
    return nullptr;
  }
  made->link_layer = name == "ethernet" ? LinkLayer::ethernet : LinkLayer::infiniband;
  if (!load_soft_hca(made->verbs, config_from_environment(), why)) {
    std::fprintf(stderr, "soft HCA: %s; no adapter is shown\n", why.c_str());
    return nullptr;
  }
  return made;
}

}  // namespace

const Facade* facade() {
  // Global because ibv_get_device_list has no argument to carry it, and never destroyed because
  // the adapter's engine thread lives as long as the process.
  static const Facade* const instance = load().release();
  return instance;
}

}  // namespace twinpath::softhca
