// See gin_transport.h.
#include "gda/gin_transport.h"

#include <mutex>
#include <vector>

#include "gda/gin_comm.h"
#include "gda/mesh.h"
#include "gda/modes.h"
#include "gda/rail_turns.h"
#include "plugin/base/log.h"
#include "proxy/connect/connection.h"
#include "proxy/memory/devices.h"
#include "topology/probe/probe_gpus.h"

namespace twinpath::gda {
namespace {

class Listener final : public GinListener {
 public:
  Listener(int device, std::unique_ptr<MeshListener> mesh)
      : device_(device), mesh_(std::move(mesh)) {}
  int device() const { return device_; }
  MeshListener& mesh() { return *mesh_; }

 private:
  const int device_;
  const std::unique_ptr<MeshListener> mesh_;
};

class Transport final : public GinTransport {
 public:
  explicit Transport(std::shared_ptr<Devices> devices) : devices_(std::move(devices)) {}

  std::size_t device_count() const override { return devices_->count(); }
  Result<DeviceProps> device(int index) const override { return devices_->properties(index); }

  // They need the adapter's atomics: without, only the words of signal tables have writers' sums.
  bool window_signals() const override {
    for (int device = 0; device < static_cast<int>(devices_->count()); ++device) {
      auto rails = choose_rails(*devices_, device);
      if (!rails) return false;
      for (const Rail& rail : *rails) {
        auto limits = limits_of(rail);
        if (!limits || !limits->atomics) return false;
      }
    }
    return true;
  }

  Result<std::unique_ptr<GinListener>> listen(
      int device, std::span<std::uint8_t, kHandleBytes> handle) override {
    if (devices_->rails(device).empty()) {
      TP_WARN("there is no device %d to listen on", device);
      return Status::bad_argument;
    }
    auto mesh = MeshListener::open(devices_->config(), handle);
    if (!mesh) return mesh.status();
    return std::unique_ptr<GinListener>(std::make_unique<Listener>(device, std::move(mesh).take()));
  }

  Result<std::unique_ptr<GinComm>> connect(
      std::span<const std::array<std::uint8_t, kHandleBytes>> handles, int rank,
      GinListener& listener, const CommSettings& settings) override {
    auto& mine = static_cast<Listener&>(listener);
    auto core = std::make_shared<GinCore>(static_cast<int>(handles.size()));
    core->devices = devices_;
    core->settings = settings;
    core->gpu = current_cuda_gpu().value_or(-1);
    auto mesh = Mesh::connect(devices_->config(), mine.mesh(), handles, rank);
    if (!mesh) return mesh.status();
    core->mesh = std::move(mesh).take();
    auto rail = agree_on_rail(*devices_, mine.device(), join(core), *core->mesh);
    if (!rail) return rail.status();
    core->rail = *rail;
    auto limits = limits_of(core->rail);
    if (!limits) return limits.status();
    core->limits = *limits;
    core->port.emplace(core->rail, *devices_);
    TP_TRY(agree_on_modes(*core, devices_->index_of(core->rail.port)));
    core->engine = Engine::of(core->gpu, devices_->config().gin_engine);
    return std::unique_ptr<GinComm>(std::make_unique<Comm>(std::move(core)));
  }

 private:
  // What the adapter can, and may be used for.
  Result<AdapterLimits> limits_of(const Rail& rail) const {
    auto limits = adapter_limits(devices_->verbs(), rail);
    if (limits) limits->atomics &= devices_->config().gin_atomics;
    return limits;
  }

  // Counts the connection among its rank's of the communicator: how many there are already.
  std::uint32_t join(const std::shared_ptr<GinCore>& core) {
    std::lock_guard hold(mutex_);
    std::erase_if(cores_, [](const auto& other) { return other.expired(); });
    std::uint32_t before = 0;
    for (const auto& other : cores_) {
      const auto living = other.lock();
      before += living != nullptr && living->rank() == core->rank() &&
                living->settings.comm_id == core->settings.comm_id;
    }
    cores_.push_back(core);
    return before;
  }

  const std::shared_ptr<Devices> devices_;
  std::mutex mutex_;
  std::vector<std::weak_ptr<GinCore>> cores_;  // under mutex_
};

}  // namespace

Result<std::unique_ptr<GinTransport>> make_gin_transport(std::shared_ptr<Devices> devices) {
  return std::unique_ptr<GinTransport>(std::make_unique<Transport>(std::move(devices)));
}

}  // namespace twinpath::gda
