// See port_pairs.h.
#include "gda/served/port_pairs.h"

#include <endian.h>

#include <algorithm>
#include <cerrno>

#include "plugin/base/log.h"
#include "plugin/base/reason_text.h"
#include "plugin/fabric/refusal.h"

namespace twinpath::gda {

Status PortPairs::register_memory(const TeamCore& core, void* at, std::size_t bytes, int access,
                                  const char* what) {
  errno = 0;
  ibv_mr* const mr = core.verbs().reg_mr_iova2(where_.rail.port.adapter->pd, at, bytes,
                                               reinterpret_cast<std::uintptr_t>(at), access);
  if (mr == nullptr) {
    const int error = errno;
    TP_WARN("%s cannot register %zu bytes %s: %s%s", where_.rail.port.port->name.c_str(), bytes,
            what, reason_text(error).c_str(), remedy_of(VerbsCall::register_host, error).c_str());
    return error == ENOMEM ? Status::no_memory : Status::system;
  }
  memory_ = own(mr, core.verbs().dereg_mr);
  return Status::ok;
}

void PortPairs::make_room(std::size_t pairs, const QueueSettings& made) {
  // The pace of renewals tries again, and nobody should wait for their thread.
  queue_ = made;
  queue_.retry = {};
  pairs_.resize(pairs);
  next_.resize(pairs);
}

Result<PortPairs::Renewed> PortPairs::renew(std::size_t p, const TeamCore& core) const {
  std::string why;
  const auto now = core.devices->live(where_.rail.port, why);
  if (!now) {
    TP_INFO(net, "%s cannot be used again yet: %s", where_.rail.port.port->name.c_str(),
            why.c_str());
    return now.status();
  }
  TP_TRY(renew_loops());
  const Rail rail = Rail::of(where_.rail.port, *now);
  Renewed made;
  for (auto* end : {&made.pair, &made.far}) {
    if (end == &made.far && pairs_[p].far == nullptr) break;
    auto pair = QueuePair::make(core.verbs(), rail, cq_.get(), queue_, where_.limits);
    if (!pair) return pair.status();
    *end = std::move(pair).take();
  }
  TP_TRY(give_receives(p, made.arrivals().qp()));
  return made;
}

bool PortPairs::loops_broken() const {
  return std::any_of(loops_.begin(), loops_.end(), [](const LoopPair* loop) {
    return loop != nullptr && loop->broken() && !loop->has_renewed();
  });
}

Status PortPairs::renew_loops() const {
  for (LoopPair* const loop : loops_)
    if (loop != nullptr) TP_TRY(loop->renew());
  return Status::ok;
}

bool PortPairs::stop(std::size_t p) const {
  const bool stopped = pairs_[p].pair->stop();
  return (pairs_[p].far == nullptr || pairs_[p].far->stop()) && stopped;
}

Status PortPairs::raise(Renewed& ends, const QueueEnd& far, const std::string& peer, bool here) {
  if (ends.far == nullptr) return ends.pair->raise(far, peer, here);
  TP_TRY(ends.far->raise(ends.pair->end(), "this rank", true));
  return ends.pair->raise(ends.far->end(), peer, here);
}

namespace {

bool post(ibv_qp* qp, ibv_send_wr& wr, const FarMemory* memory) {
  ibv_sge sge{};
  wr.send_flags = IBV_SEND_SIGNALED;
  if (memory != nullptr) {
    sge = memory->here;
    wr.sg_list = &sge;
    wr.num_sge = 1;
    wr.wr.rdma.remote_addr = memory->there;
    wr.wr.rdma.rkey = memory->rkey;
  }
  ibv_send_wr* bad = nullptr;
  return ibv_post_send(qp, &wr, &bad) == 0;
}

}  // namespace

bool post_immediate(ibv_qp* qp, std::uint64_t wr_id, std::uint32_t immediate,
                    const FarMemory* written) {
  ibv_send_wr wr{};
  wr.wr_id = wr_id;
  wr.opcode = IBV_WR_RDMA_WRITE_WITH_IMM;
  wr.imm_data = htobe32(immediate);
  return post(qp, wr, written);
}

bool post_read(ibv_qp* qp, std::uint64_t wr_id, const FarMemory& read) {
  ibv_send_wr wr{};
  wr.wr_id = wr_id;
  wr.opcode = IBV_WR_RDMA_READ;
  return post(qp, wr, &read);
}

}  // namespace twinpath::gda
