// See meeting.h.
#include "gda/team/meeting.h"

#include "gda/team/rail_turns.h"
#include "plugin/base/log.h"
#include "plugin/rdma/devices.h"
#include "topology/probe/probe_gpus.h"

namespace twinpath::gda {

Result<std::unique_ptr<MeshListener>> Meetings::open(
    int device, std::span<std::uint8_t, kHandleBytes> handle) const {
  if (devices_->rails(device).empty()) {
    TP_WARN("there is no device %d to listen on", device);
    return Status::bad_argument;
  }
  return MeshListener::open(devices_->config(), handle);
}

Result<std::shared_ptr<GinCore>> Meetings::meet(
    std::span<const std::array<std::uint8_t, kHandleBytes>> handles, int rank, int device,
    MeshListener& listener, const CommSettings& settings) {
  auto core = std::make_shared<GinCore>(static_cast<int>(handles.size()));
  core->devices = devices_;
  core->settings = settings;
  core->gpu = current_cuda_gpu().value_or(-1);
  auto mesh = Mesh::connect(devices_->config(), listener, handles, rank);
  if (!mesh) return mesh.status();
  core->mesh = std::move(mesh).take();
  auto rail = agree_on_rail(*devices_, device, join(core), name_, *core->mesh);
  if (!rail) return rail.status();
  core->rail = *rail;
  auto limits = usable_limits(*devices_, core->rail);
  if (!limits) return limits.status();
  core->limits = *limits;
  core->port.emplace(core->rail, *devices_);
  return core;
}

std::uint32_t Meetings::join(const std::shared_ptr<GinCore>& core) {
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

}  // namespace twinpath::gda
