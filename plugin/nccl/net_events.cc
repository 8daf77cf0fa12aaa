#include "plugin/nccl/net_events.h"

#include <infiniband/verbs.h>

#include <new>
#include <utility>

#include "plugin/nccl/abi/profiler.h"
#include "plugin/nccl/context.h"

namespace twinpath {

using abi::ncclProfilerNetIbDescr_v1_t;

void NetEvents::attach(Comm& comm, abi::ncclProfilerCallback_t callback, Direction direction) {
  const Context* context = Context::get();
  if (callback == nullptr || context == nullptr || context->own_profiler()) return;
  comm.companion = std::make_unique<NetEvents>(callback, direction);
}

Request* NetEvents::watch(Request* request, std::span<void* const> handles) {
  std::array<Part, kMaxParts> parts;
  const std::size_t count = request->parts(parts);
  Handles started{};
  bool any = false;
  for (std::size_t i = 0; i < count; ++i) {
    const Part& part = parts[i];
    const auto buffer = static_cast<std::size_t>(part.buffer);
    if (buffer >= handles.size() || handles[buffer] == nullptr) continue;
    ncclProfilerNetIbDescr_v1_t what;
    what.qp.device = part.device;
    what.qp.wr_id = part.id;
    // There is no ibv_wr_opcode for what a receive waits for, but a completion has one.
    what.qp.opcode = direction_ == Direction::send ? static_cast<int>(IBV_WR_RDMA_WRITE_WITH_IMM)
                                                   : static_cast<int>(IBV_WC_RECV_RDMA_WITH_IMM);
    what.qp.qpNum = static_cast<int>(part.queue);
    what.qp.length = part.bytes;
    // Profilers leave the place alone when they make no event.
    (void)callback_(&started[i], abi::kNetEventStart, handles[buffer], abi::kNetEventIbV1, &what);
    any = any || started[i] != nullptr;
  }
  if (!any) return request;
  Watched* watched = take();
  if (watched == nullptr) {
    stop(started, ~0u);
    return request;
  }
  watched->inner_ = request;
  watched->handles_ = started;
  watched->count_ = static_cast<int>(count);
  return watched;
}

NetEvents::Watched* NetEvents::take() {
  if (all_ == nullptr) {
    // The operation is under way: it must not fail for want of memory.
    all_.reset(new (std::nothrow) std::array<Watched, kMost>);
    if (all_ == nullptr) return nullptr;
    for (Watched& w : *all_) {
      w.events_ = this;
      w.next_free_ = std::exchange(free_, &w);
    }
  }
  Watched* const first = free_;
  if (first != nullptr) free_ = first->next_free_;
  return first;
}

void NetEvents::stop(Handles& handles, std::uint32_t which) {
  for (std::size_t i = 0; i < handles.size(); ++i) {
    if (handles[i] == nullptr || (which >> i & 1) == 0) continue;
    (void)callback_(&handles[i], abi::kNetEventStop, nullptr, 0, nullptr);
    handles[i] = nullptr;
  }
}

Status NetEvents::Watched::test(int& done, int* sizes) {
  done = 0;
  if (inner_ == nullptr) return Status::bad_argument;
  const Status status = inner_->test(done, sizes);
  if (status != Status::ok) {
    // It may be asked again, and answers alike.
    events_->stop(handles_, ~0u);
    return status;
  }
  if (done != 0) {
    events_->stop(handles_, ~0u);
    inner_ = nullptr;
    next_free_ = std::exchange(events_->free_, this);
  } else if (count_ > 1) {
    events_->stop(handles_, ~inner_->parts_left());
  }
  return Status::ok;
}

}  // namespace twinpath
