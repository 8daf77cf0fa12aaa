// See rma_transport.h.
#include "gda/rma/rma_transport.h"

#include "gda/mesh.h"
#include "gda/rma/rma_comm.h"
#include "plugin/base/log.h"
#include "plugin/gpu/driver.h"
#include "proxy/connect/connection.h"
#include "proxy/memory/devices.h"
#include "topology/probe/probe_gpus.h"

namespace twinpath::gda::rma {
namespace {

class Listener final : public RmaListener {
 public:
  Listener(int device, std::unique_ptr<MeshListener> mesh)
      : device_(device), mesh_(std::move(mesh)) {}
  int device() const { return device_; }
  MeshListener& mesh() { return *mesh_; }

 private:
  const int device_;
  const std::unique_ptr<MeshListener> mesh_;
};

class Transport final : public RmaTransport {
 public:
  explicit Transport(std::shared_ptr<Devices> devices) : devices_(std::move(devices)) {}

  bool reaches_gpus() const override {
    if (gpu::cuda::driver() == nullptr) return true;
    for (int device = 0; device < static_cast<int>(devices_->count()); ++device) {
      auto properties = devices_->properties(device);
      if (!properties || !properties->gpu_direct) return false;
    }
    return true;
  }

  Result<std::unique_ptr<RmaListener>> listen(
      int device, std::span<std::uint8_t, kHandleBytes> handle) override {
    if (devices_->rails(device).empty()) {
      TP_WARN("there is no device %d to listen on", device);
      return Status::bad_argument;
    }
    auto mesh = MeshListener::open(devices_->config(), handle);
    if (!mesh) return mesh.status();
    return std::unique_ptr<RmaListener>(std::make_unique<Listener>(device, std::move(mesh).take()));
  }

  Result<std::unique_ptr<RmaComm>> connect(
      std::span<const std::array<std::uint8_t, kHandleBytes>> handles, int rank,
      RmaListener& listener, const CommSettings& settings) override {
    auto& mine = static_cast<Listener&>(listener);
    auto rails = choose_rails(*devices_, mine.device());
    if (!rails) return rails.status();
    auto core = std::make_shared<GinCore>(static_cast<int>(handles.size()));
    core->devices = devices_;
    core->rail = rails->front();
    core->settings = settings;
    core->gpu = current_cuda_gpu().value_or(-1);
    auto limits = usable_limits(*devices_, core->rail);
    if (!limits) return limits.status();
    core->limits = *limits;
    auto mesh = Mesh::connect(devices_->config(), mine.mesh(), handles, rank);
    if (!mesh) return mesh.status();
    core->mesh = std::move(mesh).take();
    core->port.emplace(core->rail, *devices_);
    auto team = std::make_shared<Team>(std::move(core));
    TP_TRY(team->agree_on_atomics());
    TP_INFO(net, "RMA of rank %d of %zu over %s: %s", rank, handles.size(),
            team->core().rail.port.port->name.c_str(),
            team->counted() ? "signals without atomics, by the receiver's CPU"
                            : "signals by the adapters' atomics");
    return std::unique_ptr<RmaComm>(std::make_unique<Comm>(std::move(team)));
  }

 private:
  const std::shared_ptr<Devices> devices_;
};

}  // namespace
}  // namespace twinpath::gda::rma

namespace twinpath::gda {

Result<std::unique_ptr<RmaTransport>> make_rma_transport(std::shared_ptr<Devices> devices) {
  return std::unique_ptr<RmaTransport>(std::make_unique<rma::Transport>(std::move(devices)));
}

}  // namespace twinpath::gda
