// See rma_transport.h.
#include "gda/rma/rma_transport.h"

#include "gda/rma/rma_context.h"
#include "gda/team/meeting.h"
#include "gda/team/team_comm.h"
#include "plugin/base/log.h"
#include "plugin/gpu/driver.h"
#include "plugin/rdma/devices.h"

namespace twinpath::gda::rma {
namespace {

class Comm final : public TeamComm<RmaComm, Window, Team> {
 public:
  using TeamComm::TeamComm;
  Result<std::unique_ptr<RmaContext>> create_context(const RmaSettings& settings) override {
    auto context = rma::Context::make(team(), settings);
    if (!context) return context.status();
    return std::unique_ptr<RmaContext>(std::move(context).take());
  }
  // Where completion means that data is there, whatever comes after.  An adapter's signal pushes
  // only what goes to the memory in which it lies itself: puts to the host's are not ordered with
  // signals in a GPU's, nor the reverse, and which windows there will be nobody knows yet.
  bool any_signal_shows_all() const override { return team()->verbs().ordered; }
};

class Transport final : public RmaTransport {
 public:
  explicit Transport(std::shared_ptr<Devices> devices)
      : devices_(std::move(devices)), meetings_(devices_) {}

  bool reaches_gpus() const override {
    if (gpu::cuda::driver() == nullptr) return true;
    for (int device = 0; device < static_cast<int>(devices_->count()); ++device) {
      auto properties = devices_->properties(device);
      if (!properties || !(properties->gpu_direct || properties->dmabuf)) return false;
    }
    return true;
  }

  Result<std::unique_ptr<OneSidedListener>> listen(
      int device, std::span<std::uint8_t, kHandleBytes> handle) override {
    return meetings_.listen(device, handle);
  }

  Result<std::unique_ptr<RmaComm>> connect(
      std::span<const std::array<std::uint8_t, kHandleBytes>> handles, int rank,
      OneSidedListener& listener, const CommSettings& settings) override {
    auto team = std::make_shared<Team>();
    TP_TRY(meetings_.meet(team, handles, rank, listener, settings));
    count_to_move(*team);
    TP_TRY(team->agree_on_atomics());
    TP_TRY(agree_on_second_port(*team, team->counted() ? SecondUse::moves : SecondUse::none));
    TP_INFO(net, "RMA of rank %d of %zu over %s: %s", rank, handles.size(),
            team->rail.port.port->name.c_str(),
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
