// Making a context of an adapter's queues; its service and end are in adapter_service.cc.
#include "gda/adapter/adapter_context.h"

#include <bit>

#include "gda/adapter/mlx5/region.h"
#include "gda/context/context_settings.h"
#include "gda/memory/retired.h"
#include "plugin/base/log.h"
#include "plugin/base/peer_modes.h"
#include "plugin/gpu/dmabuf.h"
#include "plugin/rdma/path.h"

namespace twinpath::gda {

Result<std::unique_ptr<AdapterContext>> AdapterContext::make(std::shared_ptr<GinCore> core,
                                                             const ContextSettings& settings) {
  ContextShape shape = shape_of(*core, settings);
  shape.adapter = true;
  std::unique_ptr<AdapterContext> context(new AdapterContext(core, shape));
  const auto mine = context->prepare(settings);
  auto theirs = exchange_or_fail(*core->mesh, mine, "making queues");
  if (!theirs) return theirs.status();
  Result<Bytes> ready{Bytes{}};
  if (const Status s = context->connect(*theirs); s != Status::ok) ready = s;
  // Nobody's kernel starts before the last queue pair can receive.
  auto all = gather_or_fail(*core->mesh, ready, "connecting queues");
  if (!all) return all.status();
  context->log_peers();
  context->serving_ = true;
  Retired::of_process().enter();
  core->engine->add(*context);
  return context;
}

Result<std::vector<AdapterContext::Bytes>> AdapterContext::prepare(
    const ContextSettings& settings) {
  TP_TRY(check_settings(settings, shape_));
  used_ = spoken_to(*core_, settings);
  auto memory = ContextMemory::make(core_->gpu, shape_);
  if (!memory) return memory.status();
  memory_ = std::move(memory).take();
  TP_TRY(register_tables());
  TP_TRY(make_queues(settings));
  auto probes = LivenessProbes::make(*core_, used_);
  if (!probes) return probes.status();
  probes_ = std::move(probes).take();

  std::vector<Bytes> out;
  for (int r = 0; r < shape_.ranks; ++r) {
    Writer w;
    w.integer(static_cast<std::uint32_t>(shape_.contexts));
    w.integer(static_cast<std::uint8_t>(used(r)));
    w.integer(signals_.rkey());
    w.integer(sink_.rkey());
    if (probes_->asks(r)) encode_end(probes_->end(r), w);
    for (std::size_t p = 0; p < shape_.pairs(); ++p)
      if (rank_of(p) == r && used(r)) encode_end(queues_->end(p), w);
    out.push_back(w.take());
  }
  return out;
}

Status AdapterContext::register_tables() {
  TP_TRY(register_table(signals_, memory_->signals_address(), memory_->signals_bytes()));
  TP_TRY(register_table(counters_, memory_->counters_address(), memory_->counters_bytes()));
  return register_table(sink_, memory_->sink_address(), sizeof(std::uint64_t));
}

Status AdapterContext::register_table(Table& table, std::uint64_t address, std::uint64_t bytes) {
  if (bytes == 0) return Status::ok;
  mlx5::RegionRequest request;
  request.data = reinterpret_cast<void*>(address);
  request.bytes = bytes;
  request.on_gpu = memory_->tables() == nullptr;
  auto mr = mlx5::register_region(*core_->adapter->adapter, request);
  if (!mr) return mr.status();
  table.mr = std::move(mr).take();
  return Status::ok;
}

Status AdapterContext::make_queues(const ContextSettings& settings) {
  CommSettings comm = core_->settings;
  if (settings.traffic_class >= 0) comm.traffic_class = settings.traffic_class;
  mlx5::ContextQueuesSetup setup;
  setup.gpu = core_->gpu;
  setup.log_depth = static_cast<unsigned>(std::countr_zero(shape_.depth));
  setup.companions = shape_.counters != 0;
  setup.rung_by_cpu = core_->bells == BellChoice::cpu;
  setup.rung_by_gpu = core_->bells == BellChoice::gpu;
  setup.real_page = !core_->adapter->software();
  setup.settings = path_settings(core_->config(), comm);
  for (std::size_t p = 0; p < shape_.pairs(); ++p) {
    const int rank = rank_of(p);
    setup.peers.push_back(!used(rank)             ? std::string()
                          : rank == core_->rank() ? std::string("itself")
                                                  : core_->mesh->peer_text(rank));
  }
  if (core_->gpu >= 0 && gpu::exports_dmabufs())
    setup.exporter = [](const DeviceBlock& block) {
      return gpu::export_dmabuf(block.device_address(), block.bytes());
    };
  auto queues = mlx5::ContextQueues::make(*core_->adapter->adapter, setup);
  if (!queues) return queues.status();
  queues_ = std::move(queues).take();
  return Status::ok;
}

Status AdapterContext::connect(const std::vector<Bytes>& from) {
  std::vector<std::uint32_t> signal_keys;
  for (int r = 0; r < shape_.ranks; ++r) {
    const std::string name = core_->mesh->peer_text(r);
    Reader in(from[static_cast<std::size_t>(r)]);
    const auto contexts = in.integer<std::uint32_t>();
    const bool speaks = in.integer<std::uint8_t>() != 0;
    signal_keys.push_back(in.integer<std::uint32_t>());
    const auto sink_key = in.integer<std::uint32_t>();
    if (!in.ok() || contexts != static_cast<std::uint32_t>(shape_.contexts) || speaks != used(r)) {
      TP_WARN("%s asked for %u queue sets, this rank for %d: all ranks must ask for the same",
              name.c_str(), contexts, shape_.contexts);
      return Status::bad_argument;
    }
    if (probes_->asks(r)) {
      const QueueEnd far = decode_end(in);
      if (in.ok()) TP_TRY(probes_->join(r, far, sink_key));
    }
    for (std::size_t p = 0; p < shape_.pairs(); ++p) {
      if (rank_of(p) != r || !used(r)) continue;
      const QueueEnd far = decode_end(in);
      if (!in.ok()) {
        TP_WARN("%s sent a damaged description of its queues", name.c_str());
        return Status::remote;
      }
      TP_TRY(queues_->raise(p, r == core_->rank() ? nullptr : &far, core_->mesh->on_this_host(r)));
    }
  }
  return fill(std::move(signal_keys));
}

Status AdapterContext::fill(std::vector<std::uint32_t> signal_keys) {
  const bool by_cpu = queues_->rung_by_cpu();
  std::vector<DeviceQueue> queues(shape_.queues());
  std::vector<mlx5::DoorbellRinger::Queue> rung;
  for (std::size_t q = 0; q < queues.size(); ++q) {
    if (!queues_->used(q)) continue;
    const mlx5::QueueView v = queues_->view(q);
    DeviceQueue& queue = queues[q];
    queue.used = true;
    queue.qpn = v.qpn;
    queue.cqn = v.cqn;
    queue.sq = v.sq;
    queue.cqes = v.cqes;
    if (by_cpu) {
      queue.doorbell = reinterpret_cast<std::uintptr_t>(memory_->doorbell(q));
      rung.push_back({memory_->doorbell(q), reinterpret_cast<std::uint32_t*>(v.record),
                      static_cast<std::uint64_t*>(v.bell), v.qpn});
    } else {
      queue.doorbell = v.gpu_doorbell;
      queue.record = v.record;
      queue.handler = NicHandler::gpu_sm_db;
    }
  }
  DeviceKeys keys;
  keys.signals = signals_.lkey();
  keys.signals_there = std::move(signal_keys);
  keys.counters = counters_.lkey();
  keys.counters_here = counters_.rkey();
  keys.sink = sink_.lkey();
  TP_TRY(memory_->fill(queues, keys));
  if (by_cpu) ringer_ = std::make_unique<mlx5::DoorbellRinger>(std::move(rung));
  watch_ = std::make_unique<mlx5::QueueWatch>(*queues_);
  errors_ = std::make_unique<mlx5::ErrorLook>(*queues_, core_->gpu);
  watches_.assign(static_cast<std::size_t>(shape_.ranks),
                  PeerWatch(core_->config().peer_timeout_ms));
  let_go_.start(core_->gpu, *memory_, shape_, used_, core_->engine->counts());
  return Status::ok;
}

void AdapterContext::log_peers() const {
  const std::string gpu =
      core_->gpu >= 0 ? "GPU " + std::to_string(core_->gpu) : std::string("the CPU");
  const bool by_cpu = queues_->rung_by_cpu();
  std::string does = by_cpu ? "the adapter executes what " + gpu + " writes, a CPU thread rings"
                            : "the adapter executes what " + gpu + " writes and rings";
  if (!queues_->why_by_cpu().empty()) does += ": " + queues_->why_by_cpu();
  for (int r = 0; r < shape_.ranks; ++r) {
    if (!used(r)) continue;
    TP_INFO(net, "GIN queue to %s: %s over %s (%s), %d x depth %u, queues in %s; %s",
            r == core_->rank() ? "itself" : core_->mesh->peer_text(r).c_str(),
            name_of(by_cpu ? ModeChoice::gda_cpu : ModeChoice::gda).c_str(),
            core_->rail.port.port->name.c_str(), does.c_str(), shape_.contexts, shape_.depth,
            mlx5::name_of(queues_->memory().way()),
            core_->plans[static_cast<std::size_t>(r)].why.c_str());
  }
}

}  // namespace twinpath::gda
