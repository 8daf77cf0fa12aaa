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
  bool is = work.bytes != 0 && rule.next(kind) == Replay::applied;
  if (work.signals) is = rule.next(OperationKind::fetch_add) == Replay::applied;
  return is;
}

}  // namespace

void Queue::stop() {
  if (!stopped() && may_move()) drain();
}

void Queue::skip() {
  change_path();
  drain();
}

void Queue::drain() {
  phase_ = Phase::stopped;
  path().pair->stop();
  // What is posted to a queue pair in error comes back last of all.
  if (post_probe(path().pair->qp(), id(WorkRequestId::kLastSend), {})) return;
  TP_WARN("%s: a queue pair in error takes nothing more, so what it has done is not known",
          setup_.name.c_str());
  fail(Status::remote);
}

void Queue::change_path() {
  if (paths_.next != nullptr) path().pair = paths_.next;
  paths_.other_ready = paths_.next != nullptr;
  paths_.next = nullptr;
  paths_.on = 1 - paths_.on;
}

bool Queue::resume(std::uint32_t taken) {
  // What has come and waited for a flush is visible, for this rank has fenced (port_moves.h), and
  // it does not go again.
  tell(true);
  std::uint64_t under_way = 0;
  for (std::uint64_t n = work_.first(); n != posted_; ++n) under_way += work_[n].work.signals;
  const std::uint32_t signals = taken - static_cast<std::uint32_t>(signals_done_);
  if (!drained() || signals > under_way) {
    TP_WARN("%s: the peer has taken %u signals, which cannot be: %llu are done, %llu under way",
            setup_.name.c_str(), taken, static_cast<unsigned long long>(signals_done_),
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
  change_path();
  phase_ = Phase::serving;
  advance();
  return true;
}

MovingQueue::UnderWay Queue::under_way() const {
  UnderWay all{next_mark_, first_mark_, 0};
  if (all.issued == all.finished) return all;
  for (std::uint64_t n = work_.first(); n != posted_; ++n) all.bytes += work_[n].work.bytes;
  if (posted_ != work_.end()) all.bytes += work_[posted_].posted;
  return all;
}

}  // namespace twinpath::gda::rma
