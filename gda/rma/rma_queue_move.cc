// How a queue leaves one queue pair for the other; gda/served/back/replay.h says what it posts
// again.
#include "gda/rma/rma_queue.h"
#include "gda/served/back/replay.h"
#include "plugin/base/log.h"

namespace twinpath::gda::rma {
namespace {

// Whether it has been carried out.
bool applied(const Work& work, ReplayRule& rule) {
  const auto kind = work.kind == Work::Kind::read ? OperationKind::read : OperationKind::write;
  bool is = work.bytes != 0 && rule.next(kind, false) == Replay::applied;
  if (work.signals) is = rule.next(OperationKind::fetch_add, true) == Replay::applied;
  return is;
}

}  // namespace

bool Queue::ask_over_other() {
  return post_probe(other().pair->qp(), id(WorkId::What::question), other().probed);
}

void Queue::stop() {
  if (stopped() || !may_move()) return;
  phase_ = Phase::stopped;
  path().pair->stop();
  // What is posted to a queue pair in error comes back last of all.
  if (post_probe(path().pair->qp(), id(WorkId::What::last_send), {})) return;
  TP_WARN("%s: a queue pair in error takes nothing more, so what it has done is not known",
          setup_.name.c_str());
  fail(Status::remote);
}

bool Queue::tell_taken(std::uint64_t taken) {
  std::uint8_t* const at = setup_.scratch + setup_.slots * kScratchSlot;
  SignalMessage{0, 0, taken}.encode(at);
  ibv_sge sge{reinterpret_cast<std::uintptr_t>(at), SignalMessage::kBytes, other().scratch_lkey};
  ibv_send_wr wr{};
  wr.wr_id = id(WorkId::What::taken);
  wr.opcode = IBV_WR_SEND;
  wr.send_flags = IBV_SEND_SIGNALED;
  wr.sg_list = &sge;
  wr.num_sge = 1;
  ibv_send_wr* bad = nullptr;
  return ibv_post_send(other().pair->qp(), &wr, &bad) == 0;
}

bool Queue::resume(std::uint64_t taken) {
  std::uint64_t under_way = 0;
  for (std::uint64_t n = work_.first(); n != posted_; ++n) under_way += work_[n].work.signals;
  const std::uint64_t signals = taken - signals_done_;
  if (!drained() || signals > under_way) {
    TP_WARN("%s: the peer has taken %llu signals, which cannot be: %llu are done, %llu under way",
            setup_.name.c_str(), static_cast<unsigned long long>(taken),
            static_cast<unsigned long long>(signals_done_),
            static_cast<unsigned long long>(under_way));
    return false;
  }
  ReplayRule rule(signals);
  for (std::uint64_t n = work_.first(); n != posted_; ++n) {
    Item& item = work_[n];
    item.arrived = applied(item.work, rule);
    item.posted = item.arrived ? item.work.bytes : 0;
  }
  // What went in part goes again as a whole.
  if (posted_ != work_.end()) work_[posted_].posted = 0;
  posted_ = work_.first();
  in_flight_ = unmarked_ = slot_ = 0;
  first_mark_ = next_mark_ = 0;
  probe_ = {};
  on_ = 1 - on_;
  other_ready_ = false;
  phase_ = Phase::serving;
  advance();
  return true;
}

}  // namespace twinpath::gda::rma
