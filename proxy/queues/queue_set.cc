#include "proxy/queues/queue_set.h"

#include <arpa/inet.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

#include "plugin/base/log.h"
#include "proxy/queues/completion_text.h"

namespace twinpath {
namespace {

// What the peer must be able to do when it runs out of receives: try again for ever, first after
// 0.64 ms.  Our credits make it a rare accident.
constexpr std::uint8_t kRnrRetryForever = 7;
constexpr std::uint8_t kMinRnrTimer = 12;

bool same_subnet(const ibv_gid& a, const ibv_gid& b) { return std::memcmp(a.raw, b.raw, 8) == 0; }

const char* raise_remedy(int error, bool roce) {
  switch (error) {
    case ETIMEDOUT:
      return roce ? "the peer's GID does not resolve: check routes and VLANs between the two "
                    "interfaces, or choose another NCCL_IB_GID_INDEX"
                  : "no path to the peer: check the subnet manager and that both ports are ACTIVE";
    case EINVAL:
      return "the GID index, MTU or address is not valid here: check NCCL_IB_GID_INDEX, "
             "NCCL_IB_ROCE_VERSION_NUM and that both GIDs are of one family";
    case ENETUNREACH:
    case EHOSTUNREACH:
      return "no route from this GID to the peer's: check NCCL_IB_GID_INDEX";
    default:
      return "see the kernel log (dmesg) of this host";
  }
}

}  // namespace

std::string gid_text(const ibv_gid& gid) {
  char text[INET6_ADDRSTRLEN] = {};
  (void)::inet_ntop(AF_INET6, gid.raw, text, sizeof text);
  return text;
}

HelloRail Rail::hello() const {
  const Port& p = *port.port;
  return {p.name,
          lid,
          mtu,
          gid.gid,
          static_cast<std::uint8_t>(gid.index),
          p.roce,
          static_cast<std::uint32_t>(std::max(p.speed_mbps, 0))};
}

ibv_qp_attr path_attributes(const Rail& local, const HelloRail& remote, QueueAddress to,
                            const QueueSettings& settings) {
  const Port& port = *local.port.port;
  ibv_qp_attr a{};
  a.qp_state = IBV_QPS_RTR;
  a.path_mtu = std::min(local.mtu, remote.mtu);
  a.dest_qp_num = to.qpn;
  a.rq_psn = to.psn;
  a.max_dest_rd_atomic = 1;
  a.min_rnr_timer = kMinRnrTimer;
  a.ah_attr.port_num = port.number;  // ours: the peer's number says nothing about this HCA
  a.ah_attr.sl = settings.service_level;
  // Ethernet always needs the global header; InfiniBand across subnets or without a LID.
  if (port.roce || remote.lid == 0 || !same_subnet(local.gid.gid, remote.gid)) {
    a.ah_attr.is_global = 1;
    a.ah_attr.grh.dgid = remote.gid;
    a.ah_attr.grh.sgid_index = static_cast<std::uint8_t>(local.gid.index);
    a.ah_attr.grh.hop_limit = 255;
    a.ah_attr.grh.traffic_class = settings.traffic_class;
  }
  if (!port.roce) a.ah_attr.dlid = remote.lid;
  return a;
}

Result<std::unique_ptr<QueueSet>> QueueSet::make(std::shared_ptr<CompletionHub> hub,
                                                 std::shared_ptr<Devices> devices,
                                                 std::vector<Rail> rails, int count,
                                                 const QueueSettings& settings) {
  std::unique_ptr<QueueSet> set(
      new QueueSet(std::move(hub), std::move(devices), std::move(rails), settings));
  auto id = set->hub_->add_comm();
  if (!id) return id.status();
  set->comm_ = *id;
  set->registered_ = true;
  set->queues_.reserve(static_cast<std::size_t>(count));
  for (int q = 0; q < count; ++q) TP_TRY(set->add_queue(q));
  return set;
}

Status QueueSet::add_queue(int index) {
  const int rail = index % static_cast<int>(rails_.size());
  const RailPort& port = rails_[static_cast<std::size_t>(rail)].port;
  Queue queue;
  queue.rail = rail;
  queue.psn = random_24_bits();
  auto engine = hub_->reserve(port.adapter->context, settings_.send_depth + settings_.recv_depth);
  if (!engine) return engine.status();
  queue.engine = *engine;
  queues_.push_back(std::move(queue));
  Queue& q = queues_.back();
  if (std::find(engines_.begin(), engines_.end(), q.engine) == engines_.end())
    engines_.push_back(q.engine);

  // Devices differ in how much they take inline, and say so only by refusing.
  ibv_qp* qp = nullptr;
  int error = 0;
  for (int inline_bytes : {settings_.inline_bytes, std::min(settings_.inline_bytes, 64),
                           std::min(settings_.inline_bytes, 28), 0}) {
    ibv_qp_init_attr init{};
    init.send_cq = init.recv_cq = q.engine->cq();
    init.qp_type = IBV_QPT_RC;
    init.cap.max_send_wr = static_cast<std::uint32_t>(settings_.send_depth);
    init.cap.max_recv_wr = static_cast<std::uint32_t>(settings_.recv_depth);
    init.cap.max_send_sge = init.cap.max_recv_sge = 1;
    init.cap.max_inline_data = static_cast<std::uint32_t>(inline_bytes);
    errno = 0;
    qp = devices_->verbs().create_qp(port.adapter->pd, &init);
    error = errno;
    if (qp != nullptr) q.inline_bytes = init.cap.max_inline_data;
    if (qp != nullptr || error != EINVAL || inline_bytes == 0) break;
  }
  if (qp == nullptr) {
    TP_WARN("%s cannot make a queue pair (%d sends, %d receives): %s (errno %d)%s",
            port.port->name.c_str(), settings_.send_depth, settings_.recv_depth,
            std::strerror(error), error, object_remedy(error));
    return error == ENOMEM ? Status::no_memory : Status::system;
  }
  q.qp = own(qp, devices_->verbs().destroy_qp);
  port.adapter->events.forget_queue(qp->qp_num);

  ibv_qp_attr a{};
  a.qp_state = IBV_QPS_INIT;
  a.pkey_index = settings_.pkey_index;
  a.port_num = port.port->number;
  a.qp_access_flags = static_cast<unsigned>(settings_.access);
  error = devices_->verbs().modify_qp(
      qp, &a, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
  if (error != 0) {
    TP_WARN("%s: queue pair cannot go to INIT: %s (errno %d); NCCL_IB_PKEY is index %d",
            port.port->name.c_str(), std::strerror(error), error, settings_.pkey_index);
    return Status::system;
  }
  return Status::ok;
}

QueueSet::~QueueSet() {
  if (registered_) hub_->drop_comm(comm_);
  const int share = settings_.send_depth + settings_.recv_depth;
  for (Queue& q : queues_) {
    Adapter* adapter = rails_[static_cast<std::size_t>(q.rail)].port.adapter;
    if (q.qp != nullptr) {
      const std::uint32_t qpn = q.qp->qp_num;
      q.qp.reset();
      adapter->events.forget_queue(qpn);
    }
    if (q.engine != nullptr) hub_->release(q.engine, share);
  }
}

Status QueueSet::raise(const std::vector<HelloRail>& remote, const std::vector<QueueAddress>& to,
                       std::string& why) {
  for (std::size_t i = 0; i < queues_.size(); ++i) {
    Queue& q = queues_[i];
    const Rail& local = rails_[static_cast<std::size_t>(q.rail)];
    q.remote_rail = static_cast<int>(i % remote.size());
    const HelloRail& peer = remote[static_cast<std::size_t>(q.remote_rail)];
    q.speed_mbps = std::min(static_cast<std::uint32_t>(std::max(local.port.port->speed_mbps, 0)),
                            peer.speed_mbps);
    ibv_qp_attr a = path_attributes(local, peer, to[i], settings_);
    int error = devices_->verbs().modify_qp(q.qp.get(), &a,
                                            IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU |
                                                IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                                                IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER);
    const char* step = "RTR";
    if (error == 0) {
      a = {};
      a.qp_state = IBV_QPS_RTS;
      a.timeout = settings_.timeout;
      a.retry_cnt = settings_.retry_count;
      a.rnr_retry = kRnrRetryForever;
      a.sq_psn = q.psn;
      a.max_rd_atomic = 1;
      error = devices_->verbs().modify_qp(q.qp.get(), &a,
                                          IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT |
                                              IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
                                              IBV_QP_MAX_QP_RD_ATOMIC);
      step = "RTS";
    }
    if (error == 0) continue;
    // The C library sets errno and providers return it; some do only one of both.
    const int code = error > 0 ? error : errno;
    why = local.port.port->name + " (GID index " + std::to_string(local.gid.index) + ", " +
          gid_text(local.gid.gid) + ") cannot reach " + peer.port + " (GID index " +
          std::to_string(peer.gid_index) + ", " + gid_text(peer.gid) + ", LID " +
          std::to_string(peer.lid) + "): queue pair to " + step + " gives " + std::strerror(code) +
          " (errno " + std::to_string(code) + "); " + raise_remedy(code, local.port.port->roce);
    return Status::system;
  }
  return Status::ok;
}

std::vector<QueueAddress> QueueSet::addresses() const {
  std::vector<QueueAddress> out;
  for (const Queue& q : queues_) out.push_back({q.qp->qp_num, q.psn});
  return out;
}

const Queue* QueueSet::find(std::uint32_t qpn) const {
  for (const Queue& q : queues_)
    if (q.qp != nullptr && q.qp->qp_num == qpn) return &q;
  return nullptr;
}

}  // namespace twinpath
