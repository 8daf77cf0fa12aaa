// See queue_pair.h.
#include "gda/connect/queue_pair.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <thread>

#include "plugin/base/log.h"
#include "plugin/base/random.h"
#include "plugin/base/reason_text.h"
#include "plugin/rdma/devices.h"
#include "plugin/rdma/flow_label.h"
#include "plugin/rdma/queue_pair.h"

namespace twinpath::gda {
namespace {

constexpr int kMostReads = 16;  // more gains nothing and takes memory of the adapter

std::uint8_t reads(int offered) {
  return static_cast<std::uint8_t>(std::clamp(offered, 1, kMostReads));
}

// NCCL waits for all ranks here anyway, so this thread may sleep.
template <class F>
int patiently(const RetrySettings& settings, F move) {
  ModifyRetry retry(settings);
  for (;;) {
    const int error = move();
    if (error == 0 || !retry.failed(error, now_ns())) return error;
    std::this_thread::sleep_for(std::chrono::nanoseconds(retry.due_in(now_ns())));
  }
}

}  // namespace

void encode_end(const QueueEnd& end, Writer& out) {
  out.text(end.rail.port);
  out.integer(end.rail.lid);
  out.integer(static_cast<std::uint8_t>(end.rail.mtu));
  out.raw(end.rail.gid.raw, sizeof end.rail.gid.raw);
  out.integer(end.rail.gid_index);
  out.integer(encode_port_flags(end.rail));
  out.integer(end.queue.qpn);
  out.integer(end.queue.psn);
  out.integer(end.reads_in);
}

QueueEnd decode_end(Reader& in) {
  QueueEnd end;
  end.rail.port = in.text();
  end.rail.lid = in.integer<std::uint16_t>();
  end.rail.mtu =
      static_cast<ibv_mtu>(std::clamp<int>(in.integer<std::uint8_t>(), IBV_MTU_256, IBV_MTU_4096));
  in.raw(end.rail.gid.raw, sizeof end.rail.gid.raw);
  end.rail.gid_index = in.integer<std::uint8_t>();
  decode_port_flags(in.integer<std::uint8_t>(), end.rail);
  end.queue.qpn = in.integer<std::uint32_t>() & 0xffffff;
  end.queue.psn = in.integer<std::uint32_t>() & 0xffffff;
  end.reads_in = reads(in.integer<std::uint8_t>());
  return end;
}

Result<AdapterLimits> adapter_limits(const Verbs& verbs, const Rail& rail) {
  ibv_device_attr attr{};
  if (const int error = verbs.query_device(rail.port.adapter->context, &attr); error != 0) {
    TP_WARN("%s cannot be queried: %s (errno %d); see dmesg", rail.port.port->name.c_str(),
            std::strerror(error), error);
    return Status::system;
  }
  AdapterLimits limits;
  limits.atomics = attr.atomic_cap != IBV_ATOMIC_NONE;
  limits.atomics_global = attr.atomic_cap == IBV_ATOMIC_GLOB;
  limits.reads_in = reads(attr.max_qp_rd_atom);
  limits.reads_out = reads(attr.max_qp_init_rd_atom);
  limits.max_work_requests = std::max(attr.max_qp_wr, 1);
  limits.max_cqes = std::max(attr.max_cqe, 1);
  return limits;
}

Result<std::unique_ptr<QueuePair>> QueuePair::make(const Verbs& verbs, const Rail& rail, ibv_cq* cq,
                                                   const QueueSettings& settings,
                                                   const AdapterLimits& limits) {
  std::unique_ptr<QueuePair> pair(new QueuePair(verbs, rail, settings, limits));
  const char* name = rail.port.port->name.c_str();
  auto made = make_queue_pair(verbs, rail.port, cq, settings, pair->inline_bytes_);
  if (!made) return made.status();
  pair->qp_ = std::move(made).take();
  ibv_qp* const qp = pair->qp_.get();
  pair->psn_ = random_24_bits();
  rail.port.adapter->events.forget_queue(qp->qp_num);
  const int error =
      patiently(settings.retry, [&] { return move_to_init(verbs, qp, rail, settings); });
  if (error == 0) return pair;
  TP_WARN(
      "%s: queue pair cannot go to INIT: %s; the partition is index %d "
      "(NCCL_IB_PKEY, NCCL_IB_PKEY_VALUE)",
      name, reason_text(error).c_str(), rail.pkey_index);
  return Status::system;
}

QueuePair::~QueuePair() {
  if (qp_ == nullptr) return;
  const std::uint32_t qpn = qp_->qp_num;
  qp_.reset();
  rail_.port.adapter->events.forget_queue(qpn);
}

QueueEnd QueuePair::end() const {
  QueueEnd end;
  end.rail = rail_.hello();
  end.queue = {qp_->qp_num, psn_};
  end.reads_in = limits_.reads_in;
  return end;
}

int QueuePair::to_rtr(const QueueEnd& far) {
  const std::uint32_t label = settings_.flow_labels ? flow_label(qp_->qp_num, far.queue.qpn, 0) : 0;
  ibv_qp_attr a = path_attributes(rail_, far.rail, far.queue, settings_, label);
  a.max_dest_rd_atomic = limits_.reads_in;
  return move_to_rtr(verbs_, qp_.get(), a);
}

int QueuePair::to_rts(const QueueEnd& far) {
  return move_to_rts(verbs_, qp_.get(), settings_, psn_, std::min(limits_.reads_out, far.reads_in));
}

Status QueuePair::raise(const QueueEnd& far, const std::string& peer, bool here) {
  // An adapter takes its own address for itself: writes would stay on this host.
  if (!here && far.rail.roce &&
      std::memcmp(rail_.gid.gid.raw, far.rail.gid.raw, sizeof far.rail.gid.raw) == 0) {
    TP_WARN(
        "%s here and %s of %s have the same address %s (GID index %d and %d), which reaches "
        "neither "
        "from the other; choose another with NCCL_IB_ADDR_RANGE or NCCL_IB_GID_INDEX, or take it "
        "off the interfaces",
        rail_.port.port->name.c_str(), far.rail.port.c_str(), peer.c_str(),
        gid_text(rail_.gid.gid).c_str(), rail_.gid.index, far.rail.gid_index);
    return Status::system;
  }
  const char* step = "RTR";
  int error = patiently(settings_.retry, [&] { return to_rtr(far); });
  if (error == 0) {
    step = "RTS";
    error = patiently(settings_.retry, [&] { return to_rts(far); });
  }
  if (error == 0) return Status::ok;
  TP_WARN(
      "%s (GID index %d, %s) cannot reach %s at %s (GID index %d, %s): queue pair to %s gives %s; "
      "check routes between the two and NCCL_IB_GID_INDEX",
      rail_.port.port->name.c_str(), rail_.gid.index, gid_text(rail_.gid.gid).c_str(),
      far.rail.port.c_str(), peer.c_str(), far.rail.gid_index, gid_text(far.rail.gid).c_str(), step,
      reason_text(error).c_str());
  return Status::system;
}

bool QueuePair::stop() { return move_to_error(verbs_, qp_.get()) == 0; }

}  // namespace twinpath::gda
