// The probes' plumbing: what errors mean, registrations through the verbs table, the cache.
#include "topology/probe/probe.h"

#include <cerrno>
#include <cstring>

#include "plugin/base/owned.h"
#include "plugin/gpu/dmabuf.h"

namespace twinpath {
namespace {

constexpr int kKernelNotSupported = 524;  // the kernel's ENOTSUPP, which <cerrno> does not have
constexpr int kCudaNotPermitted = 800;
constexpr int kAccess = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ;

Probe registered(const Verbs& verbs, ibv_mr* mr, const char* call, int error) {
  if (mr == nullptr) {
    const std::string text =
        error == kKernelNotSupported ? "not supported by the kernel" : std::strerror(error);
    return {Answer::no, error, reason_of_gdr_error(error),
            std::string(call) + ": " + text + " (errno " + std::to_string(error) + ")"};
  }
  (void)verbs.dereg_mr(mr);
  return {Answer::yes, 0, Reason::none, call};
}

}  // namespace

std::string_view name_of(Answer answer) {
  switch (answer) {
    case Answer::untried:
      return "not tried";
    case Answer::no:
      return "no";
    case Answer::yes:
      break;
  }
  return "yes";
}

const Probe& ProbeResults::gdr_refusal() const {
  static const Probe kNothing;
  if (gdr()) return kNothing;
  // "Not there" says less than what a working way ran into.
  const auto telling = [](const Probe& p) {
    return p.answer == Answer::no && p.reason != Reason::gdr_none;
  };
  if (telling(dmabuf)) return dmabuf;
  if (telling(peermem)) return peermem;
  return dmabuf.answer == Answer::no ? dmabuf : peermem;
}

Reason reason_of_gdr_error(int error) {
  switch (error) {
    case kKernelNotSupported:
      return Reason::gdr_enotsupp;
    case EOPNOTSUPP:
    case ENOSYS:
    case EPROTONOSUPPORT:
    case EFAULT:
      return Reason::gdr_none;
    case EPERM:
    case EACCES:
      return Reason::gdr_perm;
    case ENOMEM:
    case ENOSPC:
      return Reason::gdr_bar1;
    default:
      return Reason::gdr_failed;
  }
}

Reason reason_of_uar_error(int cuda_error, bool virtual_function) {
  if (cuda_error == kCudaNotPermitted) return Reason::uar_perm;
  return virtual_function ? Reason::uar_vf : Reason::uar_failed;
}

ProbeSteps registration_steps(const Verbs& verbs, WithGpuMemory memory) {
  ProbeSteps steps;
  const Verbs* v = &verbs;
  steps.dmabuf = [v, memory](int gpu, ibv_pd* pd) -> Probe {
    if (v->reg_dmabuf_mr == nullptr)
      return {Answer::no, EOPNOTSUPP, Reason::gdr_none, "these verbs have no ibv_reg_dmabuf_mr"};
    return memory(gpu, true, [&](std::uint64_t address, std::size_t bytes, int fd) {
      errno = 0;
      ibv_mr* mr = v->reg_dmabuf_mr(pd, 0, bytes, address, fd, kAccess);
      return registered(*v, mr, "ibv_reg_dmabuf_mr", errno);
    });
  };
  steps.data_direct = [v, memory](int gpu, ibv_pd* pd) -> Probe {
    if (v->reg_data_direct == nullptr)
      return {Answer::no, EOPNOTSUPP, Reason::gdr_none, "no mlx5dv_reg_dmabuf_mr"};
    return memory(gpu, true, [&](std::uint64_t address, std::size_t bytes, int fd) {
      // As registrations for that function are made; an older driver has one mapping only.
      const UniqueFd pcie(gpu::export_dmabuf(address, bytes, gpu::DmabufMapping::pcie));
      errno = 0;
      ibv_mr* mr =
          v->reg_data_direct(pd, 0, bytes, address, pcie ? pcie.get() : fd, kAccess, kDataDirect);
      return registered(*v, mr, "mlx5dv_reg_dmabuf_mr", errno);
    });
  };
  steps.peermem = [v, memory](int gpu, ibv_pd* pd) {
    return memory(gpu, false, [&](std::uint64_t address, std::size_t bytes, int) {
      errno = 0;
      ibv_mr* mr = v->reg_mr_iova2(pd, reinterpret_cast<void*>(address), bytes, address, kAccess);
      return registered(*v, mr, "ibv_reg_mr", errno);
    });
  };
  steps.atomics = [v](int, ibv_pd* pd) -> Probe {
    ibv_device_attr attr{};
    if (const int error = v->query_device(pd->context, &attr); error != 0)
      return {Answer::no, error, Reason::atomic_emul, "ibv_query_device failed"};
    if (attr.atomic_cap == IBV_ATOMIC_NONE)
      return {Answer::no, 0, Reason::atomic_emul, "the adapter has no atomics"};
    return {Answer::yes, 0, Reason::none, "ibv_query_device"};
  };
  return steps;
}

ProbeResults ProbeCache::get(int gpu, ibv_pd* pd, bool data_direct) {
  Entry* entry = nullptr;
  {
    std::lock_guard hold(mutex_);
    entry = &entries_[{gpu, pd}];
  }
  std::lock_guard hold(entry->mutex);
  const auto once = [&](Probe& p, const std::function<Probe(int, ibv_pd*)>& step) {
    if (p.answer == Answer::untried && step) p = step(gpu, pd);
  };
  ProbeResults& r = entry->results;
  once(r.dmabuf, steps_.dmabuf);
  if (data_direct) once(r.data_direct, steps_.data_direct);
  once(r.peermem, steps_.peermem);
  once(r.uar, steps_.uar);
  once(r.atomics, steps_.atomics);
  return r;
}

}  // namespace twinpath
