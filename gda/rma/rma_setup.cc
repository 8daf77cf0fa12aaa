// Making a context, and its end.
#include <algorithm>
#include <cerrno>

#include "gda/memory/retired.h"
#include "gda/rma/rma_context.h"
#include "plugin/base/clock.h"
#include "plugin/base/log.h"
#include "plugin/base/page_size.h"
#include "plugin/base/reason_text.h"
#include "plugin/fabric/refusal.h"
#include "plugin/rdma/completion_text.h"
#include "plugin/rdma/path.h"
#include "plugin/rdma/queue_pair.h"

namespace twinpath::gda::rma {
namespace {

// NCCL has 32 puts towards a peer under way, or a multiple; what is more waits in memory.
constexpr std::uint32_t kDepth = 128;

}  // namespace

Context::Context(std::shared_ptr<Team> team, const RmaSettings& settings)
    : team_(std::move(team)), settings_(settings) {}

Result<std::unique_ptr<Context>> Context::make(std::shared_ptr<Team> team,
                                               const RmaSettings& settings) {
  Mesh& mesh = *team->mesh;
  std::unique_ptr<Context> context(new Context(std::move(team), settings));
  const auto mine = context->prepare();
  auto theirs = exchange_or_fail(mesh, mine, "making RMA queues");
  if (!theirs) return theirs.status();
  Result<Bytes> ready{Bytes{}};
  if (const Status s = context->connect(*theirs); s != Status::ok) ready = s;
  // Nobody puts before the last queue pair can receive.
  auto all = gather_or_fail(mesh, ready, "connecting RMA queues");
  if (!all) return all.status();
  context->team_->contexts.push_back(context.get());
  context->serving_ = true;
  Retired::of_process().enter();
  return context;
}

Status Context::check_settings() const {
  if (settings_.contexts >= 1 && settings_.rank_stride >= 1 && queue_count() <= 0xffff)
    return Status::ok;
  TP_WARN("%d RMA contexts of %d ranks, stride %d, cannot be made", settings_.contexts, ranks(),
          settings_.rank_stride);
  return Status::bad_argument;
}

Result<std::vector<Context::Bytes>> Context::prepare() {
  TP_TRY(check_settings());
  queues_.resize(queue_count());
  pairs_.resize(queue_count());
  gone_.resize(static_cast<std::size_t>(ranks()));
  watches_.assign(static_cast<std::size_t>(ranks()), PeerWatch(team_->config().peer_timeout_ms));
  slots_ = std::min(kDepth, static_cast<std::uint32_t>(team_->limits.max_work_requests) - 1);
  TP_TRY(make_memory());
  TP_TRY(make_pairs());
  std::vector<Bytes> out;
  for (int r = 0; r < ranks(); ++r) {
    Writer w;
    w.integer(static_cast<std::uint32_t>(settings_.contexts));
    w.integer(static_cast<std::uint8_t>(used(r)));
    w.integer(std::uint64_t{memory_->device_address()});
    w.integer(mr_->rkey);
    for (int c = 0; c < settings_.contexts; ++c)
      if (used(r)) encode_end(pairs_[number(c, r)]->end(), w);
    out.push_back(w.take());
  }
  return out;
}

Status Context::make_memory() {
  const Team& core = *team_;
  const std::size_t scratch = queue_count() * slots_ * Queue::kScratchSlot;
  const std::size_t inbox = team_->counted() ? Inbox::bytes(queue_count()) : 0;
  const std::size_t sink = sizeof(std::uint64_t);
  const std::size_t bytes = page_end(scratch + inbox + sink);
  auto memory = DeviceBlock::make(core.gpu, Place::shared, bytes);
  if (!memory) return memory.status();
  memory_ = std::move(memory).take();
  const auto address = reinterpret_cast<std::uintptr_t>(memory_->host());
  errno = 0;
  ibv_mr* const mr =
      core.verbs().reg_mr_iova2(core.rail.port.adapter->pd, memory_->host(), bytes, address,
                                IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
  if (mr == nullptr) {
    const int error = errno;
    TP_WARN("%s cannot register %zu bytes for work requests: %s%s",
            core.rail.port.port->name.c_str(), bytes, reason_text(error).c_str(),
            remedy_of(VerbsCall::register_host, error).c_str());
    return error == ENOMEM ? Status::no_memory : Status::system;
  }
  mr_ = own(mr, core.verbs().dereg_mr);
  auto flush = GpuFlush::make(core, {address + scratch + inbox, mr_->lkey});
  if (!flush) return flush.status();
  flush_ = std::move(flush).take();
  if (!team_->counted()) return Status::ok;
  auto made =
      Inbox::make(*team_, queue_count(), memory_->host() + scratch, mr_->lkey, flush_.get());
  if (!made) return made.status();
  inbox_ = std::move(made).take();
  return Status::ok;
}

Status Context::make_pairs() {
  const Team& core = *team_;
  const Verbs& verbs = core.verbs();
  const std::uint32_t receives = inbox_ != nullptr ? Inbox::kReceives : 0;
  const std::uint32_t more = receives + 1;  // one for the liveness probe
  std::uint32_t pairs = 0;
  for (int r = 0; r < ranks(); ++r)
    pairs += used(r) ? static_cast<std::uint32_t>(settings_.contexts) : 0;
  const std::uint32_t entries = static_cast<std::uint32_t>(core.limits.max_cqes) / pairs;
  slots_ = std::min(slots_, entries - std::min(entries, more));
  if (slots_ == 0) {
    TP_WARN("%s has too few completion queue entries (%d) for %u queues; use fewer contexts",
            core.rail.port.port->name.c_str(), core.limits.max_cqes, pairs);
    return Status::no_memory;
  }
  auto cq = make_completion_queue(verbs, core.rail.port.adapter->context, pairs * (slots_ + more),
                                  core.owner());
  if (!cq) return cq.status();
  cq_ = std::move(cq).take();
  CommSettings comm = core.settings;
  if (settings_.traffic_class >= 0) comm.traffic_class = settings_.traffic_class;
  QueueSettings settings = path_settings(core.config(), comm);
  settings.access = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ |
                    (core.limits.atomics ? IBV_ACCESS_REMOTE_ATOMIC : 0);
  settings.recv_depth = static_cast<int>(receives);
  settings.send_depth = static_cast<int>(slots_) + 1;
  for (std::size_t q = 0; q < queue_count(); ++q) {
    if (!used(rank_of(q))) continue;
    auto pair = QueuePair::make(verbs, core.rail, cq_.get(), settings, core.limits);
    if (!pair) return pair.status();
    pairs_[q] = std::move(pair).take();
  }
  return Status::ok;
}

Status Context::connect(const std::vector<Bytes>& from) {
  const Mesh& mesh = *team_->mesh;
  std::vector<KeyedMemory> there;
  for (int r = 0; r < ranks(); ++r) {
    Reader in(from[static_cast<std::size_t>(r)]);
    const auto contexts = in.integer<std::uint32_t>();
    const bool speaks = in.integer<std::uint8_t>() != 0;
    KeyedMemory memory;
    memory.address = in.integer<std::uint64_t>();
    memory.fabric_key = in.integer<std::uint32_t>();
    there.push_back(memory);
    if (!in.ok() || contexts != static_cast<std::uint32_t>(settings_.contexts) ||
        speaks != used(r)) {
      TP_WARN("%s asked for %u RMA contexts, this rank for %d: all ranks must ask for the same",
              mesh.peer_text(r).c_str(), contexts, settings_.contexts);
      return Status::bad_argument;
    }
    for (int c = 0; c < settings_.contexts && used(r); ++c) {
      QueuePair& pair = *pairs_[number(c, r)];
      const QueueEnd far = decode_end(in);
      if (!in.ok()) {
        TP_WARN("%s sent a damaged description of its queues", mesh.peer_text(r).c_str());
        return Status::remote;
      }
      // The one to the own rank is joined to itself.
      TP_TRY(pair.raise(far, mesh.peer_text(r), mesh.on_this_host(r)));
      if (inbox_ != nullptr)
        TP_TRY(inbox_->listen(static_cast<std::uint16_t>(number(c, r)), pair.qp()));
    }
  }
  make_queues(there);
  return Status::ok;
}

void Context::make_queues(const std::vector<KeyedMemory>& there) {
  const Team& core = *team_;
  for (std::size_t q = 0; q < queue_count(); ++q) {
    const int rank = rank_of(q);
    if (!used(rank)) continue;
    QueueSetup setup;
    setup.pair = pairs_[q].get();
    setup.chain = &chain_;
    setup.flush = flush_.get();
    setup.number = static_cast<std::uint16_t>(q);
    setup.slots = slots_;
    if (const std::uint64_t most = core.rail.port.port->max_message_bytes; most != 0)
      setup.max_bytes = std::min(setup.max_bytes, most);
    setup.scratch = memory_->host() + q * slots_ * Queue::kScratchSlot;
    setup.scratch_lkey = mr_->lkey;
    setup.counted = team_->counted();
    setup.probed = {there[static_cast<std::size_t>(rank)].address,
                    there[static_cast<std::size_t>(rank)].fabric_key};
    setup.failed = &failed_;
    setup.name =
        "RMA queue of rank " + std::to_string(core.rank()) + " to " + core.mesh->peer_text(rank);
    queues_[q] = std::make_unique<Queue>(setup);
  }
}

Context::~Context() {
  if (serving_) {
    std::erase(team_->contexts, this);
    Retired::of_process().leave();  // first: the last one's memory is freed where it is retired
  }
  for (auto& pair : pairs_)
    if (pair != nullptr) pair->stop();
  queues_.clear();
  inbox_.reset();
  pairs_.clear();
  flush_.reset();
  cq_ = {};
  mr_ = {};
  // A GPU's host memory is freed when no kernel can be waited for.
  if (memory_ != nullptr && team_->gpu >= 0) {
    const auto memory = std::make_shared<std::unique_ptr<DeviceBlock>>(std::move(memory_));
    (void)Retired::of_process().put({.free = [memory] { memory->reset(); }, .release = {}});
  }
}

}  // namespace twinpath::gda::rma
