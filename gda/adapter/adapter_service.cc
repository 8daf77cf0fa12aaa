// What the engine does for a context of an adapter's queues, and how that ends.
#include "gda/adapter/adapter_context.h"
#include "gda/memory/retired.h"
#include "plugin/base/clock.h"
#include "plugin/base/log.h"

namespace twinpath::gda {
namespace {

// Kernels poll what they wait for by then; only a GPU that has failed takes longer.
constexpr std::int64_t kLetGoLimit = 2 * kSecond;
// In one look around, where nobody waits for this thread: 0.1 s of an adapter's time.
constexpr int kMostQuestions = 400;

}  // namespace

bool AdapterContext::turn() {
  const bool rang = ringer_ != nullptr && ringer_->turn();
  if (let_go_.given_up()) {
    let_go_.turn();
  } else if (ringer_ != nullptr && !rang) {
    // One question at a time: kernels whose bells this thread rings wait for it.
    look_at_queues(now_ns(), 1);
  }
  return rang;
}

void AdapterContext::look_around() {
  if (let_go_.given_up()) return let_go_.turn();
  const std::int64_t now = now_ns();
  if (core_->lost_port(now)) return give_up();
  look_at_queues(now, ringer_ != nullptr ? 1 : kMostQuestions);
  probes_->look();
  for (int rank = 0; rank < shape_.ranks && !let_go_.given_up(); ++rank)
    if (rank != core_->rank()) look_at(rank, now);
}

void AdapterContext::look_at_queues(std::int64_t now, int most) {
  while (const auto failed = watch_->look(now, most)) failed_queue(*failed);
  while (const auto cause = errors_->look()) told(*cause);
}

// Kernels do not leave their loops for an error completion.
void AdapterContext::failed_queue(std::size_t queue) {
  const std::size_t pair = queue % shape_.pairs();
  if (!let_go_.queue_failed(pair)) return;
  (void)queues_->stop(pair);  // the other of the two waits for it
  errors_->begin(queue);
}

void AdapterContext::told(const mlx5::ErrorLook::Cause& cause) {
  const int rank = rank_of(cause.queue);
  TP_WARN(
      "GIN %s of rank %d to %s has failed: %s (syndrome 0x%x); the communicator cannot be used "
      "any more",
      cause.queue < shape_.pairs() ? "queue" : "counter queue", core_->rank(),
      rank == core_->rank() ? "itself" : core_->mesh->peer_text(rank).c_str(),
      mlx5::text_of(cause.syndrome), static_cast<unsigned>(cause.syndrome));
  if (is_own_fault(cause.syndrome)) return;
  core_->mesh->give_up();  // kernels of other ranks wait for what will not come from here
  give_up();
}

// What kernels wait for is not seen here, so something is always expected of a peer: a silent one
// must answer a probe.
void AdapterContext::look_at(int rank, std::int64_t now) {
  const Mesh::PeerState peer = core_->mesh->look(rank);
  const bool asked = probes_->asks(rank) && !peer.left;
  PeerWatch& watch = watches_[static_cast<std::size_t>(rank)];
  const Verdict verdict =
      watch.look(peer.sign, peer.silence_ms, now, asked, probes_->answers(rank));
  if (probes_->unanswered(rank)) return give_up();
  if (verdict == Verdict::fine) return;
  if (verdict == Verdict::suspect) return probes_->ask(rank);
  TP_WARN("%s is gone: %s; kernels that wait for it are let go",
          core_->mesh->peer_text(rank).c_str(), core_->mesh->verdict_text(rank, verdict).c_str());
  give_up();
}

// Nothing will come of this context any more: all its kernels are let go.
void AdapterContext::give_up() {
  if (let_go_.given_up()) return;
  let_go_.give_up();
  let_go_.release_all();
}

AdapterContext::~AdapterContext() {
  if (serving_) {
    core_->engine->remove(*this);
    Retired::of_process().leave();
  }
  // A kernel may still spin on a queue that nobody serves any more.
  bool works = true;
  if (let_go_.started()) {
    works = let_go_.wait(kLetGoLimit) && memory_->wait(kLetGoLimit) && errors_->wait(kLetGoLimit);
  }
  std::shared_ptr<void> rest;
  if (queues_ != nullptr) rest = mlx5::ContextQueues::end(std::move(queues_));
  probes_.reset();
  for (Table* const table : {&signals_, &counters_, &sink_}) table->mr.reset();
  if (!works) {
    warn_left_behind(core_->gpu);
    let_go_.abandon();
    (void)errors_.release();
    (void)memory_.release();
    (void)new std::shared_ptr<void>(std::move(rest));
    return;
  }
  let_go_.end();
  if (memory_ == nullptr || !memory_->on_gpu()) return;
  struct Remains {  // destroyed in reverse: the page goes before the adapter
    std::shared_ptr<AdapterSide> side;
    std::shared_ptr<void> rest;
  };
  retire_memory(core_->gpu, std::move(memory_),
                std::make_shared<Remains>(Remains{core_->adapter, std::move(rest)}));
}

}  // namespace twinpath::gda
