// How a context comes to the mode of each of its peers: what was planned (modes.h), and whether
// the peer's signals can be reached.
#include "gda/context/gin_context.h"
#include "plugin/base/log.h"
#include "plugin/base/peer_modes.h"

namespace twinpath::gda {

Context::MainQueue::MainQueue(CqeWriter& cq, const VerbsBackEndSetup& back,
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

void Context::reach_signals(int rank, const TableOffer& offer) {
  Direct& direct = direct_[static_cast<std::size_t>(rank)];
  if (!direct.wanted) return;
  direct.possible = offer.same_process() || shape_.signals == 0;
  if (direct.possible) return;
  direct.table = MappedTable::open(offer, direct.why_not);
  direct.possible = direct.table != nullptr &&
                    direct.table->bytes() >= counted_[static_cast<std::size_t>(rank)].signals_bytes;
}

Context::Bytes Context::directness() const {
  Bytes out;
  for (const Direct& direct : direct_) out.push_back(direct.possible ? 1 : 0);
  return out;
}

// Both ends of a pair do the same: the lesser of what they can.
void Context::settle_modes(const std::vector<Bytes>& from) {
  const auto own = static_cast<std::size_t>(core_->rank());
  for (std::size_t r = 0; r < direct_.size(); ++r) {
    Direct& direct = direct_[r];
    const bool theirs = from[r].size() == direct_.size() && from[r][own] != 0;
    if (!direct.wanted || (direct.possible && theirs)) continue;
    if (direct.possible) direct.why_not = "it cannot reach the signals of this rank";
    direct.possible = false;
  }
  for (auto& main : mains_) {
    if (main == nullptr || main->soft == nullptr) continue;
    if (!direct_[static_cast<std::size_t>(main->queue.peer())].possible) main->soft->step_aside();
  }
}

void Context::log_peers() const {
  const std::string gpu =
      core_->gpu >= 0 ? "GPU " + std::to_string(core_->gpu) : std::string("the CPU");
  for (int r = 0; r < shape_.ranks; ++r) {
    if (!used(r)) continue;
    const auto at = static_cast<std::size_t>(r);
    const Direct& direct = direct_[at];
    const std::string does = direct.possible ? "its engine executes what " + gpu + " writes"
                                             : "a CPU thread posts for " + gpu;
    std::string why = core_->plans[at].why;
    if (direct.wanted && !direct.possible)
      why = "gda-cpu is not possible: " + direct.why_not + "; " + why;
    const char* signals = counted(r)               ? "signals without atomics, by the peer's engine"
                          : memory_->gpu_signals() ? "signals in GPU memory"
                                                   : "signals in host memory";
    TP_INFO(net, "GIN queue to %s: %s over %s (%s), %d x depth %u, %s; %s",
            r == core_->rank() ? "itself" : core_->mesh->peer_text(r).c_str(),
            name_of(direct.possible ? ModeChoice::gda_cpu : ModeChoice::proxy).c_str(),
            core_->rail.port.port->name.c_str(), does.c_str(), shape_.contexts, shape_.depth,
            signals, why.c_str());
  }
}

}  // namespace twinpath::gda
