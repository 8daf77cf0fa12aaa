// See meeting.h.
#include "gda/team/meeting.h"

#include "gda/team/rail_turns.h"
#include "plugin/base/log.h"
#include "plugin/rdma/devices.h"
#include "topology/probe/probe_gpus.h"

namespace twinpath::gda {

namespace {

class DeviceListener final : public OneSidedListener {
 public:
  DeviceListener(int on, std::unique_ptr<MeshListener> made) : device(on), mesh(std::move(made)) {}
  const int device;
  const std::unique_ptr<MeshListener> mesh;
};

}  // namespace

Result<std::unique_ptr<OneSidedListener>> Meetings::listen(
    int device, std::span<std::uint8_t, kHandleBytes> handle) const {
  if (devices_->rails(device).empty()) {
    TP_WARN("there is no device %d to listen on", device);
    return Status::bad_argument;
  }
  auto mesh = MeshListener::open(devices_->config(), handle);
  if (!mesh) return mesh.status();
  return std::unique_ptr<OneSidedListener>(
      std::make_unique<DeviceListener>(device, std::move(mesh).take()));
}

Status Meetings::meet(const std::shared_ptr<TeamCore>& team,
                      std::span<const std::array<std::uint8_t, kHandleBytes>> handles, int rank,
                      OneSidedListener& listener, const CommSettings& settings) {
  const auto& mine = static_cast<DeviceListener&>(listener);
  team->devices = devices_;
  team->settings = settings;
  team->device = mine.device;
  team->gpu = current_cuda_gpu().value_or(-1);
  auto mesh = Mesh::connect(devices_->config(), *mine.mesh, handles, rank);
  if (!mesh) return mesh.status();
  team->mesh = std::move(mesh).take();
  auto rail = agree_on_rail(*devices_, mine.device, join(team), team->name, *team->mesh);
  if (!rail) return rail.status();
  team->rail = *rail;
  auto limits = usable_limits(*devices_, team->rail);
  if (!limits) return limits.status();
  team->limits = *limits;
  team->port.emplace(team->rail, *devices_, team->owner());
  return Status::ok;
}

std::uint32_t Meetings::join(const std::shared_ptr<TeamCore>& team) {
  std::lock_guard hold(mutex_);
  std::erase_if(teams_, [](const auto& other) { return other.expired(); });
  std::uint32_t before = 0;
  for (const auto& other : teams_) {
    const auto living = other.lock();
    before += living != nullptr && living->rank() == team->rank() &&
              living->settings.comm_id == team->settings.comm_id;
  }
  teams_.push_back(team);
  return before;
}

}  // namespace twinpath::gda
