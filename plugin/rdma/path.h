#pragma once
// How the packets of a queue pair get from one end of it to the other: what the user and the
// communicator ask for (QueueSettings), and the attributes of the path that both ends' rails give.
//
// Threads: values and pure functions.
#include <cstdint>

#include "plugin/base/config.h"
#include "plugin/base/wire.h"
#include "plugin/rdma/modify_retry.h"
#include "plugin/rdma/rail.h"
#include "plugin/transport.h"

namespace twinpath {

struct QueueAddress {
  std::uint32_t qpn = 0;  // 24 bits
  std::uint32_t psn = 0;  // 24 bits
};
void encode_address(Writer& w, QueueAddress address);
// False when a number has more than 24 bits.
bool decode_address(Reader& r, QueueAddress& address);

inline constexpr int kMostServiceLevel = 15;  // 4 bits (InfiniBand specification, LRH)

// How networks tell traffic apart: InfiniBand by service level, RoCE by traffic class.
struct ServiceClass {
  std::uint8_t level = 0;          // 0..kMostServiceLevel
  std::uint8_t traffic_class = 0;  // of the global header
};

// Attributes that are the same on all queues of a connection.
struct QueueSettings {
  int send_depth = 1;
  int recv_depth = 1;
  int inline_bytes = 0;  // wanted; make_queue_pair() tells what the device grants
  int access = 0;
  ServiceClass roce, infiniband;  // on ports of that kind
  const ServiceClass& service(bool on_roce) const { return on_roce ? roce : infiniband; }
  std::uint8_t timeout = 20;
  std::uint8_t retry_count = 7;
  RetrySettings retry;  // of moves to the next state
  bool flow_labels = false;
};

// What the environment and the communicator say of paths; depths and rights are the caller's.
QueueSettings path_settings(const Config& config, const CommSettings& settings);

// Whether packets between the two need the global header, which names ports by GID: always on
// Ethernet; on InfiniBand where a LID is missing or does not reach, or where a port asks for it
// (one of several virtual ports behind one LID).  Pure.
bool needs_global_header(const Rail& local, const HelloRail& remote);

// Where the local subnet takes packets for an InfiniBand port: its LID, or across subnets the
// floating LID in its GID, which leads to a router (as in NCCL's net_ib/connect.cc).  Pure.
std::uint16_t destination_lid(const Rail& local, const HelloRail& remote);

// Address vector and path of one queue, out of both ends.  Pure.
// `flow_label`: see flow_label.h; goes with RoCE only.
ibv_qp_attr path_attributes(const Rail& local, const HelloRail& remote, QueueAddress to,
                            const QueueSettings& settings, std::uint32_t flow_label = 0);

}  // namespace twinpath
