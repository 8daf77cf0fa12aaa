// How a context comes to the mode of each of its peers: what was planned (modes.h), and whether
// the peer's signals can be reached.
#include "gda/served/served_context.h"
#include "plugin/base/log.h"
#include "plugin/base/peer_modes.h"

namespace twinpath::gda {

ServedContext::MainQueue::MainQueue(CqeWriter& cq, const VerbsBackEndSetup& back,
                                    const WorkQueueSetup& front, const WorkQueue::FindCq& find,
                                    std::optional<SoftBackEndSetup> setup)
    : back_end(back),
      soft([&] {
        if (setup) setup->verbs = &back_end;
        return setup ? std::make_unique<SoftBackEnd>(*setup) : nullptr;
      }()),
      queue(front, soft != nullptr ? static_cast<BackEnd&>(*soft) : back_end, cq, find) {
  back_end.attach(queue);
  if (soft != nullptr) soft->attach(queue);
}

void ServedContext::reach_signals(int rank, const TableOffer& offer) {
  Peer& p = peer(rank);
  if (!p.direct_wanted) return;
  p.direct = offer.same_process() || shape_.signals == 0;
  if (p.direct) return;
  p.table = MappedTable::open(offer, p.not_direct);
  p.direct = p.table != nullptr && p.table->bytes() >= p.signals.signals_bytes;
}

ServedContext::Bytes ServedContext::directness() const {
  Bytes out;
  for (const Peer& p : peers_) out.push_back(p.direct ? 1 : 0);
  return out;
}

// Both ends of a pair do the same: the lesser of what they can.
void ServedContext::settle_modes(const std::vector<Bytes>& from) {
  const auto own = static_cast<std::size_t>(core_->rank());
  for (std::size_t r = 0; r < peers_.size(); ++r) {
    Peer& p = peers_[r];
    const bool theirs = from[r].size() == peers_.size() && from[r][own] != 0;
    if (!p.direct_wanted || (p.direct && theirs)) continue;
    if (p.direct) p.not_direct = "it cannot reach the signals of this rank";
    p.direct = false;
  }
  for (auto& main : mains_) {
    if (main == nullptr || main->soft == nullptr) continue;
    if (peer(main->queue.peer()).direct) continue;
    main->soft->step_aside();
    if (core_->second != nullptr && core_->second->use == SecondUse::either)
      (void)core_->second->lack("a rank's signals are not reached");
  }
}

void ServedContext::log_peers() const {
  const std::string gpu =
      core_->gpu >= 0 ? "GPU " + std::to_string(core_->gpu) : std::string("the CPU");
  for (int r = 0; r < shape_.ranks; ++r) {
    if (!used(r)) continue;
    const auto at = static_cast<std::size_t>(r);
    const Peer& p = peers_[at];
    const std::string does =
        p.direct ? "its engine executes what " + gpu + " writes" : "a CPU thread posts for " + gpu;
    std::string why = core_->plans[at].why;
    if (p.direct_wanted && !p.direct) why = "gda-cpu is not possible: " + p.not_direct + "; " + why;
    const char* signals = counted(r)               ? "signals without atomics, by the peer's engine"
                          : memory_->gpu_signals() ? "signals in GPU memory"
                                                   : "signals in host memory";
    TP_INFO(net, "GIN queue to %s: %s over %s (%s), %d x depth %u, %s; %s",
            r == core_->rank() ? "itself" : core_->mesh->peer_text(r).c_str(),
            name_of(p.direct ? ModeChoice::gda_cpu : ModeChoice::proxy).c_str(),
            ports_[ways_[at].here(0)]->rail().port.port->name.c_str(), does.c_str(),
            shape_.contexts, shape_.depth, signals, why.c_str());
  }
}

}  // namespace twinpath::gda
