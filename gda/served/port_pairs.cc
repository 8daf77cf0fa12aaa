// See port_pairs.h.
#include "gda/served/port_pairs.h"

#include <endian.h>

#include "plugin/base/log.h"

namespace twinpath::gda {

Result<PortPairs::Renewed> PortPairs::renew(std::size_t p, const TeamCore& core) const {
  std::string why;
  const auto now = core.devices->live(where_.rail.port, why);
  if (!now) {
    TP_INFO(net, "%s cannot be used again yet: %s", where_.rail.port.port->name.c_str(),
            why.c_str());
    return now.status();
  }
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

void PortPairs::stop(std::size_t p) const {
  pairs_[p].pair->stop();
  if (pairs_[p].far != nullptr) pairs_[p].far->stop();
}

Status PortPairs::raise(Renewed& ends, const QueueEnd& far, const std::string& peer, bool here) {
  if (ends.far == nullptr) return ends.pair->raise(far, peer, here);
  TP_TRY(ends.far->raise(ends.pair->end(), "this rank", true));
  return ends.pair->raise(ends.far->end(), peer, here);
}

bool post_immediate(ibv_qp* qp, std::uint64_t wr_id, std::uint32_t immediate,
                    const WrittenMemory* memory) {
  ibv_send_wr wr{};
  ibv_sge sge{};
  wr.wr_id = wr_id;
  wr.opcode = IBV_WR_RDMA_WRITE_WITH_IMM;
  wr.send_flags = IBV_SEND_SIGNALED;
  wr.imm_data = htobe32(immediate);
  if (memory != nullptr) {
    sge = memory->from;
    wr.sg_list = &sge;
    wr.num_sge = 1;
    wr.wr.rdma.remote_addr = memory->to;
    wr.wr.rdma.rkey = memory->rkey;
  }
  ibv_send_wr* bad = nullptr;
  return ibv_post_send(qp, &wr, &bad) == 0;
}

}  // namespace twinpath::gda
