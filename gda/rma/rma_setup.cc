// Making a context, and its end.
#include <algorithm>

#include "gda/memory/retired.h"
#include "gda/rma/rma_context.h"
#include "plugin/base/clock.h"
#include "plugin/base/log.h"
#include "plugin/base/page_size.h"
#include "plugin/rdma/path.h"

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
  gone_.resize(static_cast<std::size_t>(ranks()));
  watches_.assign(static_cast<std::size_t>(ranks()), PeerWatch(team_->config().peer_timeout_ms));
  slots_ = kDepth;
  TP_TRY(make_memory());
  std::vector<Bytes> out;
  for (int r = 0; r < ranks(); ++r) {
    Writer w;
    w.integer(static_cast<std::uint32_t>(settings_.contexts));
    w.integer(static_cast<std::uint8_t>(used(r)));
    w.integer(static_cast<std::uint8_t>(sides_[1] != nullptr));
    w.integer(std::uint64_t{reinterpret_cast<std::uintptr_t>(memory_->host())});
    for (const auto& side : sides_) w.integer(side != nullptr ? side->memory().rkey : 0);
    for (int c = 0; c < settings_.contexts && used(r); ++c)
      for (const auto& side : sides_)
        if (side != nullptr) encode_end(side->pair(number(c, r))->end(), w);
    out.push_back(w.take());
  }
  return out;
}

Status Context::make_memory() {
  const Team& core = *team_;
  const bool second = core.second != nullptr;
  const std::size_t words = words_bytes();
  const std::size_t scratch = queue_count() * Queue::scratch_bytes(slots_);
  const std::size_t inbox = team_->counted() ? Inbox::bytes(queue_count(), second) : 0;
  const std::size_t sink = sizeof(std::uint64_t);
  auto memory =
      DeviceBlock::make(core.gpu, Place::shared, page_end(words + scratch + inbox + sink));
  if (!memory) return memory.status();
  memory_ = std::move(memory).take();
  TP_TRY(make_sides());
  const auto address = reinterpret_cast<std::uintptr_t>(memory_->host());
  const std::uint32_t lkey = sides_[0]->memory().lkey;
  TP_TRY(make_flush(address + words + scratch + inbox));
  if (!team_->counted()) return Status::ok;
  const std::uint32_t second_lkey = sides_[1] != nullptr ? sides_[1]->memory().lkey : 0;
  auto made =
      Inbox::make(*team_, queue_count(),
                  {memory_->host() + words + scratch, {lkey, second_lkey}, second}, flush_.get());
  if (!made) return made.status();
  inbox_ = std::move(made).take();
  if (sides_[1] != nullptr && inbox_->adder().add_second(second_lkey) != Status::ok)
    sides_[1].reset();  // its log says why
  for (int port = 0; port < 2; ++port)
    if (auto& side = sides_[static_cast<std::size_t>(port)]; side != nullptr) {
      side->serve(*inbox_, port);
      side->renew_with(inbox_->adder().loops(port));
    }
  return Status::ok;
}

// `sink`: a byte for what is read.
Status Context::make_flush(std::uint64_t sink) {
  auto flush = GpuFlush::make(*team_, {sink, sides_[0]->memory().lkey});
  if (!flush) return flush.status();
  flush_ = std::move(flush).take();
  if (flush_ == nullptr || sides_[1] == nullptr) return Status::ok;
  // Without it nothing moves, which its log says; the context is as good.
  if (flush_->add_second({sink, sides_[1]->memory().lkey}) != Status::ok) sides_[1].reset();
  return Status::ok;
}

Status Context::make_sides() {
  const Team& core = *team_;
  CommSettings comm = core.settings;
  if (settings_.traffic_class >= 0) comm.traffic_class = settings_.traffic_class;
  PortSide::Plan plan{.used = {},
                      .memory = memory_->host(),
                      .bytes = memory_->bytes(),
                      .slots = slots_,
                      .receives = team_->counted() ? Inbox::kReceives : 0,
                      .spare = 1 + (core.second != nullptr ? PortMoves::kSpare : 0),  // 1: a probe
                      .queue = path_settings(core.config(), comm)};
  for (std::size_t q = 0; q < queue_count(); ++q) plan.used.push_back(used(rank_of(q)));
  auto first = PortSide::make(core, {core.rail, core.limits}, plan);
  if (!first) return first.status();
  sides_[0] = std::move(first).take();
  slots_ = sides_[0]->slots();
  if (core.second == nullptr) return Status::ok;
  // Without it the context is as good; its log says why.
  auto second = PortSide::make(core, {core.second->rail, core.second->limits}, plan);
  if (!second) return Status::ok;
  sides_[1] = std::move(second).take();
  slots_ = std::min(slots_, sides_[1]->slots());
  return Status::ok;
}

Status Context::connect(const std::vector<Bytes>& from) {
  const Mesh& mesh = *team_->mesh;
  std::vector<Far> there;
  for (int r = 0; r < ranks(); ++r) {
    Reader in(from[static_cast<std::size_t>(r)]);
    const auto contexts = in.integer<std::uint32_t>();
    const bool speaks = in.integer<std::uint8_t>() != 0;
    Far far;
    const bool has_second = in.integer<std::uint8_t>() != 0;
    far.moves = has_second && sides_[1] != nullptr;
    far.memory = in.integer<std::uint64_t>();
    for (std::uint32_t& key : far.rkeys) key = in.integer<std::uint32_t>();
    there.push_back(far);
    if (!in.ok() || contexts != static_cast<std::uint32_t>(settings_.contexts) ||
        speaks != used(r)) {
      TP_WARN("%s asked for %u RMA contexts, this rank for %d: all ranks must ask for the same",
              mesh.peer_text(r).c_str(), contexts, settings_.contexts);
      return Status::bad_argument;
    }
    if (!far.moves && team_->second != nullptr) (void)team_->second->lack("a rank has no queues");
    for (int c = 0; c < settings_.contexts && used(r); ++c)
      TP_TRY(raise(number(c, r), far, has_second, in));
  }
  make_queues(there);
  return Status::ok;
}

WayPorts Context::ways(std::size_t queue, const Far& far) const {
  return far.moves ? team_->second->ways(team_->rank(), rank_of(queue),
                                         queue / static_cast<std::size_t>(ranks()))
                   : WayPorts{};
}

Status Context::raise(std::size_t queue, const Far& far, bool has_second, Reader& in) {
  const Mesh& mesh = *team_->mesh;
  const int rank = rank_of(queue);
  std::array<QueueEnd, 2> ends{decode_end(in), {}};
  if (has_second) ends[1] = decode_end(in);
  if (!in.ok()) {
    TP_WARN("%s sent a damaged description of its queues", mesh.peer_text(rank).c_str());
    return Status::remote;
  }
  const WayPorts of = ways(queue, far);
  for (int way = 0; way < (far.moves ? 2 : 1); ++way) {
    const int port = of.here(way);
    QueuePair& pair = *sides_[static_cast<std::size_t>(port)]->pair(queue);
    // The one to the own rank is joined to itself.
    const Status raised = pair.raise(ends[static_cast<std::size_t>(of.there(way))],
                                     mesh.peer_text(rank), mesh.on_this_host(rank));
    if (way == 0) TP_TRY(raised);
    // Its log says why.  Without a second way the queues are as good.
    if (raised != Status::ok) (void)team_->second->lack("a rank is not reached");
    if (raised != Status::ok || inbox_ == nullptr) continue;
    TP_TRY(way == 0 ? inbox_->listen(queue, port, pair.qp())
                    : inbox_->prepare(queue, port, pair.qp()));
  }
  return Status::ok;
}

void Context::make_queues(const std::vector<Far>& there) {
  const Team& core = *team_;
  for (std::size_t q = 0; q < queue_count(); ++q) {
    const int rank = rank_of(q);
    if (!used(rank)) continue;
    const Far& far = there[static_cast<std::size_t>(rank)];
    QueueSetup setup;
    setup.ports = ways(q, far);
    for (int way = 0; way < (far.moves ? 2 : 1); ++way) {
      const PortSide& here = *sides_[static_cast<std::size_t>(setup.ports.here(way))];
      const auto far_port = static_cast<std::size_t>(setup.ports.there(way));
      setup.paths[static_cast<std::size_t>(way)] = {
          here.pair(q), here.memory().lkey, {far.memory, far.rkeys[far_port]}};
      if (const std::uint64_t most = here.rail().port.port->max_message_bytes; most != 0)
        setup.max_bytes = std::min(setup.max_bytes, most);
    }
    setup.chain = &chain_;
    setup.flush = flush_.get();
    setup.number = static_cast<std::uint16_t>(q);
    setup.slots = slots_;
    setup.scratch = memory_->host() + words_bytes() + q * Queue::scratch_bytes(slots_);
    setup.counted = team_->counted();
    setup.failed = &failed_;
    setup.name = "RMA queue of rank " + std::to_string(core.rank()) + " to " +
                 (rank == core.rank() ? std::string("itself") : core.mesh->peer_text(rank));
    if (settings_.contexts > 1)
      setup.name += ", context " + std::to_string(q / static_cast<std::size_t>(ranks()));
    queues_[q] = std::make_unique<Queue>(setup);
  }
  if (sides_[1] == nullptr) return;
  moves_ = std::make_unique<Moves>(*team_, *inbox_, queues_, *sides_[0], *sides_[1]);
  for (std::size_t q = 0; q < queue_count(); ++q)
    if (queues_[q] != nullptr && there[static_cast<std::size_t>(rank_of(q))].moves)
      moves_->attach(q, ends_of(q, there[static_cast<std::size_t>(rank_of(q))]));
}

// The peer numbers its queues by the same contexts, and my rank.
PortRenewals::Ends Context::ends_of(std::size_t q, const Far& far) const {
  const auto words = reinterpret_cast<QueueWord*>(memory_->host());
  const std::size_t context = q / static_cast<std::size_t>(ranks());
  const WayPorts of = ways(q, far);
  const auto probed = [&](int way) {
    return ProbeTarget{far.memory, far.rkeys[static_cast<std::size_t>(of.there(way))]};
  };
  return {
      .probed = {{probed(0), probed(1)}},
      .box = words + q,
      .out = words + queue_count() + q,
      .far_box = far.memory + number(static_cast<int>(context), team_->rank()) * sizeof(QueueWord),
      .far_beat = far.memory + beats_at(),
      .beat = beats() + 1 + q};
}

Context::~Context() {
  if (serving_) {
    std::erase(team_->contexts, this);
    Retired::of_process().leave();  // first: the last one's memory is freed where it is retired
  }
  for (const auto& side : sides_)
    if (side != nullptr) side->stop_all();
  moves_.reset();
  queues_.clear();
  inbox_.reset();
  flush_.reset();
  sides_ = {};
  // A GPU's host memory is freed when no kernel can be waited for.
  if (memory_ != nullptr && team_->gpu >= 0) {
    const auto memory = std::make_shared<std::unique_ptr<DeviceBlock>>(std::move(memory_));
    (void)Retired::of_process().put({.free = [memory] { memory->reset(); }, .release = {}});
  }
}

}  // namespace twinpath::gda::rma
