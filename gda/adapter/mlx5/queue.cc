#include "gda/adapter/mlx5/queue.h"

#include <cstring>

#include "plugin/base/log.h"
#include "plugin/base/random.h"

namespace twinpath::gda::mlx5 {

Result<Adapter::Made> AdapterQueue::make_cq() const {
  const BlockPlan& plan = memory_.plan();
  CqRequest cq;
  cq.place = {memory_.umem(), plan.cq(queue_), memory_.record_umem(), memory_.cq_record(queue_)};
  // Collapsed, too, it has the send queue's length: owner bits and the counts that WAITs await go
  // by it.
  cq.log_entries = plan.log_depth;
  cq.collapsed = plan.collapsed;
  cq.uar_page = page_.number();
  cq.eqn = adapter_.event_queue();
  return adapter_.create(create_cq(cq), "completion queue of the " + what_);
}

Result<AdapterQueue::End> AdapterQueue::make_end(std::uint64_t record, bool waits,
                                                 const std::string& what) const {
  const BlockPlan& plan = memory_.plan();
  QpRequest qp;
  qp.place = {memory_.umem(), plan.sq(queue_), memory_.record_umem(), record};
  qp.log_entries = plan.log_depth;
  qp.pd = adapter_.pd_number();
  qp.cqn = cq_.number;
  qp.uar_page = page_.number();
  // An adapter without the capability may have the bit reserved.  NCCL's companions do without it
  // everywhere: its store of the bit misses it.
  qp.waits = waits && adapter_.capabilities().waits;
  qp.adapters_clock = adapter_.capabilities().chooses_clock;
  auto pair = adapter_.create(create_qp(qp), what + what_);
  if (!pair) return pair.status();
  End made{std::move(pair).take(), random_24_bits()};
  Path path;
  path.port = adapter_.rail().port.port->number;
  path.pkey_index = adapter_.rail().pkey_index;
  TP_TRY(modify(made, to_init(made.qp.number, path), "RST2INIT", nullptr));
  return made;
}

Result<std::unique_ptr<AdapterQueue>> AdapterQueue::make(
    const Adapter& adapter, const QueueMemory& memory, const DoorbellPage& page, std::size_t queue,
    const QueueSettings& settings, bool waits, std::string what) {
  std::unique_ptr<AdapterQueue> made(
      new AdapterQueue(adapter, memory, page, queue, settings, std::move(what)));
  auto completions = made->make_cq();
  if (!completions) return completions.status();
  made->cq_ = std::move(completions).take();
  auto own = made->make_end(memory.qp_record(queue), waits, "queue pair of the ");
  if (!own) return own.status();
  made->own_ = std::move(own).take();
  return made;
}

// It never sends, so nobody rings it and nothing is read from its queue: that may be the same
// memory. Its record is the completion queue's, which stays zero, because an adapter that has lost
// doorbells looks at every record.
Status AdapterQueue::loop() {
  auto answering = make_end(memory_.cq_record(queue_), false, "queue pair that answers the ");
  if (!answering) return answering.status();
  answering_ = std::move(answering).take();
  TP_TRY(raise(answering_, told(own_), true));
  return raise(own_, told(answering_), true);
}

QueueEnd AdapterQueue::told(const End& own) const {
  QueueEnd end;
  end.rail = adapter_.rail().hello();
  end.queue = {own.qp.number, own.psn};
  end.reads_in = reads_in(adapter_.capabilities());
  return end;
}

Status AdapterQueue::modify(const End& end, const Command& command, const char* step,
                            const QueueEnd* far) const {
  char text[48];
  (void)std::snprintf(text, sizeof text, "%s of queue pair 0x%x, ", step, end.qp.number);
  std::string what = text + what_;
  if (far != nullptr)
    what += ", to " + far->rail.port + " there (GID index " + std::to_string(far->rail.gid_index) +
            ", " + gid_text(far->rail.gid) + ")";
  return adapter_.modify(end.qp.object.get(), command, what);
}

Status AdapterQueue::raise(const End& end, const QueueEnd& far, bool here) const {
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
  const std::uint32_t number = end.qp.number;
  Joint joint = make_joint(rail, settings_, adapter_.capabilities(), number, end.psn, far);
  TP_TRY(find_mac(adapter_, far, "the " + what_, joint.path));
  TP_TRY(modify(end, to_receive(number, joint), "INIT2RTR", &far));
  return modify(end, to_send(number, joint), "RTR2RTS", &far);
}

Result<QueueState> AdapterQueue::look() const {
  auto answer = adapter_.query(own_.qp.object.get(), query_qp(qpn()), qp::kBytes,
                               "asking for the state of the " + what_);
  if (!answer) return answer.status();
  return static_cast<QueueState>(read_bits(*answer, qp::kContext[qp::state]));
}

Status AdapterQueue::stop() { return modify(own_, to_error(qpn()), "2ERR", nullptr); }

}  // namespace twinpath::gda::mlx5
