// The one table of the process.
#include "tools/softhca/facade.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <string_view>

#include "plugin/base/limits.h"
#include "plugin/base/options.h"

namespace twinpath::softhca {
namespace {

constexpr const char* kLinkVariable = "SOFTHCA_LINK_LAYER";
constexpr const char* kNamesVariable = "SOFTHCA_NAMES";

// Programs find some kinds of adapter by their names.  softN becomes mlx5_N in the specification of
// the adapters; names that the user chose stay.
std::string mlx5_names(const std::string& specification) {
  const bool is_count =
      !specification.empty() && specification.find_first_not_of("0123456789") == std::string::npos;
  if (is_count) {
    std::string names;
    for (int i = 0; i < std::atoi(specification.c_str()) && i <= kMaxPorts; ++i)
      names += (i == 0 ? "mlx5_" : ",mlx5_") + std::to_string(i);
    return names;
  }
  std::string out;
  for (std::size_t begin = 0; begin <= specification.size();) {
    const std::size_t end = std::min(specification.find(',', begin), specification.size());
    const std::string item = specification.substr(begin, end - begin);
    const bool ours = item.size() > 4 && item.starts_with("soft") &&
                      item.find_first_not_of("0123456789", 4) == std::string::npos;
    out += (begin == 0 ? "" : ",") + (ours ? "mlx5_" + item.substr(4) : item);
    begin = end + 1;
  }
  return out;
}

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
  Config config = config_from_environment();
  const char* const names = std::getenv(kNamesVariable);
  if (names != nullptr && *names != '\0') {
    if (std::string_view(names) != "mlx5") {
      std::fprintf(stderr, "soft HCA: %s=%s: expected mlx5 or nothing; no adapter is shown\n",
                   kNamesVariable, names);
      return nullptr;
    }
    config.soft_hcas = mlx5_names(config.soft_hcas);
  }
  if (!load_soft_hca(made->verbs, config, why)) {
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
