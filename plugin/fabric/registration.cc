#include "plugin/fabric/registration.h"

#include <cerrno>

#include "plugin/base/owned.h"
#include "plugin/base/page_size.h"
#include "plugin/base/reason_text.h"
#include "plugin/fabric/refusal.h"
#include "plugin/gpu/dmabuf.h"

namespace twinpath {
namespace {

constexpr int kNotExported = ENODEV;

class Registration {
 public:
  Registration(const Verbs& verbs, ibv_pd* pd, const RangeRequest& range)
      : verbs_(verbs), pd_(pd), range_(range) {}

  // True when it is registered, or nothing else need be tried.
  bool attempt(GpuWay way) {
    if (way != GpuWay::address && !have_dmabuf(way)) {
      note(way, kNotExported, "the GPU's driver exports none");
      return false;
    }
    // The data-direct function refuses for reasons of its own; its neighbour is tried instead.
    const bool again = range_.relaxed_ordering && way != GpuWay::data_direct;
    made_.relaxed_ordering = range_.relaxed_ordering;
    made_.mr = once(way, range_.access | (made_.relaxed_ordering ? kRelaxed : 0));
    if (made_.mr == nullptr && again && (errno == EINVAL || errno == EOPNOTSUPP)) {
      made_.relaxed_ordering = false;
      made_.mr = once(way, range_.access);
    }
    made_.way = way;
    if (made_.mr != nullptr) return true;
    const int error = errno;
    note(way, error, nullptr);
    if (way == GpuWay::data_direct) made_.data_direct_error = error;
    return error == ENOMEM;
  }

  RangeMr end() {
    if (made_.mr == nullptr) made_.refused += remedy_of(first_call_, first_error_);
    return std::move(made_);
  }
  RangeMr end_host() {
    if (made_.mr == nullptr)
      made_.refused = reason_text(made_.error) + remedy_of(VerbsCall::register_host, made_.error);
    return std::move(made_);
  }

 private:
  static constexpr int kRelaxed = IBV_ACCESS_RELAXED_ORDERING;

  bool have_dmabuf(GpuWay way) {
    fd_ = range_.dmabuf_fd;
    offset_ = range_.dmabuf_offset;
    if (fd_ >= 0) return true;
    const std::uint64_t from = page_start(range_.address);
    own_ = UniqueFd(gpu::export_dmabuf(
        from, page_end(range_.address + range_.bytes) - from,
        way == GpuWay::data_direct ? gpu::DmabufMapping::pcie : gpu::DmabufMapping::usual));
    fd_ = own_.get();
    offset_ = range_.address - from;
    return fd_ >= 0;
  }

  ibv_mr* once(GpuWay way, int access) {
    errno = 0;
    switch (way) {
      case GpuWay::data_direct:
        return verbs_.reg_data_direct(pd_, offset_, range_.bytes, range_.iova, fd_, access,
                                      kDataDirect);
      case GpuWay::dmabuf:
        if (verbs_.reg_dmabuf_mr != nullptr)
          return verbs_.reg_dmabuf_mr(pd_, offset_, range_.bytes, range_.iova, fd_, access);
        errno = EOPNOTSUPP;
        return nullptr;
      case GpuWay::address:
        return verbs_.reg_mr_iova2(pd_, reinterpret_cast<void*>(range_.address), range_.bytes,
                                   range_.iova, static_cast<unsigned>(access));
    }
    return nullptr;
  }

  void note(GpuWay way, int error, const char* text) {
    made_.error = error;
    // Where there is no dma-buf, its absence is a matter of drivers, as nvidia_peermem is.
    const VerbsCall call = way == GpuWay::address || error == kNotExported
                               ? VerbsCall::register_gpu
                               : VerbsCall::register_dmabuf;
    if (made_.refused.empty()) {
      first_call_ = call;
      first_error_ = error == kNotExported ? EFAULT : error;
    } else {
      made_.refused += ", ";
    }
    made_.refused += way == GpuWay::data_direct ? "by data direct: "
                     : way == GpuWay::dmabuf    ? "by dma-buf: "
                                                : "by its address: ";
    made_.refused += text != nullptr ? text : reason_text(error);
  }

  const Verbs& verbs_;
  ibv_pd* const pd_;
  const RangeRequest& range_;
  UniqueFd own_;
  int fd_ = -1;
  std::uint64_t offset_ = 0;
  VerbsCall first_call_ = VerbsCall::register_gpu;
  int first_error_ = 0;
  RangeMr made_;
};

}  // namespace

RangeMr register_gpu_range(const Verbs& verbs, ibv_pd* pd, const RangeRequest& range) {
  Registration registration(verbs, pd, range);
  const bool dmabuf = range.dmabuf_fd >= 0 || range.exported;
  const bool ended = (dmabuf && range.data_direct && verbs.reg_data_direct != nullptr &&
                      registration.attempt(GpuWay::data_direct)) ||
                     (dmabuf && registration.attempt(GpuWay::dmabuf)) ||
                     (range.by_address && registration.attempt(GpuWay::address));
  (void)ended;
  return registration.end();
}

RangeMr register_host_range(const Verbs& verbs, ibv_pd* pd, const RangeRequest& range) {
  Registration registration(verbs, pd, range);
  (void)registration.attempt(GpuWay::address);
  return registration.end_host();
}

}  // namespace twinpath
