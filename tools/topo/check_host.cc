// What holds for the whole node: driver, kernel, limits, settings.
#include <charconv>

#include "tools/topo/check.h"
#include "tools/topo/names.h"
#include "topology/model/pci_ids.h"

namespace twinpath::tools::topo {
namespace {

constexpr const char* kNotTold = "the source does not tell";

bool any_nvidia(const Machine& m) {
  for (const Gpu& g : m.gpus)
    if (g.pci.id.vendor == kNvidia) return true;
  return false;
}

// Whether a kernel's verbs take a dma-buf: 5.12 or later; nullopt for other text.
std::optional<bool> kernel_takes_dmabuf(const std::string& version) {
  int major = 0, minor = 0;
  const char* const end = version.data() + version.size();
  const auto [dot, error] = std::from_chars(version.data(), end, major);
  if (error != std::errc{} || dot == end || *dot != '.') return std::nullopt;
  if (std::from_chars(dot + 1, end, minor).ec != std::errc{}) return std::nullopt;
  return major > 5 || (major == 5 && minor >= 12);
}

void driver(const Machine& m, Checks& out) {
  if (m.gpus.empty()) {
    if (m.has_warning("NO_PCI")) {
      out.add("gpu", "", Level::unknown, "PCI devices cannot be listed", "mount /sys readable");
    } else {
      out.add("gpu", "", Level::fail, "no GPU found",
              "in a container give it the GPUs (nvidia-container-toolkit)");
    }
    return;
  }
  out.add("gpu", "", Level::ok, std::to_string(m.gpus.size()) + " found");
  for (const Gpu& g : m.gpus)
    if (!served(g))
      out.add("gpu-vendor", gpu_name(g), Level::fail, sentence(Reason::gpu_vendor, {}),
              remedy(Reason::gpu_vendor, {}));
  const HostFacts& h = m.host;
  if (!any_nvidia(m)) {
    out.add("driver", "", Level::unknown, "no NVIDIA GPU: CUDA's checks do not apply");
    return;
  }
  if (h.nvidia_driver) {
    out.add("driver", "", Level::ok, "NVIDIA " + *h.nvidia_driver);
  } else if (h.peermem) {  // so the list of modules was read
    out.add("driver", "", Level::fail, "the NVIDIA driver is not loaded",
            "install it, `modprobe nvidia`");
  } else {
    out.add("driver", "", Level::unknown, kNotTold, "run on the node itself");
  }
  for (const Gpu& g : m.gpus) {
    if (g.gdr == false)
      out.add("gpu-gdr", gpu_name(g), Level::fail,
              "the CUDA driver says that it has no GPUDirect RDMA",
              "none: such GPUs (integrated, GeForce) go through host memory");
  }
}

void dmabuf_and_peermem(const Machine& m, Checks& out) {
  const HostFacts& h = m.host;
  const auto kernel = kernel_takes_dmabuf(h.kernel);
  std::optional<bool> dmabuf;
  if (h.nvidia_open == false || kernel == false) dmabuf = false;
  if (h.nvidia_open == true && kernel == true) dmabuf = true;
  const bool fallback = h.peermem == true;

  if (kernel) {
    out.add(
        "kernel", "", *kernel || fallback ? Level::ok : Level::fail,
        h.kernel + (*kernel ? " takes dma-buf (5.12 or later)" : " is older than 5.12: no dma-buf"),
        *kernel ? "" : "a newer kernel, or `modprobe nvidia_peermem`");
  } else {
    out.add("kernel", "", Level::unknown, kNotTold, "run on the node itself");
  }
  if (h.nvidia_open) {
    out.add("open-modules", "",
            *h.nvidia_open ? Level::ok
            : fallback     ? Level::ok
                           : Level::fail,
            *h.nvidia_open ? "the driver's open kernel modules export dma-buf"
                           : "proprietary kernel modules export no dma-buf",
            *h.nvidia_open ? "" : "install the open kernel modules (data direct needs them)");
  } else {
    out.add("open-modules", "", Level::unknown, kNotTold,
            "see /proc/driver/nvidia/version on the node");
  }
  if (h.peermem == true) {
    out.add("peermem", "", Level::ok, "nvidia_peermem is loaded");
  } else if (h.peermem == false) {
    const Level level = dmabuf == true ? Level::ok : dmabuf == false ? Level::fail : Level::warn;
    out.add("peermem", "", level,
            dmabuf == true ? "nvidia_peermem is not loaded; dma-buf does without it"
                           : "nvidia_peermem is not loaded",
            level == Level::ok ? "" : "`modprobe nvidia_peermem`, or have dma-buf");
  } else {
    out.add("peermem", "", Level::unknown, kNotTold, "run on the node itself");
  }
}

void registry(const Report& r, Checks& out) {
  const HostFacts& h = r.machine.host;
  if (!h.nvidia_registry) {
    out.add("registry", "", Level::unknown, "RegistryDwords of the driver were not readable",
            "see /proc/driver/nvidia/params on the node");
    return;
  }
  if (h.nvidia_registry->find("PeerMappingOverride=1") != std::string::npos) {
    out.add("registry", "", Level::ok, "PeerMappingOverride=1 is set");
  } else {
    out.add("registry", "", Level::ok,
            "PeerMappingOverride=1 is not set; mode gda as root alone, else a CPU thread rings");
  }
}

}  // namespace

void check_gdr(const Report& r, Checks& out) {
  const Machine& m = r.machine;
  out.begin("GPUDirect RDMA");
  driver(m, out);
  if (!m.gpus.empty() && any_nvidia(m)) dmabuf_and_peermem(m, out);
  bool direct = false;
  for (const Hca& h : m.hcas) direct = direct || h.data_direct.has_value();
  const auto& override_set = m.host.nvidia_topo_check_override;
  if (direct || override_set == true) {
    out.add(
        "topo-override", "", Level::ok,
        !override_set   ? "NVreg_GrdmaPciTopoCheckOverride: the source does not tell (needed only "
                          "where data direct is refused)"
        : *override_set ? "NVreg_GrdmaPciTopoCheckOverride=1: the driver does not judge placement"
                        : "NVreg_GrdmaPciTopoCheckOverride is not set (needed only where data "
                          "direct is refused)");
  }
  if (!r.settings.probes.empty()) {
    for (const auto& [pair, p] : r.settings.probes) {
      const std::string object = "GPU" + std::to_string(pair.first) + " " + pair.second;
      if (p.gdr()) {
        out.add("registration", object, Level::ok, "tried: works");
      } else if (!p.gdr_untried()) {
        out.add("registration", object, Level::fail, "tried: " + p.gdr_refusal().note,
                remedy(p.gdr_refusal().reason, {}));
      }
    }
  }
}

void check_doorbells(const Report& r, Checks& out) {
  const Machine& m = r.machine;
  if (m.gpus.empty() || m.hcas.empty()) return;
  out.begin("GPU-initiated transfers");
  bool mlx5 = false;
  for (const Hca& h : m.hcas) {
    if (h.role == HcaRole::management || !h.foreign.empty()) continue;
    mlx5 = mlx5 || h.kind == HcaKind::mlx5;
    if (h.kind != HcaKind::mlx5 && h.kind != HcaKind::soft)
      out.add("hca-family", h.name, Level::ok,
              "not of the mlx5 family: a CPU thread posts what kernels write");
  }
  if (mlx5)
    out.add("hca-family", "", Level::ok,
            "mlx5 HCAs have queues that a GPU can write (TWINPATH_MODE=gda), else a CPU posts");
  if (!mlx5) return;
  for (const Gpu& g : m.gpus) {
    if (!g.compute_capability) {
      out.add("gpu-cc", gpu_name(g), Level::unknown, "not told: the CUDA driver was not asked",
              "7.0 or later is needed");
    } else if (*g.compute_capability < 70) {
      out.add("gpu-cc", gpu_name(g), Level::warn,
              number(*g.compute_capability / 10.0, 1) + " is below 7.0: NCCL has no GIN for it",
              "none: host-driven transfers serve it");
    } else {
      out.add("gpu-cc", gpu_name(g), Level::ok, number(*g.compute_capability / 10.0, 1));
    }
  }
  if (any_nvidia(m)) registry(r, out);
  for (const auto& [pair, p] : r.settings.probes) {
    const std::string object = "GPU" + std::to_string(pair.first) + " " + pair.second;
    if (p.uar.answer == Answer::yes)
      out.add("doorbell", object, Level::ok, "tried: the GPU maps it");
    else if (p.uar.answer == Answer::no)
      out.add("doorbell", object, Level::warn,
              "tried: " + p.uar.note + "; with mode gda a CPU thread rings",
              remedy(p.uar.reason, {}));
  }
  const auto& uverbs = m.host.uverbs;
  if (uverbs == true) {
    out.add("uverbs", "", Level::ok, "/dev/infiniband/uverbs* are there");
  } else if (uverbs == false) {
    out.add("uverbs", "", Level::fail, "/dev/infiniband has no uverbs device",
            "`modprobe ib_uverbs`; a container needs --device /dev/infiniband");
  } else {
    out.add("uverbs", "", Level::unknown, "/dev/infiniband was not readable",
            "on the node: ls /dev/infiniband; a container needs --device /dev/infiniband");
  }
}

void check_host(const Report& r, Checks& out) {
  const Machine& m = r.machine;
  const HostFacts& h = m.host;
  out.begin("node");
  constexpr std::uint64_t kEnough = std::uint64_t{1} << 30;
  if (!h.memlock) {
    out.add("memlock", "", Level::unknown, "the limit of locked memory was not readable",
            "`ulimit -l` should print unlimited");
  } else if (*h.memlock == ~std::uint64_t{0}) {
    out.add("memlock", "", Level::ok, "unlimited");
  } else {
    const std::string limit = std::to_string(*h.memlock >> 10) + " KiB may be locked";
    out.add("memlock", "", *h.memlock >= kEnough ? Level::warn : Level::fail, limit,
            "`ulimit -l unlimited`, /etc/security/limits.conf, or --ulimit memlock=-1");
  }
  if (!h.iommu_on) {
    out.add("iommu", "", Level::unknown, "whether there is one was not readable",
            "see /sys/class/iommu on the node");
  } else if (!*h.iommu_on) {
    out.add("iommu", "", Level::ok, "off");
  }
  if (h.virtual_machine == true)
    out.add("virtual-machine", "", m.has_warning("VM_FLAT") ? Level::warn : Level::ok,
            m.has_warning("VM_FLAT") ? "the hypervisor hides the PCIe tree: classes are guesses"
                                     : "a guest that sees its PCIe tree",
            m.has_warning("VM_FLAT")
                ? "the provider's topology as NCCL_TOPO_FILE, or a platform file"
                : "");
  for (const TopologyWarning& w : m.warnings) {
    // The others have checks of their own.
    if (w.code == "LINK_DEGRADED" || w.code == "NUMA_UNKNOWN" || w.code == "MGMT_NIC" ||
        w.code == "VM_FLAT" || w.code == "GPU_NO_PARENT")
      continue;
    out.add("reading", "", Level::warn, w.code + ": " + w.text, w.remedy);
  }
  for (const std::string& e : r.settings.platform.errors())
    out.add("platform-file", "", Level::warn, e, "correct the line; it was skipped");
}

}  // namespace twinpath::tools::topo
