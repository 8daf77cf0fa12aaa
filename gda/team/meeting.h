#pragma once
// How the ranks of a team meet, for GIN and RMA alike: each listens at a device, all connect to
// each other, and agree over which of the device's ports the team goes.
//
// Threads: any; teams of one process may meet at once.
#include <array>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <utility>
#include <vector>

#include "gda/connect/mesh.h"
#include "gda/team/gin_core.h"
#include "plugin/base/limits.h"
#include "plugin/base/status.h"

namespace twinpath::gda {

// Interface: what the seam calls a listener.
template <class Interface>
class DeviceListener final : public Interface {
 public:
  DeviceListener(int device, std::unique_ptr<MeshListener> mesh)
      : device_(device), mesh_(std::move(mesh)) {}
  int device() const { return device_; }
  MeshListener& mesh() { return *mesh_; }

 private:
  const int device_;
  const std::unique_ptr<MeshListener> mesh_;
};

class Meetings {
 public:
  // `name` of what meets ("GIN"), for the log.
  Meetings(std::shared_ptr<Devices> devices, const char* name)
      : devices_(std::move(devices)), name_(name) {}

  template <class Interface>
  Result<std::unique_ptr<Interface>> listen(int device,
                                            std::span<std::uint8_t, kHandleBytes> handle) const {
    auto mesh = open(device, handle);
    if (!mesh) return mesh.status();
    return std::unique_ptr<Interface>(
        std::make_unique<DeviceListener<Interface>>(device, std::move(mesh).take()));
  }

  // Collective: what this rank's part of the team is made of, its port chosen and watched.
  template <class Interface>
  Result<std::shared_ptr<GinCore>> meet(
      std::span<const std::array<std::uint8_t, kHandleBytes>> handles, int rank,
      Interface& listener, const CommSettings& settings) {
    auto& mine = static_cast<DeviceListener<Interface>&>(listener);
    return meet(handles, rank, mine.device(), mine.mesh(), settings);
  }

 private:
  Result<std::unique_ptr<MeshListener>> open(int device,
                                             std::span<std::uint8_t, kHandleBytes> handle) const;
  Result<std::shared_ptr<GinCore>> meet(
      std::span<const std::array<std::uint8_t, kHandleBytes>> handles, int rank, int device,
      MeshListener& listener, const CommSettings& settings);
  // Counts the connection among its rank's of the communicator: how many there are already.
  std::uint32_t join(const std::shared_ptr<GinCore>& core);

  const std::shared_ptr<Devices> devices_;
  const char* const name_;
  std::mutex mutex_;
  std::vector<std::weak_ptr<GinCore>> cores_;  // under mutex_
};

}  // namespace twinpath::gda
