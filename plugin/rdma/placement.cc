#include "plugin/rdma/placement.h"

#include <unistd.h>

#include <algorithm>

#include "plugin/base/host.h"
#include "plugin/base/log.h"
#include "plugin/gpu/driver.h"
#include "topology/decide/record_machine.h"
#include "topology/model/distance_rule.h"
#include "topology/model/place.h"
#include "topology/model/soft_places.h"
#include "topology/probe/probe_gpus.h"
#include "topology/read/read_machine.h"

namespace twinpath {
namespace {

// What NCCL itself reads when it is told no other file.
constexpr const char* kProvidersTopology = "/var/run/nvidia-topologyd/virtualTopology.xml";

MachineInput machine_input(const Config& config) {
  MachineInput input;
  input.path = config.topology;
  input.placement = config.topo_file;
  if (input.placement.empty() && ::access(kProvidersTopology, R_OK) == 0)
    input.placement = kProvidersTopology;
  return input;
}

// What may be done least with counts most.
bool lesser(const PlacementRecord& a, const PlacementRecord& b) {
  if (a.source.log2 != b.source.log2) return a.source.log2 < b.source.log2;
  return a.land.log2 < b.land.log2;
}

}  // namespace

PlacementSource live_placement(const Config& config, const Fabric& fabric) {
  PlacementSource source;
  std::string why;
  if (auto machine = read_machine(machine_input(config), why))
    source.machine = std::move(*machine);
  else
    TP_WARN(
        "%s cannot be read (%s): distances of GPUs and adapters are unknown%s",
        config.topology.empty() ? "the machine's topology" : "the topology of TWINPATH_TOPOLOGY",
        why.c_str(), config.topology.empty() ? "" : "; correct or unset TWINPATH_TOPOLOGY");
  if (source.machine.has_warning("PLACEMENT_UNREADABLE")) {
    for (const TopologyWarning& w : source.machine.warnings)
      if (w.code == "PLACEMENT_UNREADABLE")
        TP_WARN("%s%s; %s", config.topo_file.empty() ? "" : "NCCL_TOPO_FILE: ", w.text.c_str(),
                w.remedy.c_str());
  }
  const std::vector<CudaGpu> gpus = cuda_gpus();
  enter_cuda_gpus(source.machine, gpus);
  source.gpu_ordered = !gpus.empty() && std::all_of(gpus.begin(), gpus.end(),
                                                    [](const CudaGpu& g) { return g.ordered; });
  if (config.fabric == FabricChoice::soft && !place_soft_hcas(source.machine, config, why))
    TP_WARN("%s: taken as an adapter without a place", why.c_str());
  if (!config.platform_file.empty()) source.platform = PlatformFile::load(config.platform_file);
  for (const std::string& error : source.platform.errors())
    TP_WARN("TWINPATH_PLATFORM_FILE: %s: %s", config.platform_file.c_str(), error.c_str());
  for (const std::string& line : contradictions(config)) TP_WARN("%s", line.c_str());
  source.current_gpu = current_cuda_gpu;
  for (const Port& port : fabric.ports)
    if (!port.data_direct.empty() &&
        !set_data_direct(source.machine, port.device, port.data_direct))
      TP_INFO(net, "the data-direct function %s of %s has no known place", port.data_direct.c_str(),
              port.device.c_str());
  source.probes = registration_steps(fabric.verbs, cuda_memory());
  return source;
}

Placement::Placement(PlacementSource source, const Config& config)
    : source_(std::move(source)), config_(config), probes_(source_.probes) {
  if (source_.machine.host.hostname.empty()) source_.machine.host.hostname = host_name();
}

const Gpu* Placement::gpu(std::optional<int> ordinal) const {
  if (!ordinal) return nullptr;
  const auto& gpus = source_.machine.gpus;
  const auto at =
      std::find_if(gpus.begin(), gpus.end(), [&](const Gpu& g) { return g.cuda_index == ordinal; });
  return at == gpus.end() ? nullptr : &*at;
}

EndFacts Placement::facts(std::optional<int> ordinal, const Port& port) {
  const Gpu* g = gpu(ordinal);
  EndFacts f =
      pair_facts(source_.machine, g, source_.machine.find_hca(port.device), source_.platform);
  if (port.data_direct.empty()) without_data_direct(f);
  if (ordinal) f.probes = probes_.get(*ordinal, port.pd, !port.data_direct.empty());
  f.data_direct_refused = f.data_direct && f.probes.data_direct.answer == Answer::no;
  f.gpu_ordered = source_.gpu_ordered;
  f.stages = gpu::cuda::driver() != nullptr;  // else there is no GPU memory here
  return f;
}

Placement::End Placement::end(std::span<const Port* const> ports) {
  const std::optional<int> ordinal = source_.current_gpu ? source_.current_gpu() : std::nullopt;
  const EndSettings settings = end_settings(config_, -1);
  End out;
  out.names.host = source_.machine.host.hostname;
  const Gpu* g = gpu(ordinal);
  out.names.gpu = g != nullptr ? "GPU" + std::to_string(g->index)
                  : ordinal    ? "GPU(CUDA " + std::to_string(*ordinal) + ")"
                               : "no GPU";
  bool first = true;
  for (const Port* port : ports) {
    const PlacementRecord record = make_record(facts(ordinal, *port), settings);
    out.names.hca += (first ? "" : "+") + port->name;
    if (first || lesser(record, out.record)) out.record = record;
    first = false;
  }
  return out;
}

std::string Placement::refusal(std::span<const Port* const> ports) {
  const std::optional<int> ordinal = source_.current_gpu ? source_.current_gpu() : std::nullopt;
  if (!ordinal) return {};
  for (const Port* port : ports) {
    const ProbeResults results = probes_.get(*ordinal, port->pd);
    if (results.gdr() || results.gdr_untried()) continue;
    const Probe& p = results.gdr_refusal();
    const std::vector<Fact> facts{{"gpu", "GPU" + std::to_string(*ordinal)},
                                  {"hca", port->name},
                                  {"error", "errno " + std::to_string(p.error)}};
    return port->name + " registers no memory of GPU " + std::to_string(*ordinal) + ": " +
           sentence(p.reason, facts) + " (" + p.note + ")";
  }
  return {};
}

std::vector<int> Placement::in_reserve(const Port& of, std::span<const Port* const> others) const {
  struct Candidate {
    bool slow;
    Distance distance;
    int index;
    auto operator<=>(const Candidate&) const = default;
  };
  const Hca* here = source_.machine.find_hca(of.device);
  std::vector<Candidate> order;
  for (std::size_t i = 0; i < others.size(); ++i) {
    const Hca* there = source_.machine.find_hca(others[i]->device);
    if (there != nullptr && there->role == HcaRole::management) continue;
    const Distance distance = here == nullptr || there == nullptr
                                  ? Distance::unknown
                                  : hca_to_hca(source_.machine, *here, *there).distance;
    order.push_back({2 * others[i]->speed_mbps < of.speed_mbps, distance, static_cast<int>(i)});
  }
  std::sort(order.begin(), order.end());
  std::vector<int> out;
  for (const Candidate& c : order) out.push_back(c.index);
  return out;
}

std::vector<int> Placement::nearest(std::span<const Port* const> ports) {
  const std::optional<int> ordinal = source_.current_gpu ? source_.current_gpu() : std::nullopt;
  const Gpu* g = gpu(ordinal);
  std::vector<Distance> distances;
  for (const Port* port : ports) {
    const EndFacts f =
        pair_facts(source_.machine, g, source_.machine.find_hca(port->device), source_.platform);
    distances.push_back(f.distance);
  }
  std::vector<int> out;
  if (distances.empty()) return out;
  const Distance best = *std::min_element(distances.begin(), distances.end());
  for (std::size_t i = 0; i < distances.size(); ++i)
    if (distances[i] == best) out.push_back(static_cast<int>(i));
  return out;
}

}  // namespace twinpath
