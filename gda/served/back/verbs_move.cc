// How a back end leaves one queue pair for the other.
#include <algorithm>

#include "gda/served/back/verbs_back_end.h"
#include "plugin/base/log.h"

namespace twinpath::gda {

MovingQueue::UnderWay VerbsBackEnd::under_way() const {
  UnderWay all{issued(), finished()};
  for (std::uint64_t i = all.finished; i != all.issued; ++i) all.bytes += kept(i).bytes;
  return all;
}

void VerbsBackEnd::stop() {
  if (stopped() || !may_move()) return;
  partial_offset_ = 0;  // an operation that went in part goes again as a whole
  drain();
}

void VerbsBackEnd::skip() {
  change_path();
  drain();
}

void VerbsBackEnd::drain() {
  phase_ = Phase::stopped;
  path().pair->stop();
  // What is posted to a queue pair in error comes back last of all.
  if (post_probe(path().pair->qp(), WorkRequestId::of(setup_.tag, WorkRequestId::kLastSend), {}))
    return;
  TP_WARN("%s: a queue pair in error takes nothing more, so what it has done is not known",
          setup_.name.c_str());
  fail_unreachable();
}

void VerbsBackEnd::change_path() {
  if (paths_.next != nullptr) paths_.both[paths_.on].pair = paths_.next;
  paths_.other_ready = paths_.next != nullptr;
  paths_.next = nullptr;
  paths_.on = 1 - paths_.on;
}

bool VerbsBackEnd::resume(std::uint32_t taken) {
  // What waited for a flush is visible: this rank has fenced (port_moves.h).
  if (held_.done != 0) finish(std::max(held_.done, later_.done));
  held_ = later_ = {};
  const std::uint64_t done = finished_.load(std::memory_order_relaxed);
  const std::uint64_t end = issued_.load(std::memory_order_relaxed);
  std::uint64_t under_way = 0;
  for (std::uint64_t i = done; i != end; ++i) under_way += kept(i).is_signal() ? 1 : 0;
  const std::uint32_t applied = taken - static_cast<std::uint32_t>(signals_done_);
  if (phase_ != Phase::drained || applied > under_way) {
    TP_WARN("%s: the peer has taken %u signals, which cannot be: %llu are done, %llu under way",
            setup_.name.c_str(), taken, static_cast<unsigned long long>(signals_done_),
            static_cast<unsigned long long>(under_way));
    return false;
  }
  chain_.forget();
  probe_ = {};
  change_path();
  counted_->continue_at(signals_done_ + applied);
  rule_ = ReplayRule(applied);
  again_ = done;
  phase_ = Phase::replaying;
  replay();
  return true;
}

void VerbsBackEnd::replay() {
  const std::uint64_t end = issued_.load(std::memory_order_relaxed);
  for (; again_ != end; ++again_) {
    const Operation& operation = kept(again_);
    if (rule_.next(operation.kind) == Replay::applied)
      nothing(again_);
    else if (send(again_, operation) != Issued::accepted)
      return;
  }
  phase_ = Phase::serving;
  post();
}

void VerbsBackEnd::fail_unreachable() {
  if (dead()) return;
  unreachable_ = true;
  fail_all(Syndrome::retry_exceeded);
}

}  // namespace twinpath::gda
