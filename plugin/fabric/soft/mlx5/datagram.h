#pragma once
// Datagrams as queue pairs give them to the wire and take them from it.
#include <array>
#include <cstdint>
#include <optional>
#include <vector>

#include "plugin/fabric/soft/mlx5/completion.h"

namespace twinpath::soft::mlx5 {

inline constexpr std::size_t kRouteBytes = 40;  // of the header in front (GRH)
inline constexpr std::uint16_t kDefaultPartition = 0xffff;

struct Datagram {
  Sender from;
  std::uint16_t to_lid = 0;
  std::uint32_t to_qpn = 0;  // 0 and 1 are the management's
  std::uint32_t qkey = 0;
  bool has_immediate = false, solicited = false;
  std::uint32_t immediate = 0;
  std::array<std::uint8_t, kRouteBytes> route{};  // when from.routed; its last 16 bytes: the GID
  std::vector<std::uint8_t> data;

  // Its LID is a group's; the last one is everybody's, and no group's.
  bool to_group() const { return to_lid >= 0xc000 && to_lid != 0xffff; }
};

// The port of one adapter.  Threads: any.
class DatagramPort {
 public:
  virtual ~DatagramPort() = default;
  // Datagrams get lost: nobody is told.  `from.lid` is set here, and the GID of the header.
  virtual void send(Datagram&& datagram) = 0;
  // The next that came.
  virtual std::optional<Datagram> receive() = 0;
};

}  // namespace twinpath::soft::mlx5
