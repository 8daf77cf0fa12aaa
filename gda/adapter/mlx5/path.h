#pragma once
// What the commands that join two queue pairs carry: out of this end's rail and settings, what the
// far end told of itself, and the adapter's capabilities.
#include "gda/adapter/mlx5/adapter.h"
#include "gda/connect/queue_pair.h"

namespace twinpath::gda::mlx5 {

// All but the MAC.  Pure.  `qpn`, `psn`: this end's.
Joint make_joint(const Rail& rail, const QueueSettings& settings, const Capabilities& caps,
                 std::uint32_t qpn, std::uint32_t psn, const QueueEnd& far);

// The READs and atomics that may be under way towards this end, for QueueEnd::reads_in.
std::uint8_t reads_in(const Capabilities& caps);

// On Ethernet: asks the driver for the MAC of the next hop.  Logs what is wrong; `peer` names the
// far end.
Status find_mac(const Adapter& adapter, const QueueEnd& far, const std::string& peer, Path& path);

}  // namespace twinpath::gda::mlx5
