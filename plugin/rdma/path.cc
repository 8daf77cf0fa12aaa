#include "plugin/rdma/path.h"

#include <algorithm>
#include <cstring>

#include "plugin/fabric/gid.h"

namespace twinpath {
namespace {

constexpr std::uint32_t k24Bits = 0xffffff;

// How long a peer without a receive is left alone before its sender tries again: 0.64 ms.  Our
// credits make it a rare accident.
constexpr std::uint8_t kMinRnrTimer = 12;

// Of routable addresses the last 16 bits of the prefix name the subnet, and the floating LIDs
// before them may differ within it.
bool same_subnet(const ibv_gid& a, const ibv_gid& b) {
  const bool routable = flid_of(a) != 0 || flid_of(b) != 0;
  return routable ? std::memcmp(a.raw + 6, b.raw + 6, 2) == 0 : std::memcmp(a.raw, b.raw, 8) == 0;
}

// What the environment says of service; 0 where it says nothing.
ServiceClass user_service(const Config& config) {
  return {static_cast<std::uint8_t>(std::max(config.ib_sl, 0)),
          static_cast<std::uint8_t>(std::max(config.ib_tc, 0))};
}

}  // namespace

void encode_address(Writer& w, QueueAddress address) {
  w.integer(address.qpn);
  w.integer(address.psn);
}

bool decode_address(Reader& r, QueueAddress& address) {
  address.qpn = r.integer<std::uint32_t>();
  address.psn = r.integer<std::uint32_t>();
  return address.qpn <= k24Bits && address.psn <= k24Bits;
}

QueueSettings path_settings(const Config& config, const CommSettings& settings) {
  QueueSettings s;
  s.roce = s.infiniband = user_service(config);
  // NCCL's manual (trafficClass): RoCE networks take it as type of service, InfiniBand as service
  // level.  What the user sets goes before what the communicator asks for.
  const int asked = settings.traffic_class;
  if (asked >= 0 && config.ib_tc < 0)
    s.roce.traffic_class = static_cast<std::uint8_t>(asked & 0xff);
  if (asked >= 0 && asked <= kMostServiceLevel && config.ib_sl < 0)
    s.infiniband.level = static_cast<std::uint8_t>(asked);
  s.timeout = static_cast<std::uint8_t>(config.ib_timeout);
  s.retry_count = static_cast<std::uint8_t>(config.ib_retry_cnt);
  s.retry = retry_settings(config);
  s.flow_labels = config.flow_labels;
  return s;
}

bool needs_global_header(const Rail& local, const HelloRail& remote) {
  return local.port.port->roce || remote.lid == 0 || local.grh_required || remote.grh_required ||
         !same_subnet(local.gid.gid, remote.gid);
}

std::uint16_t destination_lid(const Rail& local, const HelloRail& remote) {
  const std::uint16_t flid = flid_of(remote.gid);
  return flid != 0 && !same_subnet(local.gid.gid, remote.gid) ? flid : remote.lid;
}

ibv_qp_attr path_attributes(const Rail& local, const HelloRail& remote, QueueAddress to,
                            const QueueSettings& settings, std::uint32_t flow_label) {
  const Port& port = *local.port.port;
  ibv_qp_attr a{};
  a.qp_state = IBV_QPS_RTR;
  a.path_mtu = std::min(local.mtu, remote.mtu);
  a.dest_qp_num = to.qpn;
  a.rq_psn = to.psn;
  a.max_dest_rd_atomic = 1;
  a.min_rnr_timer = kMinRnrTimer;
  a.ah_attr.port_num = port.number;  // ours: the peer's number says nothing about this HCA
  const ServiceClass& service = settings.service(port.roce);
  a.ah_attr.sl = service.level;
  if (needs_global_header(local, remote)) {
    a.ah_attr.is_global = 1;
    a.ah_attr.grh.dgid = remote.gid;
    a.ah_attr.grh.sgid_index = static_cast<std::uint8_t>(local.gid.index);
    a.ah_attr.grh.hop_limit = 255;
    if (port.roce) a.ah_attr.grh.flow_label = flow_label;
    a.ah_attr.grh.traffic_class = service.traffic_class;
  }
  if (!port.roce) a.ah_attr.dlid = destination_lid(local, remote);
  return a;
}

}  // namespace twinpath
