// GDRCopy: whether it is there for whom asks for it, and whether NCCL's own flush with it suffices.
// For that NCCL has the CPU load one word of GPU memory instead of asking the plugin, which waits
// for the HCA's writes only where both take one way to the GPU.
#include <cstdlib>

#include "tools/topo/acs.h"
#include "tools/topo/check.h"
#include "tools/topo/names.h"

namespace twinpath::tools::topo {
namespace {

// NCCL takes numbers of any base.
bool is_one(const JobFacts& j, const char* name) {
  const auto it = j.environment.find(name);
  return it != j.environment.end() && std::strtoll(it->second.c_str(), nullptr, 0) == 1;
}

struct Judged {
  Level level = Level::ok;
  std::string fact;
};

Judged judge(const Report& r, const PairReport& p) {
  const Machine& m = r.machine;
  const Gpu& gpu = m.gpus[static_cast<std::size_t>(p.gpu)];
  Hca hca = m.hcas[static_cast<std::size_t>(p.hca)];
  if (hca.data_direct && r.settings.config.ib_data_direct != 0 && !p.facts.data_direct_refused)
    return {Level::warn, "its data-direct function writes by another way"};
  hca.data_direct.reset();
  const Distance pcie = gpu_to_hca(m, gpu, hca).pcie;
  if (gpu.c2c_node && pcie <= Distance::pxb)
    return {Level::warn, "the HCA writes by PCIe, the CPU may load by NVLink-C2C"};
  // From Hopper on NCCL asks for no flush where the HCA does not demand it.
  if (gpu.compute_capability.value_or(0) >= 90 && !is_one(*r.job, "NCCL_NET_FORCE_FLUSH"))
    return {Level::ok, "NCCL needs no flush there"};
  if (pcie == Distance::unknown) return {Level::unknown, "nothing tells where they sit"};
  if (pcie > Distance::phb) return {Level::warn, "they are below different host bridges"};
  const AcsView acs = acs_view(m, gpu, hca);
  if (acs.verdict == Verdict::bad) return {Level::warn, acs.text};
  if (acs.verdict == Verdict::unknown) return {Level::unknown, "ACS: " + acs.text};
  return {Level::ok, "the CPU's load takes the way of the HCA's writes"};
}

// Of the plugin only completions in GPU memory go through it.
void check_presence(const Report& r, Checks& out) {
  const bool completions = r.settings.config.gin_cq == QueuePlace::gpu;
  const gpu::GdrState& found = *r.gdrcopy;
  if (!r.settings.config.gdrcopy) {
    if (completions)
      out.add("gdrcopy", "", Level::ok,
              "completions go to GPU memory by copies" +
                  (found.usable ? "; NCCL_GDRCOPY_ENABLE=1 would use GDRCopy: " + found.text
                                : std::string()));
  } else if (!found.usable) {
    out.add("gdrcopy", "", Level::warn,
            "NCCL_GDRCOPY_ENABLE=1 has no effect: " + found.text +
                (completions ? "; completions go to GPU memory by copies" : ""),
            "install GDRCopy and load gdrdrv, or unset NCCL_GDRCOPY_ENABLE");
  } else {
    out.add("gdrcopy", "", Level::ok,
            found.text + (completions ? ": completions in GPU memory go through it"
                                      : ": the plugin uses it only with TWINPATH_GIN_CQ=gpu"));
  }
}

void check_flush(const Report& r, Checks& out) {
  // Both are off by default.
  if (!is_one(*r.job, "NCCL_GDRCOPY_ENABLE") || !is_one(*r.job, "NCCL_GDRCOPY_FLUSH_ENABLE"))
    return;
  for (const GpuReport& g : r.gpus) {
    if (!g.hca) continue;
    const PairReport& p = r.pair(g.gpu, *g.hca);
    // Where all data is staged the HCA writes nothing there; one without a place is software.
    if (p.host_runs.by.landing.direct_max == 0 || p.facts.without_place) continue;
    const Judged judged = judge(r, p);
    const std::string object = gpu_name(r.machine.gpus[static_cast<std::size_t>(p.gpu)]) + " " +
                               r.machine.hcas[static_cast<std::size_t>(p.hca)].name;
    out.add("gdrcopy-flush", object, judged.level,
            judged.level == Level::ok
                ? judged.fact
                : "NCCL flushes by a load of the CPU, which may not wait for data: " + judged.fact,
            judged.level == Level::ok ? ""
                                      : "unset NCCL_GDRCOPY_FLUSH_ENABLE: the plugin flushes then");
  }
}

}  // namespace

void check_gdrcopy(const Report& r, Checks& out) {
  if (r.gdrcopy) check_presence(r, out);
  check_flush(r, out);
}

}  // namespace twinpath::tools::topo
