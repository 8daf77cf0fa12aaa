// See rma_transport.h.
#include "gda/rma/rma_transport.h"

#include "gda/rma/rma_comm.h"
#include "gda/team/meeting.h"
#include "plugin/base/log.h"
#include "plugin/gpu/driver.h"
#include "plugin/rdma/devices.h"

namespace twinpath::gda::rma {
namespace {

class Transport final : public RmaTransport {
 public:
  explicit Transport(std::shared_ptr<Devices> devices)
      : devices_(std::move(devices)), meetings_(devices_, "RMA") {}

  bool reaches_gpus() const override {
    if (gpu::cuda::driver() == nullptr) return true;
    for (int device = 0; device < static_cast<int>(devices_->count()); ++device) {
      auto properties = devices_->properties(device);
      if (!properties || !(properties->gpu_direct || properties->dmabuf)) return false;
    }
    return true;
  }

  Result<std::unique_ptr<RmaListener>> listen(
      int device, std::span<std::uint8_t, kHandleBytes> handle) override {
    return meetings_.listen<RmaListener>(device, handle);
  }

  Result<std::unique_ptr<RmaComm>> connect(
      std::span<const std::array<std::uint8_t, kHandleBytes>> handles, int rank,
      RmaListener& listener, const CommSettings& settings) override {
    auto core = meetings_.meet(handles, rank, listener, settings);
    if (!core) return core.status();
    auto team = std::make_shared<Team>(std::move(core).take());
    TP_TRY(team->agree_on_atomics());
    TP_INFO(net, "RMA of rank %d of %zu over %s: %s", rank, handles.size(),
            team->core().rail.port.port->name.c_str(),
            team->counted() ? "signals without atomics, by the receiver's CPU"
                            : "signals by the adapters' atomics");
    return std::unique_ptr<RmaComm>(std::make_unique<Comm>(std::move(team)));
  }

 private:
  const std::shared_ptr<Devices> devices_;
  Meetings meetings_;
};

}  // namespace
}  // namespace twinpath::gda::rma

namespace twinpath::gda {

Result<std::unique_ptr<RmaTransport>> make_rma_transport(std::shared_ptr<Devices> devices) {
  return std::unique_ptr<RmaTransport>(std::make_unique<rma::Transport>(std::move(devices)));
}

}  // namespace twinpath::gda
