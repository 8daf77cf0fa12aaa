#pragma once
// Who drives an adapter, and what is known of that driver that verbs do not tell.  Pure.
#include <cstdint>
#include <string>
#include <string_view>

namespace twinpath {

// What a device shows of who drives it.  None of it is certain: sysfs may be missing in a
// container, udev renames devices, and an adapter's vendor may be its reseller.
struct ProviderSigns {
  std::string_view driver;      // of its PCI or auxiliary function in sysfs: "mlx5_core", "bnxt_en"
  std::uint32_t vendor_id = 0;  // ibv_device_attr's
  std::string_view device;      // "mlx5_0"
};
// libibverbs' name of it, "mlx5", "bnxt_re"; empty: not known.  The driver tells most, the device's
// name least.
std::string_view provider_of(const ProviderSigns& signs);

// Whether work requests of an adapter may hold their data themselves (IBV_SEND_INLINE).
struct InlineUse {
  bool allowed = false;
  std::string why;  // for the log
};
// `setting`: NCCL_IB_USE_INLINE, or -1.  A provider may grant inline data and then ignore the flag:
// the adapter fetches them by a local key that inline data need not have, and the queue pair fails.
// So inline is what is known to be honoured, or what the user says is; what is known to be ignored
// stays off.
InlineUse inline_use(std::string_view provider, int setting);

}  // namespace twinpath
