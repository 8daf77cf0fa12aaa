#include "tools/softhca/mlx5/devices.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <map>
#include <memory>
#include <mutex>

namespace twinpath::softhca::mlx5 {
namespace {

struct Opened {
  std::unique_ptr<Execution> execution;
  std::unique_ptr<model::Device> device;
};

// Global because the calls of libmlx5 have no argument to carry it; never destroyed because
// programs destroy objects from exit handlers.
struct Devices {
  std::mutex lock;
  std::map<const ibv_context*, Opened> by_context;
  std::atomic<std::uint32_t> last_number{0x100};
};
Devices& devices() {
  static auto* const all = new Devices;
  return *all;
}

model::DeviceFacts facts_of(ibv_context* context) {
  model::DeviceFacts facts;
  ibv_device_attr device{};
  ibv_port_attr port{};
  if (ibv_query_device(context, &device) == 0) facts.ports = device.phys_port_cnt;
  for (unsigned i = 1; i <= facts.ports; ++i) {
    if (ibv_query_port(context, static_cast<std::uint8_t>(i), &port) != 0) break;
    facts.ethernet = port.link_layer == IBV_LINK_LAYER_ETHERNET;
    facts.gid_entries = static_cast<unsigned>(port.gid_tbl_len);
    facts.lids.push_back(port.lid);
  }
  facts.completion_vectors = static_cast<unsigned>(context->num_comp_vectors);
  return facts;
}

Opened& of(ibv_context* context) {
  std::lock_guard hold(devices().lock);
  Opened& opened = devices().by_context[context];
  if (opened.device == nullptr) {
    const auto gids = [context](unsigned port, unsigned index, std::array<std::uint8_t, 16>& gid) {
      ibv_gid found{};
      if (ibv_query_gid(context, static_cast<std::uint8_t>(port), static_cast<int>(index),
                        &found) != 0)
        return false;
      std::copy_n(found.raw, gid.size(), gid.begin());
      return true;
    };
    opened.execution = std::make_unique<Execution>();
    opened.device = std::make_unique<model::Device>(facts_of(context), gids, devices().last_number,
                                                    opened.execution.get());
  }
  return opened;
}

}  // namespace

model::Device& device_of(ibv_context* context) { return *of(context).device; }

Execution& execution_of(ibv_context* context) { return *of(context).execution; }

std::uint32_t next_number() { return ++devices().last_number & 0xffffff; }

}  // namespace twinpath::softhca::mlx5
