#pragma once
// What a link says of itself in messages: both ends, the state of its ports and of its peer, and
// what moved last.  Each text is made of what is handed in; most are empty where there is nothing
// to say.
//
// Threads: under the hub's lock, as what they are made of.
#include <cstdint>
#include <string>
#include <vector>

#include "plugin/base/counters.h"
#include "plugin/base/socket.h"
#include "plugin/rdma/devices.h"
#include "plugin/rdma/rail.h"
#include "proxy/queues/queue_set.h"
#include "proxy/wire/wr_id.h"

namespace twinpath {

// The peer, for messages: "hostB pid 77 (10.0.0.2:40123), mlx5_0".
struct PeerName {
  std::string text;
  std::string process;  // "hostB pid 77"
  std::vector<HelloRail> rails;
  int regular = 1;  // of these; the others are in reserve
};

// "mlx5_0 GID index 3 ::ffff:10.0.0.1 (port 1)"; the peer's without its port number.
std::string rail_text(const Rail& rail);
std::string rail_text(const HelloRail& rail);

// The first rail's ends, and how many more there are; messages about a queue name its own.
// `regular`: of our rails, a bit each.
std::string ends_text(const std::vector<Rail>& rails, std::uint32_t regular, const PeerName& peer);

// Empty while the port is up and has the address that the queues were made with.  Asks the adapter,
// whose events may lag behind its completions.
std::string down_text(const Devices& devices, const Rail& rail);
// Of all rails whose queues are in use, or would be if nothing had failed: "; " and each.
std::string down_texts(QueueSet& set);
// Behind a cause that is no single queue's: down_texts() and ends_text().
std::string paths_text(QueueSet& set, const PeerName& peer);

// Empty while the control connection lives.
std::string death_text(const TcpSocket& socket);
// For a peer that does not answer on the data path either.
std::string silence_text(const TcpSocket& socket);

// "a send failed with ... (status 12, vendor error 0x81)"; `status`: the provider's word for it.
std::string completion_text(const WrId& id, const ibv_wc& wc, const char* status);

// What its caller was waiting for when nothing moved any more, and what it has waited for and
// carried in all: bounded by the number of causes and rails.  Empty unless it had waited for 0.1 s
// at least, within the last second.  `now`: now_ns().
std::string last_text(const counters::Connection& counts, const std::vector<Rail>& rails,
                      std::uint32_t regular, std::int64_t now);

// Why a queue in reserve over that rail cannot serve: the port's name, and what it lacks.
std::string not_registered_text(const Rail& rail);

// That a rail brings through less than its port's speed promises, or no longer does, and how much
// of each message it now gets.
std::string pace_text(const Rail& rail, const HelloRail& remote, bool slow, std::uint32_t permille);

}  // namespace twinpath
