#include "gda/mlx5/queue.h"

#include <cstring>

#include "plugin/base/log.h"
#include "proxy/wire/handle.h"

namespace twinpath::gda::mlx5 {

Result<std::unique_ptr<AdapterQueue>> AdapterQueue::make(
    const Adapter& adapter, const QueueMemory& memory, const DoorbellPage& page, std::size_t queue,
    const QueueSettings& settings, bool waits, std::string what) {
  std::unique_ptr<AdapterQueue> made(new AdapterQueue(adapter, settings, std::move(what)));
  const BlockPlan& plan = memory.plan();
  CqRequest cq;
  cq.place = {memory.umem(), plan.cq(queue), memory.record_umem(), memory.cq_record(queue)};
  // Collapsed, too, it has the send queue's length: owner bits and the counts that WAITs await go
  // by it.
  cq.log_entries = plan.log_depth;
  cq.collapsed = plan.collapsed;
  cq.uar_page = page.number();
  cq.eqn = adapter.event_queue();
  auto completions = adapter.create(create_cq(cq), "completion queue of the " + made->what_);
  if (!completions) return completions.status();
  made->cq_ = std::move(completions).take();

  QpRequest qp;
  qp.place = {memory.umem(), plan.sq(queue), memory.record_umem(), memory.qp_record(queue)};
  qp.log_entries = plan.log_depth;
  qp.pd = adapter.pd_number();
  qp.cqn = made->cq_.number;
  qp.uar_page = page.number();
  // An adapter without the capability may have the bit reserved.  NCCL's companions do without it
  // everywhere: its store of the bit misses it.
  qp.waits = waits && adapter.capabilities().waits;
  qp.adapters_clock = adapter.capabilities().chooses_clock;
  auto pair = adapter.create(create_qp(qp), "queue pair of the " + made->what_);
  if (!pair) return pair.status();
  made->qp_ = std::move(pair).take();
  made->psn_ = random_24_bits();

  Path path;
  path.port = adapter.rail().port.port->number;
  path.pkey_index = adapter.rail().pkey_index;
  TP_TRY(made->modify(to_init(made->qpn(), path), "RST2INIT", nullptr));
  return made;
}

QueueEnd AdapterQueue::end() const {
  QueueEnd end;
  end.rail = adapter_.rail().hello();
  end.queue = {qp_.number, psn_};
  end.reads_in = reads_in(adapter_.capabilities());
  return end;
}

Status AdapterQueue::modify(const Command& command, const char* step, const QueueEnd* far) const {
  char text[32];
  (void)std::snprintf(text, sizeof text, "%s of queue pair 0x%x, ", step, qp_.number);
  std::string what = text + what_;
  if (far != nullptr)
    what += ", to " + far->rail.port + " there (GID index " + std::to_string(far->rail.gid_index) +
            ", " + gid_text(far->rail.gid) + ")";
  return adapter_.modify(qp_.object.get(), command, what);
}

Status AdapterQueue::raise(const QueueEnd& far, bool here) {
  const Rail& rail = adapter_.rail();
  if (far.rail.roce != rail.port.port->roce) {
    TP_WARN("%s is %s and %s, for the %s, is not: they cannot be joined; check NCCL_IB_HCA",
            adapter_.name(), rail.port.port->roce ? "Ethernet" : "InfiniBand",
            far.rail.port.c_str(), what_.c_str());
    return Status::system;
  }
  if (rail.port.port->roce && rail.gid.roce_version == 1) {
    TP_WARN(
        "%s, %s: GID index %d is of RoCE v1, and RoCE v2 is needed; set "
        "NCCL_IB_ROCE_VERSION_NUM=2 or another NCCL_IB_GID_INDEX",
        adapter_.name(), what_.c_str(), rail.gid.index);
    return Status::unsupported;
  }
  // An adapter takes its own address for itself: writes would stay on this host.
  if (!here && rail.port.port->roce &&
      std::memcmp(rail.gid.gid.raw, far.rail.gid.raw, sizeof far.rail.gid.raw) == 0) {
    TP_WARN(
        "%s here and %s, for the %s, have the same address %s (GID index %d and %d), which reaches "
        "neither from the other; choose another with NCCL_IB_ADDR_RANGE or NCCL_IB_GID_INDEX, or "
        "take it off the interfaces",
        adapter_.name(), far.rail.port.c_str(), what_.c_str(), gid_text(rail.gid.gid).c_str(),
        rail.gid.index, far.rail.gid_index);
    return Status::system;
  }
  Joint joint = make_joint(rail, settings_, adapter_.capabilities(), qp_.number, psn_, far);
  TP_TRY(find_mac(adapter_, far, "the " + what_, joint.path));
  TP_TRY(modify(to_receive(qp_.number, joint), "INIT2RTR", &far));
  return modify(to_send(qp_.number, joint), "RTR2RTS", &far);
}

Result<QueueState> AdapterQueue::look() const {
  auto answer = adapter_.query(qp_.object.get(), query_qp(qp_.number), qp::kBytes,
                               "asking for the state of the " + what_);
  if (!answer) return answer.status();
  return static_cast<QueueState>(read_bits(*answer, qp::kContext[qp::state]));
}

Status AdapterQueue::stop() { return modify(to_error(qp_.number), "2ERR", nullptr); }

}  // namespace twinpath::gda::mlx5
