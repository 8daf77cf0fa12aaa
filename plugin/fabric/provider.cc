#include "plugin/fabric/provider.h"

#include <array>

namespace twinpath {
namespace {

// Sources: rdma-core 64, which providers' post_send know IBV_SEND_INLINE; Linux,
// drivers/infiniband: vendor_id of query_device, and the driver of the function that the device
// lies on.
struct Provider {
  std::string_view name;
  std::string_view driver;  // how its name begins: scalable functions are "mlx5_core.sf"
  std::uint32_t vendor_id;
  std::string_view device;  // how the kernel's names begin
  bool honours_inline;
};
constexpr std::array kProviders{
    Provider{"mlx5", "mlx5_core", 0x02c9, "mlx5_", true},
    Provider{"mlx4", "mlx4_core", 0x02c9, "mlx4_", true},
    Provider{"bnxt_re", "bnxt_en", 0x14e4, "bnxt_re", true},
    Provider{"irdma", "ice", 0x8086, "irdma", true},
    Provider{"irdma", "i40e", 0x8086, "irdma", true},
    Provider{"irdma", "idpf", 0x8086, "irdma", true},
    Provider{"hns", "hns3", 0x19e5, "hns_", true},
    Provider{"erdma", "erdma", 0x1ded, "erdma_", true},
    Provider{"ionic", "ionic", 0x1dd8, "ionic_", true},
    Provider{"qedr", "qede", 0x1077, "qedr", true},
    Provider{"rxe", "rdma_rxe", 0xffffff, "rxe", true},
    // Its post_send knows no such flag, and its create_qp grants whatever is asked for.
    Provider{"mana", "mana", 0x1414, "mana_", false},
    Provider{"soft HCA", "twinpath", 0x7477, "soft", true},
};

const Provider* find(const ProviderSigns& signs) {
  for (const Provider& p : kProviders)
    if (!signs.driver.empty() && signs.driver.starts_with(p.driver)) return &p;
  for (const Provider& p : kProviders)
    if (signs.vendor_id != 0 && signs.vendor_id == p.vendor_id) return &p;
  for (const Provider& p : kProviders)
    if (signs.device.starts_with(p.device)) return &p;
  return nullptr;
}

}  // namespace

std::string_view provider_of(const ProviderSigns& signs) {
  const Provider* const p = find(signs);
  return p != nullptr ? p->name : std::string_view();
}

InlineUse inline_use(std::string_view provider, int setting) {
  const std::string name(provider);
  if (setting == 0) return {false, "NCCL_IB_USE_INLINE=0"};
  for (const Provider& p : kProviders) {
    if (p.name != provider) continue;
    if (p.honours_inline) return {true, name + " honours IBV_SEND_INLINE"};
    return {false, name + " ignores IBV_SEND_INLINE" +
                       (setting == 1 ? ", so NCCL_IB_USE_INLINE=1 has no effect" : "")};
  }
  if (setting == 1) return {true, "NCCL_IB_USE_INLINE=1"};
  return {false,
          "its provider is not known to honour IBV_SEND_INLINE; NCCL_IB_USE_INLINE=1 if it does"};
}

}  // namespace twinpath
