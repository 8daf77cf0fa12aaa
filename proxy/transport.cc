#include "proxy/transport.h"

#include "plugin/rdma/devices.h"
#include "proxy/session.h"

namespace twinpath {
namespace {

class ProxyTransport final : public Transport {
 public:
  explicit ProxyTransport(std::shared_ptr<Devices> devices) : devices_(std::move(devices)) {}
  std::size_t device_count() const override { return devices_->count(); }
  Result<DeviceProps> device(int index) const override { return devices_->properties(index); }
  Result<int> make_virtual_device(std::span<const int> members) override {
    return devices_->merge(members);
  }
  Result<std::unique_ptr<Session>> open_session(const CommSettings& settings) override {
    return std::unique_ptr<Session>(std::make_unique<ProxySession>(devices_, settings));
  }

 private:
  std::shared_ptr<Devices> devices_;  // sessions and comms hold it, too
};

}  // namespace

Result<std::unique_ptr<Transport>> make_proxy_transport(std::unique_ptr<Fabric> fabric,
                                                        const Config& config) {
  return make_proxy_transport(std::make_shared<Devices>(std::move(fabric), config));
}

std::unique_ptr<Transport> make_proxy_transport(std::shared_ptr<Devices> devices) {
  return std::make_unique<ProxyTransport>(std::move(devices));
}

}  // namespace twinpath
