#include "plugin/fabric/refusal.h"

#include <sys/resource.h>

#include <cerrno>

#include "plugin/base/refused.h"

namespace twinpath {
namespace {

constexpr const char* kControlGroup =
    "the control group's limit of RDMA objects is reached: raise rdma.max of the container or job";
constexpr const char* kGone =
    "the adapter was reset, or taken away from this container: see the kernel log (dmesg)";
constexpr const char* kMemlockRemedy =
    "; raise it with `ulimit -l unlimited` (containers: --ulimit memlock=-1; services: "
    "LimitMEMLOCK=infinity)";

struct Row {
  VerbsCall call;
  int error;
  const char* text;
};
constexpr Row kRows[] = {
    {VerbsCall::open, EACCES,
     "this user may not open /dev/infiniband/uverbs*: give the user, or the container, these "
     "devices"},
    {VerbsCall::open, EPERM,
     "this process may not open /dev/infiniband/uverbs*: give the container these devices (its "
     "device control group, too)"},
    {VerbsCall::open, ENOENT,
     "there is no device file for it: give the container /dev/infiniband/uverbs*, or load "
     "ib_uverbs"},
    {VerbsCall::open, EMFILE,
     "this process has as many files open as it may: raise the limit with `ulimit -n`"},
    {VerbsCall::open, ENFILE, "this system has as many files open as it may: raise fs.file-max"},
    {VerbsCall::open, ENOSYS,
     "libibverbs and the kernel's driver do not fit together: install the rdma-core of this "
     "system"},
    {VerbsCall::open, EPROTONOSUPPORT,
     "libibverbs and the kernel's driver do not fit together: install the rdma-core of this "
     "system"},
    {VerbsCall::open, ENOMEM,
     "memory, or the adapter's doorbell pages (UARs), are used up: fewer processes on this "
     "adapter"},
    {VerbsCall::alloc_pd, ENOMEM,
     "the adapter has no protection domain left: fewer processes on it"},
    {VerbsCall::create_cq, EINVAL,
     "the adapter has no completion queue of this length (max_cqe in `ibv_devinfo -v`)"},
    {VerbsCall::create_qp, EINVAL,
     "the adapter has no queues of this length or kind (max_qp_wr, max_sge in `ibv_devinfo -v`)"},
    {VerbsCall::create_qp, ENOSPC,
     "the adapter has no queue pair left (max_qp in `ibv_devinfo -v`): fewer connections"},
    {VerbsCall::register_host, EINVAL,
     "with fork protection (RDMAV_FORK_SAFE, IBV_FORK_SAFE), memory of huge pages needs "
     "RDMAV_HUGEPAGES_SAFE=1"},
    {VerbsCall::register_host, EFAULT, "part of the range is not mapped, or is read-only"},
    {VerbsCall::register_host, EPERM,
     "this process may lock no memory at all: raise the limit with `ulimit -l unlimited`"},
    {VerbsCall::register_gpu, EFAULT,
     "no driver finds GPU memory by its address: load nvidia_peermem, or have it registered by "
     "dma-buf (kernel 5.12, NVIDIA's open kernel modules; NCCL_DMABUF_ENABLE must not be 0)"},
    {VerbsCall::register_dmabuf, EOPNOTSUPP,
     "the kernel (5.12 or later) or the adapter's driver takes no dma-buf: update it, or load "
     "nvidia_peermem"},
    {VerbsCall::register_dmabuf, EINVAL,
     "the range is not within the dma-buf, or GPU and adapter cannot reach each other: look at "
     "IOMMU and ACS (twinpath-topo check)"},
    {VerbsCall::register_dmabuf, EREMOTEIO,
     "GPU and adapter cannot reach each other: look at IOMMU and ACS (twinpath-topo check)"},
    {VerbsCall::register_dmabuf, EBADF, "the caller's descriptor is closed"},
    {VerbsCall::register_dmabuf, ENOMEM,
     "no room is left to map the GPU's memory (its BAR1: nvidia-smi -q), or in the adapter's "
     "tables: register less, or turn on Resizable BAR"},
};

bool registers(VerbsCall call) {
  return call == VerbsCall::register_host || call == VerbsCall::register_gpu;
}
bool locks_memory(VerbsCall call) {
  return registers(call) || call == VerbsCall::create_cq || call == VerbsCall::create_qp;
}

std::string no_memory(VerbsCall call, const ProcessFacts& facts) {
  if (!facts.other.empty())
    return "raise " + facts.other + ", or free memory; " + no_memory(call, {facts.memlock, {}});
  if (facts.memlock)
    return "the limit of locked memory is " + std::to_string(*facts.memlock / 1024) + " KiB" +
           kMemlockRemedy;
  if (registers(call))
    return "locked memory is not limited, so this process has as many mappings as it may (raise "
           "vm.max_map_count), or the adapter's tables are full: register less memory";
  return "locked memory is not limited, so the adapter has none left (max_cq, max_qp in "
         "`ibv_devinfo -v`): fewer connections";
}

std::string cause(VerbsCall call, int error, const ProcessFacts& facts) {
  for (const Row& row : kRows) {
    if (row.call != call || row.error != error) continue;
    return is_refusal(error) ? std::string(row.text) + "; if that is so, " + kProfileRefuses
                             : row.text;
  }
  if (error == ENOMEM && locks_memory(call)) return no_memory(call, facts);
  if (error == EAGAIN) return kControlGroup;
  if (error == ENODEV || error == EIO) return kGone;
  if (is_refusal(error)) return kProfileRefuses;
  // Whatever else an address of a GPU gives, nobody knew it.
  if (call == VerbsCall::register_gpu) return cause(VerbsCall::register_gpu, EFAULT, facts);
  return {};
}

}  // namespace

std::string remedy_of(VerbsCall call, int error, const ProcessFacts& facts) {
  if (error == 0) return "; see the kernel log (dmesg) and the adapter's limits (ibv_devinfo -v)";
  const std::string text = cause(call, error, facts);
  return text.empty() ? text : "; " + text;
}

std::string remedy_of(VerbsCall call, int error) {
  ProcessFacts facts;
  rlimit limit{};
  if (::getrlimit(RLIMIT_MEMLOCK, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY)
    facts.memlock = limit.rlim_cur;
  facts.other = limits_of_memory();
  return remedy_of(call, error, facts);
}

}  // namespace twinpath
