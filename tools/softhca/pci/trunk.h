#pragma once
// The cables between the subnets of the processes of one job: carries datagrams to ports of other
// processes, and tells who has which ports and which groups there are.
//
// Processes find each other as those of the software HCA do, and let in whom these let in
// (plugin/fabric/soft/rendezvous.h).  Each connects to those that are there when it starts; of two
// that start at once there may be two sockets, of which each sends on its first.  Nothing here
// waits: what a socket has no room for is kept, and lost when that is much; members never are.
//
// Threads: one at a time; wake(): any.
#include <poll.h>

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "plugin/base/owned.h"
#include "plugin/base/status.h"
#include "plugin/fabric/soft/mlx5/datagram.h"
#include "tools/softhca/pci/subnet_manager.h"

namespace twinpath::softhca::pci {

class Trunk {
 public:
  // `why`: for the user.
  static Result<std::unique_ptr<Trunk>> join(const std::string& job, std::string& why);

  // What to poll() before take_what_came(): valid until then.  wake() ends that.
  std::vector<pollfd> watched() const;
  void wake() const;
  // Datagrams go to `deliver`.  True when others() has changed.
  bool take_what_came(const std::function<void(const mlx5::Datagram&)>& deliver);
  Members others() const;

  // To all; a process that has one of these LIDs, too, is left out from then on.
  void tell(Members own);
  // To who has its LID, or to all when it is a group's.
  void send(const mlx5::Datagram& datagram);

 private:
  struct Line {
    UniqueFd socket;
    std::optional<std::uint32_t> slot;  // of the process at its end; none until it has told
    Members members;
    std::deque<std::vector<std::uint8_t>> waiting;  // for room
  };

  Trunk() = default;
  bool accept_others();
  void send_on(Line& line, std::span<const std::uint8_t> packet, std::size_t most_waiting);
  static void flush(Line& line);
  enum class Taken { nothing, datagram, members, end };
  Taken take(Line& line, const std::function<void(const mlx5::Datagram&)>& deliver);
  bool learn(Line& line, std::uint32_t slot, Members told) const;

  std::uint32_t slot_ = 0;
  UniqueFd listening_, woken_;
  Members own_;
  std::vector<Line> lines_;
};

}  // namespace twinpath::softhca::pci
