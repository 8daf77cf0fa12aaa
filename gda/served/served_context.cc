// Making a context; its service is in served_service.cc, its end in served_end.cc.
#include "gda/served/served_context.h"

#include <algorithm>
#include <random>

#include "gda/context/context_settings.h"
#include "gda/memory/retired.h"
#include "plugin/base/clock.h"
#include "plugin/base/log.h"
#include "plugin/rdma/path.h"

namespace twinpath::gda {

static_assert(ContextMemory::kScratchSlot == VerbsBackEnd::kScratchSlot);

namespace {

std::uint64_t random_word() {
  std::random_device source;
  return std::uint64_t{source()} << 32 | source();
}

// What this rank's pair is to `rank`: the peer numbers its pairs by the same contexts, and my rank.
std::size_t pair_there(std::size_t pair, int rank, int me) {
  return pair - static_cast<std::size_t>(rank) + static_cast<std::size_t>(me);
}

PortRenewals::Ends ends_of(const ContextMemory& memory, const VerbsBackEndSetup& back,
                           std::size_t pair, std::uint64_t far_boxes, std::size_t there) {
  const auto words = reinterpret_cast<QueueWord*>(memory.inbox_address() + memory.rows_bytes());
  return {.probed = {{{back.probed, back.first.rkey}, {back.probed, back.second.rkey}}},
          .box = words + pair,
          .out = words + memory.pairs() + pair,
          .far_box = far_boxes + there * sizeof(QueueWord)};
}

// Of a pair whose operations are copied.
SoftWaysSetup ways_of(const SoftHca& soft, std::size_t pair, const WayPorts& ways,
                      const std::unique_ptr<PortQueues> (&ports)[2], const GinCore& core) {
  SoftWaysSetup out;
  out.soft = &soft;
  out.ports = ways;
  for (const int way : {0, 1}) {
    const PortQueues* const port = ports[ways.here(way)].get();
    if (port == nullptr || port->pair(pair) == nullptr) continue;
    out.ways[static_cast<std::size_t>(way)] = {port->pair(pair)->qp(),
                                               port->rail().port.port->name.c_str()};
  }
  if (ports[1] == nullptr) return out;
  out.lacks = &core.second->lacks;
  out.counts = &core.engine->counts().moves;
  // A team that has lost both its own ports says so first.
  out.hold = core.config().failover_hold_ms * kMillisecond + kSecond;
  return out;
}

}  // namespace

Result<std::unique_ptr<ServedContext>> ServedContext::make(std::shared_ptr<GinCore> core,
                                                           const ContextSettings& settings) {
  ContextShape shape = shape_of(*core, settings);
  shape.gpu_cqs = core->config().gin_cq == QueuePlace::gpu;
  shape.gdrcopy = core->config().gdrcopy;
  shape.counted = core->counted();
  std::unique_ptr<ServedContext> context(new ServedContext(core, shape));
  const auto mine = context->prepare(settings);
  auto theirs = exchange_or_fail(*core->mesh, mine, "making queues");
  if (!theirs) return theirs.status();
  Result<Bytes> ready{Bytes{}};
  if (const Status s = context->connect(*theirs); s != Status::ok) {
    ready = s;
  } else {
    ready = context->directness();
  }
  // Nobody's kernel starts before the last queue pair can receive.
  auto all = gather_or_fail(*core->mesh, ready, "connecting queues");
  if (!all) return all.status();
  context->settle_modes(*all);
  context->log_peers();
  core->contexts.push_back(context.get());
  context->serving_ = true;
  Retired::of_process().enter();
  core->engine->add(*context);
  return context;
}

Result<std::vector<ServedContext::Bytes>> ServedContext::prepare(const ContextSettings& settings) {
  TP_TRY(check_settings(settings, shape_));
  const std::vector<bool> spoken = spoken_to(*core_, settings);
  ways_.resize(shape_.pairs());
  bool share = false;
  for (int r = 0; r < shape_.ranks; ++r) {
    const auto at = static_cast<std::size_t>(r);
    Peer& p = peers_.emplace_back(core_->config().peer_timeout_ms);
    p.used = spoken[at];
    p.direct_wanted = p.used && core_->plans[at].mode == ModeChoice::gda_cpu;
    share |= p.direct_wanted && r != core_->rank();
  }
  auto signals = place_signals(
      *core_, shape_.signals * sizeof(std::uint64_t) * static_cast<std::uint64_t>(shape_.contexts));
  if (!signals) return signals.status();
  signals_mr_ = std::move(signals->mr);
  auto memory = ContextMemory::make(core_->gpu, shape_, share, std::move(signals->block));
  if (!memory) return memory.status();
  memory_ = std::move(memory).take();
  auto port =
      PortQueues::make(*core_, {core_->rail, core_->limits}, shape_, *memory_, plan(settings));
  if (!port) return port.status();
  ports_[0] = std::move(port).take();
  auto flush = GpuFlush::make(*core_, {memory_->sink_address(), ports_[0]->tables().lkey});
  if (!flush) return flush.status();
  flush_ = std::move(flush).take();
  if (shape_.counted) {
    inbox_ = std::make_unique<CountedInbox>(
        CountedInbox::Memory{.entries = reinterpret_cast<CountedEntry*>(memory_->inbox_address()),
                             .table = reinterpret_cast<std::uint64_t*>(memory_->signals_address()),
                             .pairs = shape_.pairs(),
                             .row = static_cast<std::size_t>(memory_->inbox_row()),
                             .signals = memory_->signals_bytes() / sizeof(std::uint64_t),
                             .windows = &core_->keys,
                             .rank = core_->rank()},
        flush_.get());
    TP_TRY(inbox_->adder().reach_gpu(
        *core_, core_->engine->words(),
        {reinterpret_cast<std::uint64_t*>(memory_->values_address()), ports_[0]->tables().lkey}));
  }
  if (core_->second != nullptr) make_second(settings);

  std::vector<Bytes> out;
  for (int r = 0; r < shape_.ranks; ++r) {
    Writer w;
    w.integer(static_cast<std::uint32_t>(shape_.contexts));
    w.integer(static_cast<std::uint8_t>(used(r)));
    w.integer(memory_->signals_address());
    w.integer(memory_->signals_bytes());
    w.integer(signals_region().rkey);  // and of the inbox, which the tables have if there is one
    w.integer(ports_[1] != nullptr ? ports_[1]->tables().rkey : 0);
    w.integer(memory_->inbox_address());
    w.integer(memory_->inbox_row());
    encode_offer(memory_->tables_offer(), w);
    for (std::size_t p = 0; p < shape_.pairs(); ++p) {
      if (rank_of(p) != r || !used(r)) continue;
      encode_end(ports_[0]->pair(p)->end(), w);
      const QueuePair* second = ports_[1] != nullptr ? ports_[1]->pair(p) : nullptr;
      w.integer(static_cast<std::uint8_t>(second != nullptr));
      if (second != nullptr) encode_end(second->end(), w);
    }
    out.push_back(w.take());
  }
  return out;
}

PortQueues::Plan ServedContext::plan(const ContextSettings& settings) const {
  CommSettings comm = core_->settings;
  if (settings.traffic_class >= 0) comm.traffic_class = settings.traffic_class;
  return {.used = used(),
          .receives = shape_.counted ? std::uint32_t{CountedInbox::kReceives} : 0,
          .spare = core_->counted() && core_->second != nullptr ? PortMoves::kSpare : 0,
          .queue = path_settings(core_->config(), comm)};
}

// Where signals are counted, pairs whose puts the engine copies stay where they are.  Without these
// queues, of which the log says why there are none, the context is as good.
void ServedContext::make_second(const ContextSettings& settings) {
  const bool either = core_->second->use == SecondUse::either;
  if (either && !core_->second->limits.atomics) {
    (void)core_->second->lack("its adapter has no atomics");
    return;
  }
  PortQueues::Plan movable = plan(settings);
  for (std::size_t r = 0; r < peers_.size(); ++r)
    movable.used[r] =
        peers_[r].used && (core_->plans[r].mode == ModeChoice::proxy) == shape_.counted;
  auto second = PortQueues::make(*core_, {core_->second->rail, core_->second->limits}, shape_,
                                 *memory_, movable);
  if (either) {
    if (second)
      ports_[1] = std::move(second).take();
    else
      (void)core_->second->lack("this rank has no queues there");
    return;
  }
  if (!second) return;
  const std::uint32_t lkey = (*second)->tables().lkey;
  if (flush_ != nullptr && flush_->add_second({memory_->sink_address(), lkey}) != Status::ok)
    return;
  WordAdder& adder = inbox_->adder();
  if (adder.add_second(lkey) != Status::ok) return;
  for (const int port : {0, 1}) (port == 0 ? *ports_[0] : **second).renew_with(adder.loops(port));
  ports_[1] = std::move(second).take();
  moves_ = std::make_unique<PortMoves>(TwoPorts{*core_, peers_.size(), *ports_[0], *ports_[1]},
                                       *inbox_, &core_->engine->counts().moves);
}

std::vector<bool> ServedContext::used() const {
  std::vector<bool> all;
  for (const Peer& p : peers_) all.push_back(p.used);
  return all;
}

Status ServedContext::connect(const std::vector<Bytes>& from) {
  std::vector<KeyedMemory> signals(static_cast<std::size_t>(shape_.ranks));
  for (int r = 0; r < shape_.ranks; ++r) {
    Reader in(from[static_cast<std::size_t>(r)]);
    const auto contexts = in.integer<std::uint32_t>();
    const bool speaks = in.integer<std::uint8_t>() != 0;
    auto& table = signals[static_cast<std::size_t>(r)];
    table.address = in.integer<std::uint64_t>();
    table.bytes = in.integer<std::uint64_t>();
    table.fabric_key = in.integer<std::uint32_t>();
    table.second_key = in.integer<std::uint32_t>();
    const auto inbox = in.integer<std::uint64_t>();
    const auto row = std::max(in.integer<std::uint64_t>(), CountedInbox::room_for(1));
    peer(r).signals = {table.address, table.bytes, inbox, row};
    peer(r).rkeys = {table.fabric_key, table.second_key};
    const TableOffer offer = decode_offer(in);
    if (!in.ok() || contexts != static_cast<std::uint32_t>(shape_.contexts) || speaks != used(r)) {
      TP_WARN("%s asked for %u queue sets, this rank for %d: all ranks must ask for the same",
              core_->mesh->peer_text(r).c_str(), contexts, shape_.contexts);
      return Status::bad_argument;
    }
    reach_signals(r, offer);
    TP_TRY(raise(r, in));
  }
  TP_TRY(add_keys(signals));
  numbers_.first_queue = core_->engine->take_numbers(static_cast<std::uint32_t>(shape_.queues()));
  TP_TRY(make_queues());
  TP_TRY(fill());
  let_go_.start(core_->gpu, *memory_, shape_, used(), core_->engine->counts());
  return Status::ok;
}

// The queue pairs to that rank, from what it has said of its own.
Status ServedContext::raise(int rank, Reader& in) {
  const std::string peer = core_->mesh->peer_text(rank);
  for (std::size_t p = 0; p < shape_.pairs(); ++p) {
    if (rank_of(p) != rank || !used(rank)) continue;
    const QueueEnd far = decode_end(in);
    const bool can = ports_[1] != nullptr && ports_[1]->pair(p) != nullptr;
    const bool far_can = in.integer<std::uint8_t>() != 0;
    const QueueEnd far_second = far_can ? decode_end(in) : QueueEnd{};
    if (!in.ok()) {
      TP_WARN("%s sent a damaged description of its queues", peer.c_str());
      return Status::remote;
    }
    WayPorts& of = ways_[p];
    if (can && far_can) of = core_->second->ways(core_->rank(), rank, p / peers_.size());
    PortQueues& first = *ports_[of.here(0)];
    const bool here = core_->mesh->on_this_host(rank);
    TP_TRY(first.raise(p, of.there(0) == 0 ? far : far_second, peer, here));
    if (counted(rank)) TP_TRY(inbox_->listen(p, of.here(0), first.arrivals(p).qp()));
    if (!can) continue;
    if (!far_can) (void)core_->second->lack("a rank has no queues");
    if (!far_can) continue;
    PortQueues& second = *ports_[of.here(1)];
    // Its log says why.  Without a second way the queues are as good.
    if (second.raise(p, of.there(1) == 0 ? far : far_second, peer, here) != Status::ok)
      (void)core_->second->lack("a rank is not reached");
    if (moves_ != nullptr) TP_TRY(second.give_receives(p, second.arrivals(p).qp()));
  }
  return Status::ok;
}

Status ServedContext::add_keys(std::vector<KeyedMemory>& signals) {
  const auto own = static_cast<std::size_t>(core_->rank());
  // Where kernels say that fetched values shall go; nobody reads them.
  const KeyedMemory sink{memory_->sink_address(), 8, ports_[0]->tables().lkey};
  std::vector<KeyedMemory> none(signals.size());
  auto key = core_->keys.add(sink, none, kLocalWrite | kLocalRead);
  if (!key) return key.status();
  numbers_.sink_key = *key;
  if (shape_.signals != 0) {
    const KeyedMemory mine{memory_->signals_address(), memory_->signals_bytes(),
                           signals_region().lkey,
                           ports_[1] != nullptr ? ports_[1]->tables().lkey : 0};
    key = core_->keys.add(mine, signals, kRemoteAtomic);
    if (!key) return key.status();
    numbers_.signals_key = *key;
  }
  if (shape_.counters != 0) {
    const KeyedMemory mine{memory_->counters_address(), memory_->counters_bytes(),
                           ports_[0]->tables().lkey};
    none[own] = mine;
    key = core_->keys.add(mine, none, kRemoteAtomic);
    if (!key) return key.status();
    numbers_.counters_key = *key;
  }
  return Status::ok;
}

Status ServedContext::make_queues() {
  auto cqs = ContextCqs::make(core_->gpu, shape_, *memory_);
  if (!cqs) return cqs.status();
  cqs_ = std::move(cqs).take();
  const WorkQueue::FindCq find = [this](std::uint32_t cqn) { return find_cq(cqn); };
  mains_.resize(shape_.pairs());
  companions_.resize(shape_.queues() - shape_.pairs());
  scan_.emplace(memory_->doorbell(0), shape_.queues());
  for (std::size_t q = 0; q < shape_.queues(); ++q) {
    const std::size_t p = q % shape_.pairs();
    if (!used(rank_of(p))) continue;
    WorkQueueSetup front;
    front.qpn = front.cqn = numbers_.first_queue + static_cast<std::uint32_t>(q);
    front.depth = shape_.depth;
    front.sq = memory_->sq(q);
    front.doorbell = memory_->doorbell(q);
    front.keys = &core_->keys;
    front.poison = random_word();
    front.counts = &core_->engine->counts();
    if (q >= shape_.pairs()) {
      front.peer = core_->rank();  // counters are this rank's
      companions_[p] = std::make_unique<Companion>(cqs_->at(q), front, find);
      continue;
    }
    front.peer = rank_of(p);
    const Peer& far = peer(front.peer);
    const VerbsBackEndSetup back = back_end_setup(p);
    std::optional<SoftBackEndSetup> soft;
    std::string ignored;  // its queue pairs are there, so it is open
    if (const SoftHca* hca = far.direct ? open_soft_hca(ignored) : nullptr; hca != nullptr) {
      soft.emplace();
      soft->ways = ways_of(*hca, p, ways_[p], ports_, *core_);
      soft->depth = shape_.depth;
      soft->scratch = back.scratch;
      soft->signals = far.signals.signals;
      soft->signals_bytes = far.signals.signals_bytes;
      if (far.table != nullptr) soft->signals_here = far.table->data();
    }
    mains_[p] = std::make_unique<MainQueue>(cqs_->at(q), back, front, find, soft);
    if (back.kept == 0) continue;
    // Behind the rows of all its pairs.
    const std::uint64_t boxes =
        far.signals.row + shape_.pairs() * far.signals.entries * sizeof(CountedEntry);
    moves_->attach(p, mains_[p]->back_end,
                   ends_of(*memory_, back, p, boxes, pair_there(p, front.peer, core_->rank())),
                   back.ports.here(0));
  }
  return Status::ok;
}

VerbsBackEndSetup ServedContext::back_end_setup(std::size_t p) const {
  const int rank = rank_of(p);
  const Peer& far = peer(rank);
  const CountedSender::Target& signals = far.signals;
  VerbsBackEndSetup back;
  back.ports = ways_[p];
  const auto path = [&](int way) {
    const PortQueues& here = *ports_[back.ports.here(way)];
    return VerbsPath{here.pair(p), here.tables().lkey,
                     far.rkeys[static_cast<std::size_t>(back.ports.there(way))]};
  };
  back.first = path(0);
  back.slots = ports_[0]->slots();
  back.tag = static_cast<std::uint16_t>(p);
  const auto bound = [&back](const Rail& rail) {
    if (const std::uint64_t most = rail.port.port->max_message_bytes; most != 0)
      back.max_bytes = std::min(back.max_bytes, most);
  };
  bound(core_->rail);
  if (ports_[1] != nullptr && ports_[1]->pair(p) != nullptr) {
    back.second = path(1);
    back.slots = std::min(back.slots, ports_[1]->slots());
    back.kept = moves_ != nullptr ? shape_.depth : 0;
    bound(core_->second->rail);
  }
  back.scratch = memory_->scratch(p);
  // The soft HCA would keep it in memory that copy engines read slowly.
  back.post_inline = core_->config().fabric != FabricChoice::soft;
  back.flush = flush_.get();
  back.name = "GIN queue of rank " + std::to_string(core_->rank()) + " to " +
              (rank == core_->rank() ? std::string("itself") : core_->mesh->peer_text(rank));
  back.probed = signals.signals;
  if (!counted(rank)) return back;
  back.counted = signals;
  back.counted->row += pair_there(p, rank, core_->rank()) * signals.entries * sizeof(CountedEntry);
  back.slots = std::min<std::uint32_t>(
      back.slots, static_cast<std::uint32_t>(signals.entries - CountedInbox::room_for(0)));
  return back;
}

Status ServedContext::fill() {
  std::vector<DeviceQueue> queues(shape_.queues());
  for (std::size_t q = 0; q < queues.size(); ++q)
    if (used(rank_of(q)))
      queues[q] = memory_->device_queue(q, numbers_.first_queue + static_cast<std::uint32_t>(q));
  DeviceKeys keys;
  keys.signals = numbers_.signals_key;
  keys.signals_there.assign(static_cast<std::size_t>(shape_.ranks), numbers_.signals_key);
  keys.counters = keys.counters_here = numbers_.counters_key;
  keys.sink = numbers_.sink_key;
  return memory_->fill(queues, keys);
}

const WorkQueue* ServedContext::find_cq(std::uint32_t cqn) const {
  const std::size_t q = cqn - numbers_.first_queue;
  if (cqn < numbers_.first_queue || q >= shape_.queues()) return nullptr;
  if (q < shape_.pairs()) return mains_[q] != nullptr ? &mains_[q]->queue : nullptr;
  const Companion* companion = companions_[q - shape_.pairs()].get();
  return companion != nullptr ? &companion->queue : nullptr;
}

}  // namespace twinpath::gda
