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

#include "gda/one_sided.h"
#include "gda/team/team_core.h"

namespace twinpath::gda {

class Meetings {
 public:
  explicit Meetings(std::shared_ptr<Devices> devices) : devices_(std::move(devices)) {}

  Result<std::unique_ptr<OneSidedListener>> listen(
      int device, std::span<std::uint8_t, kHandleBytes> handle) const;

  // Collective: fills in what this rank's part of the team is made of, its port chosen and watched.
  // `listener`: one of ours.
  Status meet(const std::shared_ptr<TeamCore>& team,
              std::span<const std::array<std::uint8_t, kHandleBytes>> handles, int rank,
              OneSidedListener& listener, const CommSettings& settings);

 private:
  // Counts the connection among its rank's of the communicator: how many there are already.
  std::uint32_t join(const std::shared_ptr<TeamCore>& team);

  const std::shared_ptr<Devices> devices_;
  std::mutex mutex_;
  std::vector<std::weak_ptr<TeamCore>> teams_;  // under mutex_
};

}  // namespace twinpath::gda
