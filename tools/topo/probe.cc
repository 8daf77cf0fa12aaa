#include "tools/topo/probe.h"

#include <algorithm>
#include <set>

#include "plugin/fabric/fabric.h"
#include "tools/common/cuda_driver.h"
#include "tools/topo/names.h"
#include "tools/topo/text.h"

namespace twinpath::tools::topo {
namespace {

std::string one(const char* what, const Probe& p) {
  std::string out = std::string(what) + ": " + std::string(name_of(p.answer));
  if (p.answer != Answer::yes && !p.note.empty()) out += " (" + p.note + ")";
  if (p.answer == Answer::no && p.reason != Reason::none)
    out += " " + std::string(code_of(p.reason));
  return out;
}

bool is_virtual(const Machine& machine, const std::string& device) {
  return std::any_of(machine.hcas.begin(), machine.hcas.end(), [&](const Hca& h) {
    return h.name == device && h.pci && h.pci->physical_function.has_value();
  });
}

}  // namespace

ProbeRun probe_pairs(const Input& input, const Config& config) {
  ProbeRun run;
  if (!input.no_cuda.empty()) {
    run.why_not = input.no_cuda;
    return run;
  }
  auto fabric = open_fabric(config);
  if (!fabric || (*fabric)->ports.empty()) {
    run.why_not = "no adapter with an active port can be opened (twinpath-info says why)";
    return run;
  }
  ProbeSteps steps = registration_steps((*fabric)->verbs, cuda_memory());
  std::string no_mlx5;
  const auto mlx5 = (*fabric)->kind == FabricKind::verbs ? load_mlx5(FabricKind::verbs, no_mlx5)
                                                         : Result<Mlx5>(Status::unsupported);
  if (mlx5)
    steps.uar = doorbell_step(*mlx5, [&input](const ibv_device* device) {
      return is_virtual(input.machine, device->name);
    });
  ProbeCache cache(std::move(steps));
  for (const Gpu& gpu : input.machine.gpus) {
    const auto ordinal = gpu.cuda_index ? gpu.cuda_index : cuda_ordinal(gpu.pci.bus.text());
    if (!ordinal) continue;
    std::string why;
    const auto context = CudaDriver::open(*ordinal, why);  // for as long as the GPU is tried
    std::set<std::string> done;
    for (const Port& port : (*fabric)->ports) {
      if (!done.insert(port.device).second) continue;
      ProbeResults r;
      if (context == nullptr) {
        r.dmabuf.note = r.peermem.note = why;
      } else {
        r = cache.get(*ordinal, port.pd, !port.data_direct.empty());
      }
      run.results[{gpu.index, port.device}] = r;
    }
  }
  if (run.results.empty()) run.why_not = "CUDA shows none of this machine's GPUs";
  return run;
}

std::string probe_text(const Report& report, const ProbeRun& run) {
  if (!run.why_not.empty()) return "not tried: " + run.why_not + "\n";
  std::string out;
  for (const auto& [pair, p] : run.results) {
    out += wrapped(
        "  GPU" + std::to_string(pair.first) + " " + pair.second + "  " + one("dma-buf", p.dmabuf) +
            "; " +
            (p.data_direct.answer == Answer::untried ? std::string()
                                                     : one("data direct", p.data_direct) + "; ") +
            one("peermem", p.peermem) + "; " + one("doorbell", p.uar) + "; " +
            one("atomics", p.atomics),
        8);
  }
  for (const Hca& h : report.machine.hcas) {
    const bool tried = std::any_of(run.results.begin(), run.results.end(),
                                   [&](const auto& r) { return r.first.second == h.name; });
    if (!tried) out += "  " + h.name + "  not tried: not opened (no active port, or left out)\n";
  }
  return out;
}

}  // namespace twinpath::tools::topo
