#include "gda/adapter/mlx5/path.h"

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>

#include "plugin/base/log.h"

namespace twinpath::gda::mlx5 {
namespace {

constexpr unsigned kMostLogReads = 4;  // 16: more gains nothing and takes memory of the adapter
constexpr unsigned kLogLongest = 30;   // messages of kernels are cut there
constexpr unsigned kMtuNames = 5;      // IBV_MTU_256 to IBV_MTU_4096 are 1 to 5, in commands, too

// Switches choose among equal ways by it: a different one for each pair of queues, the same for
// both directions of a pair.
std::uint16_t udp_port(const Capabilities& caps, std::uint32_t one, std::uint32_t other) {
  const std::uint32_t mixed = (std::min(one, other) * 0x9e3779b1u) ^ (std::max(one, other) * 31u);
  const std::uint32_t ports = std::uint32_t{caps.last_udp_port} - caps.first_udp_port + 1;
  return static_cast<std::uint16_t>(caps.first_udp_port + (mixed ^ mixed >> 15) % ports);
}

unsigned log_at_most(unsigned reads) { return std::bit_width(std::max(reads, 1u)) - 1u; }

}  // namespace

std::uint8_t reads_in(const Capabilities& caps) {
  return static_cast<std::uint8_t>(1u << std::min(caps.log_reads_in, kMostLogReads));
}

Joint make_joint(const Rail& rail, const QueueSettings& settings, const Capabilities& caps,
                 std::uint32_t qpn, std::uint32_t psn, const QueueEnd& far) {
  Joint j;
  Path& p = j.path;
  p.port = rail.port.port->number;
  p.pkey_index = rail.pkey_index;
  p.ethernet = rail.port.port->roce;
  const ServiceClass& service = settings.service(p.ethernet);
  p.service_level = service.level;
  p.global = needs_global_header(rail, far.rail);
  if (!p.ethernet) p.lid = destination_lid(rail, far.rail);
  if (p.global) {
    std::copy_n(far.rail.gid.raw, p.gid.size(), p.gid.begin());
    p.gid_index = static_cast<std::uint8_t>(rail.gid.index);
    p.hop_limit = 255;
    p.traffic_class = service.traffic_class;
  }
  if (p.ethernet) p.udp_port = udp_port(caps, qpn, far.queue.qpn);
  j.mtu = std::clamp<unsigned>(std::min(rail.mtu, far.rail.mtu), 1, kMtuNames);
  j.log_message = std::min(caps.log_max_message, kLogLongest);
  j.far_qpn = far.queue.qpn;
  j.far_psn = far.queue.psn;
  j.psn = psn;
  j.log_reads_in = std::min(caps.log_reads_in, kMostLogReads);
  j.log_reads_out = std::min({caps.log_reads_out, kMostLogReads, log_at_most(far.reads_in)});
  j.timeout = settings.timeout;
  j.retry_count = settings.retry_count;
  return j;
}

Status find_mac(const Adapter& adapter, const QueueEnd& far, const std::string& peer, Path& path) {
  if (!path.ethernet) return Status::ok;
  ibv_ah_attr attr{};
  attr.port_num = path.port;
  attr.is_global = 1;
  attr.sl = path.service_level;
  attr.grh.dgid = far.rail.gid;
  attr.grh.sgid_index = path.gid_index;
  attr.grh.hop_limit = path.hop_limit;
  attr.grh.traffic_class = path.traffic_class;
  errno = 0;
  const Owned<ibv_ah> ah =
      own(adapter.verbs().create_ah(adapter.pd(), &attr), adapter.verbs().destroy_ah);
  int error = ah == nullptr ? errno : 0;
  mlx5dv_ah view{};
  if (error == 0 && ah != nullptr) {
    mlx5dv_obj obj{};
    obj.ah = {ah.get(), &view};
    error = adapter.mlx5().init_obj(&obj, MLX5DV_OBJ_AH);
  }
  if (ah != nullptr && error == 0 && view.av != nullptr) {
    std::copy_n(view.av->rmac, path.mac.size(), path.mac.begin());
    return Status::ok;
  }
  TP_WARN(
      "%s (GID index %d, %s) finds no way to %s at %s (%s): %s (errno %d); check routes and VLANs "
      "between the two, and NCCL_IB_GID_INDEX",
      adapter.name(), path.gid_index, gid_text(adapter.rail().gid.gid).c_str(),
      far.rail.port.c_str(), peer.c_str(), gid_text(far.rail.gid).c_str(), std::strerror(error),
      error);
  return Status::system;
}

}  // namespace twinpath::gda::mlx5
