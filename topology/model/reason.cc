// The catalogue of reasons and the expansion of its sentences.
#include "topology/model/reason.h"

#include <array>
#include <utility>

namespace twinpath {
namespace {

using enum Reason;

constexpr std::string_view kGetGdr =
    "NVIDIA's open kernel modules with kernel 5.12 or later give dma-buf; or `modprobe "
    "nvidia_peermem`";
constexpr std::string_view kMeasure =
    "give measured rates in a platform file (TWINPATH_PLATFORM_FILE), or allow it "
    "(NCCL_NET_GDR_LEVEL={class})";
constexpr std::string_view kFlat =
    "a platform file (TWINPATH_PLATFORM_FILE) or NCCL_TOPO_FILE of the provider";

constexpr std::array<ReasonText, kReasons> kCatalogue{{
    {none, "NONE", "nothing stands in the way", ""},
    {ok_self, "OK_SELF", "{gpu} and {hca} are functions of one device", ""},
    {ok_pix, "OK_PIX", "{gpu} and {hca} share {switch}", ""},
    {ok_pxb, "OK_PXB", "only PCIe switches lie between {gpu} and {hca}", ""},
    {c2c_near, "C2C_NEAR", "{hca} sits on the CPU that {gpu} is linked to by NVLink-C2C", ""},
    {ok_root, "OK_ROOT", "{class}: posted writes cross this host's root complex at full rate", ""},
    {ok_measured, "OK_MEASURED", "{class}, but measured at {rate} of {line} GB/s", ""},
    {ok_virtual, "OK_VIRTUAL", "{hca} has no place on PCIe: its engine copies the data", ""},
    {dd_used, "DD_USED",
     "the data-direct function of {hca} is {class} to {gpu}; the physical function alone would be "
     "{pf_class}",
     ""},
    {level_allows, "LEVEL_ALLOWS", "{class} lies within NCCL_NET_GDR_LEVEL", ""},
    {read_forced, "READ_FORCED", "NCCL_NET_GDR_READ=1 has reads go as writes do", ""},

    {gdr_none, "GDR_NONE", "{hca} cannot address memory of {gpu}: no dma-buf, no nvidia_peermem",
     kGetGdr},
    {gdr_untried, "GDR_UNTRIED", "registering memory of {gpu} on {hca} has not been tried", ""},
    {gdr_perm, "GDR_PERM", "registering memory of {gpu} on {hca} is not permitted ({error})",
     "give the container /dev/infiniband and the capability IPC_LOCK"},
    {gdr_bar1, "GDR_BAR1", "no room to map memory of {gpu} for {hca} ({error})",
     "raise the memlock limit (`ulimit -l unlimited`); in the BIOS turn on Above 4G Decoding and "
     "Resizable BAR"},
    {gdr_enotsupp, "GDR_ENOTSUPP",
     "the kernel refuses peer-to-peer between {gpu} and {hca} ({error}): other root ports, or ACS",
     "`twinpath-topo check` names the port; NVreg_GrdmaPciTopoCheckOverride=1 where the placement "
     "is sound"},
    {gdr_failed, "GDR_FAILED", "registering memory of {gpu} on {hca} failed ({error})",
     "see the kernel's log"},
    {dd_refused, "DD_REFUSED",
     "the data-direct function of {hca} refused memory of {gpu} ({error}): ACS or IOMMU groups",
     "`rdma_topo write-grub-acs`, or NVreg_GrdmaPciTopoCheckOverride=1"},

    {gdr_acs, "GDR_ACS",
     "ACS redirects traffic between {gpu} and {hca} through the root complex ({where})",
     "turn ACS redirection off on that port (bare metal only)"},
    {gdr_far, "GDR_FAR", "{class} lies beyond NCCL_NET_GDR_LEVEL",
     "move the HCA, or set NCCL_NET_GDR_LEVEL={class}"},
    {root_unproven, "ROOT_UNPROVEN",
     "{class}: this CPU's root complex is not known to carry peer-to-peer writes at full rate",
     kMeasure},
    {read_slow, "READ_SLOW", "{class}: reads were measured at {rate} of {line} GB/s", ""},
    {read_unproven, "READ_UNPROVEN", "{class}: reads through a root complex often run at half rate",
     kMeasure},
    {write_slow, "WRITE_SLOW", "{class}: writes were measured at {rate} of {line} GB/s", ""},
    {socket_far, "SOCKET_FAR", "{class}: the way from {gpu} to {hca} crosses the socket link",
     "use an HCA of the GPU's own socket"},
    {place_hidden, "PLACE_HIDDEN",
     "the hypervisor hides where {gpu} and {hca} sit; taken for near, as such machines are built",
     kFlat},
    {numa_unknown, "NUMA_UNKNOWN", "nothing tells where {gpu} and {hca} sit; taken for far",
     "the BIOS or hypervisor must report NUMA nodes; or TWINPATH_PLATFORM_FILE"},
    {read_old_gpu, "READ_OLD_GPU",
     "{gpu} is older than compute capability 8.0 and has no NVLink: reads of its memory are slow",
     "NCCL_NET_GDR_READ=1 reads nevertheless"},
    {read_off, "READ_OFF", "NCCL_NET_GDR_READ=0", "unset NCCL_NET_GDR_READ"},

    {gpu_rings, "GPU_RINGS", "{gpu} writes work requests and rings {hca} itself", ""},
    {cpu_moves, "CPU_MOVES", "the CPU must move the data anyway: {other}", ""},
    {host_driven, "HOST_DRIVEN", "the host starts these transfers: no GPU is waiting to ring", ""},
    {devx_none, "DEVX_NONE", "{hca} gives no work queues that a GPU could write (DevX)",
     "an mlx5 adapter whose firmware and driver offer DevX, and access to /dev/infiniband/uverbs*"},
    {uar_vendor, "UAR_VENDOR", "{hca} is not of the mlx5 family: no GPU can write its queues", ""},
    {uar_perm, "UAR_PERM", "{gpu} may not map the doorbell of {hca} ({error})",
     "NVreg_RegistryDwords=\"PeerMappingOverride=1\", or run with CAP_SYS_ADMIN"},
    {uar_vf, "UAR_VF", "{hca} is a virtual function whose doorbell {gpu} cannot map ({error})",
     "use the physical function"},
    {uar_untried, "UAR_UNTRIED", "mapping the doorbell of {hca} into {gpu} has not been tried", ""},
    {uar_failed, "UAR_FAILED", "{gpu} could not map the doorbell of {hca} ({error})",
     "see the kernel's log"},
    {gpu_old, "GPU_OLD", "{gpu} is older than compute capability 7.0", ""},
    {qbuf_host, "QBUF_HOST", "queues of {hca} cannot lie in memory of {gpu}: they stay on the host",
     kGetGdr},
    {atomic_emul, "ATOMIC_EMUL",
     "{hca} has no atomics on GPU memory: signals are writes of a counter with one writer", ""},
    {flush_needed, "FLUSH_NEEDED", "data from {hca} needs a flush before {gpu} may read it", ""},

    {mode_set, "MODE_SET", "TWINPATH_MODE or TWINPATH_PEER_MODE asks for {wish}", ""},
    {mode_impossible, "MODE_IMPOSSIBLE", "{wish} was asked for and cannot be had", ""},
    {mode_conflict, "MODE_CONFLICT", "the ends ask for different modes; the lesser, {wish}, holds",
     "set TWINPATH_MODE alike on all hosts"},
    {peer_mismatch, "PEER_MISMATCH", "the two directions differ: {mode} out, {other} in", ""},

    {mgmt_nic, "MGMT_NIC", "{hca} is a management adapter ({where}): not used",
     "name it in NCCL_IB_HCA if it should be"},
    {port_down, "PORT_DOWN", "no port of {hca} is active", "see cable, switch and subnet manager"},
    {hca_excluded, "HCA_EXCLUDED", "{hca} is left out by NCCL_IB_HCA or the platform file", ""},
    {link_degraded, "LINK_DEGRADED", "{hca} runs at {rate} and can do {line} GB/s",
     "reseat the card; see the slot's width and the BIOS"},
    {vm_flat, "VM_FLAT", "the hypervisor shows no PCIe switches", kFlat},
    {hwloc_blind, "HWLOC_BLIND",
     "hwloc found no PCIe bridges although sysfs has some (config space is unreadable)",
     "mount /sys readable; sysfs is used meanwhile"},
    {relay_possible, "RELAY_POSSIBLE", "a neighbour of {gpu} over NVLink has a nearer HCA",
     "NCCL's PXN relays over NVLink unless NCCL_PXN_DISABLE=1"},
    {uar_soft, "UAR_SOFT", "{hca} is software: it has no doorbell page that a GPU could ring", ""},
    {hca_transport, "HCA_TRANSPORT",
     "{hca} speaks {transport}: this version connects queue pairs of InfiniBand and RoCE only",
     "another plugin (aws-ofi-nccl serves EFA and Slingshot)"},
    {gpu_vendor, "GPU_VENDOR", "{gpu} is AMD's: this version serves NVIDIA GPUs only",
     "RCCL with its own transports"},
    {not_asked, "NOT_ASKED",
     "queues that {hca} itself reads have run on no real adapter yet: a CPU thread posts what "
     "kernels write",
     "TWINPATH_MODE=gda on both ends tries them"},
    {never_staged, "NEVER_STAGED",
     "GIN windows are never staged: {hca} reaches them at any distance, though slowly", ""},
    {dd_off, "DD_OFF",
     "memory is registered with the physical function of {hca} ({pf_class}), not with its "
     "data-direct function",
     "unset NCCL_IB_DATA_DIRECT=0"},
    {foreign, "FOREIGN", "a reason that this version does not know", "use one version everywhere"},
}};

constexpr bool in_order() {
  for (std::size_t i = 0; i < kCatalogue.size(); ++i) {
    if (static_cast<std::size_t>(kCatalogue[i].reason) != i) return false;
  }
  return true;
}
static_assert(in_order(), "rows of the catalogue stand in the order of the enumerators");

constexpr std::array<std::pair<std::string_view, std::string_view>, 14> kGeneral{{
    {"gpu", "the GPU"},
    {"hca", "the HCA"},
    {"class", "the distance"},
    {"pf_class", "farther"},
    {"switch", "a PCIe switch"},
    {"error", "no error number"},
    {"rate", "a part"},
    {"line", "the link's"},
    {"where", "port not read"},
    {"other", "see there"},
    {"wish", "the mode set"},
    {"mode", "one mode"},
    {"peer", "the peer"},
    {"transport", "another transport"},
}};

std::string_view value_of(std::string_view name, std::span<const Fact> facts) {
  for (const Fact& f : facts) {
    if (f.name == name && !f.value.empty()) return f.value;
  }
  for (const auto& [general, word] : kGeneral) {
    if (general == name) return word;
  }
  return "?";
}

std::string expand(std::string_view text, std::span<const Fact> facts) {
  std::string out;
  while (!text.empty()) {
    const std::size_t open = text.find('{');
    out += text.substr(0, open);
    if (open == std::string_view::npos) break;
    const std::size_t close = text.find('}', open);
    out += value_of(text.substr(open + 1, close - open - 1), facts);
    text.remove_prefix(close + 1);
  }
  return out;
}

}  // namespace

const ReasonText& text_of(Reason reason) {
  const auto i = static_cast<std::size_t>(reason);
  return i < kCatalogue.size() ? kCatalogue[i] : kCatalogue.back();
}
std::string_view code_of(Reason reason) { return text_of(reason).code; }
std::span<const ReasonText> reason_catalogue() { return kCatalogue; }

std::string sentence(Reason reason, std::span<const Fact> facts) {
  return expand(text_of(reason).sentence, facts);
}
std::string remedy(Reason reason, std::span<const Fact> facts) {
  return expand(text_of(reason).remedy, facts);
}

}  // namespace twinpath
