// What a receive comm does about memory besides receiving: registration, and flushes (flushes.h).
#include <memory>
#include <mutex>
#include <utility>

#include "plugin/base/clock.h"
#include "plugin/base/log.h"
#include "proxy/receive/recv_comm.h"

namespace twinpath {

Result<Memory*> ProxyRecvComm::register_memory(void* data, std::size_t bytes, MemoryType type,
                                               std::uint64_t dmabuf_offset, int dmabuf_fd) {
  const Staging staging = staging_of(plan_);
  if (type == MemoryType::cuda && flushes_.wanted() && staging != Staging::always)
    if (const Status s = flushes_.prepare(); s != Status::ok && !link_->can_fail_over()) return s;
  auto memory =
      if_reached(*link_, core_->devices->register_memory(device_, data, bytes, type, dmabuf_offset,
                                                         dmabuf_fd, staging));
  if (memory && type == MemoryType::cuda && staging != Staging::never) {
    auto made = std::make_unique<StagedReceives>();
    std::lock_guard hold(hub_->lock);
    arrivals_.stage_into(made);
  }
  return memory;
}

Status ProxyRecvComm::deregister_memory(Memory* memory) {
  return core_->devices->deregister_memory(memory);
}

void ProxyRecvComm::give_up(const ProxyMemory& memory) {
  std::lock_guard hold(hub_->lock);
  flushes_.give_up(memory);
  if (memory.type != MemoryType::host) return;  // mirrors have a gate of their own
  arrivals_.give_up(memory, [this](const void* data, std::size_t bytes) {
    return core_->devices->registered(device_, data, bytes);
  });
}

Status ProxyRecvComm::iflush(std::span<const RecvBuffer> buffers, Request** request) {
  *request = nullptr;
  const RecvBuffer* gpu = nullptr;
  for (const RecvBuffer& b : buffers) {
    const auto* m = static_cast<const ProxyMemory*>(b.memory);
    // What was staged was copied in order; the GPU sees it.
    if (m != nullptr && m->type == MemoryType::cuda && m->direct && b.bytes > 0) gpu = &b;
  }
  if (gpu == nullptr || !flushes_.wanted()) return Status::ok;
  std::unique_lock hold(hub_->lock);
  if (link_->broken()) return Status::remote;
  const std::uint32_t rails = flushes_.rails(arrivals_.carried());
  if (rails == 0) return Status::ok;
  FlushRequest* const f = flushes_.take(rails, *gpu);
  if (f == nullptr) {
    // NCCL takes a call without a request for one that had nothing to do.
    TP_WARN("more than %d flushes of one connection are under way", kFlushSlots);
    return Status::bad_argument;
  }
  arrivals_.forget_carried();
  if (const Status s = flushes_.begin(hold, *f); s != Status::ok) {
    flushes_.give(*f);
    return s;
  }
  *request = f;
  return Status::ok;
}

Status FlushRequest::test(int& done, int*) { return comm_->test(*this, done); }

Status ProxyRecvComm::test(FlushRequest& request, int& done) {
  done = 0;
  std::unique_lock hold(hub_->lock);
  if (!request.active()) return Status::bad_argument;
  if (request.waits()) TP_TRY(flushes_.begin(hold, request));
  if (request.pending()) (void)(request.waits() ? link_->poll() : link_->poll(*flushes_.queues()));
  // A failed adapter says so by an event, perhaps without a completion.
  if (request.pending() && !link_->broken()) {
    flushes_.watch();
    link_->waited(
        moved() ^ request.generation(), [] { return counters::Wait::flush; },
        [this] { return waiting(1); });
  }
  if (request.pending()) return link_->broken() ? Status::remote : Status::ok;
  if (!request.landed(now_ns)) return Status::ok;
  flushes_.give(request);
  done = 1;
  return Status::ok;
}

}  // namespace twinpath
