// How a context ends: kernels are let go, nothing waits for a peer.
#include <algorithm>

#include "gda/memory/retired.h"
#include "gda/served/served_context.h"
#include "plugin/base/log.h"

namespace twinpath::gda {
namespace {

// Kernels poll what they wait for by then; only a GPU that has failed takes longer.
constexpr std::int64_t kReleaseLimit = 2 * kSecond;

}  // namespace

ServedContext::~ServedContext() {
  if (serving_) {
    core_->engine->remove(*this);
    std::erase(core_->contexts, this);
    Retired::of_process().leave();
  }
  for (const std::uint32_t key : {numbers_.sink_key, numbers_.signals_key, numbers_.counters_key})
    if (key != 0) core_->keys.remove(key);
  report_late();
  // A kernel may still spin on a queue that nobody serves any more.
  bool works = true;
  RunLimit copies(SoftBackEnd::kCopyLimit), none(0);
  if (let_go_.started()) {
    works =
        let_go_.wait(kReleaseLimit) && cqs_->wait(kReleaseLimit) && memory_->wait(kReleaseLimit);
    for (auto& main : mains_)
      if (main != nullptr && main->soft != nullptr) main->soft->end_within(works ? copies : none);
  }
  if (!works) {
    warn_left_behind(core_->gpu);
    let_go_.abandon();
    (void)cqs_.release();
    (void)memory_.release();
  }
  // What uses the memory goes before it.
  let_go_.end();
  companions_.clear();
  mains_.clear();
  moves_.reset();
  inbox_.reset();
  flush_.reset();
  ports_[1].reset();
  ports_[0].reset();
  signals_mr_ = {};
  if (memory_ == nullptr || !memory_->on_gpu()) return;
  retire_memory(core_->gpu, std::move(memory_), std::shared_ptr<ContextCqs>(std::move(cqs_)));
}

// For whoever looks for the cause of slow or failed kernels.
void ServedContext::report_late() const {
  QueueCounts sum;
  const auto add = [&](const WorkQueue& queue) {
    const QueueCounts c = queue.counts();
    sum.late += c.late;
    sum.taken_as_is += c.taken_as_is;
  };
  for (const auto& main : mains_)
    if (main != nullptr) add(main->queue);
  for (const auto& companion : companions_)
    if (companion != nullptr) add(companion->queue);
  if (sum.late == 0) return;
  TP_INFO(net,
          "GPU %d: %llu work requests of a GIN context came later than their doorbell; %llu were "
          "taken with data that looked unwritten",
          core_->gpu, static_cast<unsigned long long>(sum.late),
          static_cast<unsigned long long>(sum.taken_as_is));
}

}  // namespace twinpath::gda
