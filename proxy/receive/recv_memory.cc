// What a receive comm does about GPU memory besides receiving: registration, and flushes (flush.h
// says what those do and why).
#include <algorithm>
#include <cstring>
#include <mutex>
#include <utility>

#include "proxy/receive/recv_comm.h"

namespace twinpath {

Result<Memory*> ProxyRecvComm::register_memory(void* data, std::size_t bytes, MemoryType type,
                                               std::uint64_t dmabuf_offset, int dmabuf_fd) {
  const Staging staging = staging_of(plan_);
  if (type == MemoryType::cuda && flush_wanted() && staging != Staging::always)
    TP_TRY(prepare_flush());
  auto memory = core_->devices->register_memory(device_, data, bytes, type, dmabuf_offset,
                                                dmabuf_fd, staging);
  if (memory && type == MemoryType::cuda && staging != Staging::never) prepare_staging();
  return memory;
}

Status ProxyRecvComm::deregister_memory(Memory* memory) {
  return core_->devices->deregister_memory(memory);
}

Status ProxyRecvComm::prepare_flush() {
  bool stale = false;
  {
    std::lock_guard hold(hub_->lock);
    if (flushes_ != nullptr && !flush_stale_) return Status::ok;
    stale = std::exchange(flush_stale_, false);
  }
  if (stale) flush_.drop();
  TP_TRY(flush_.prepare());
  auto made = std::make_unique<Flushes>();
  for (std::size_t i = 0; i < made->size(); ++i) {
    (*made)[i].comm_ = this;
    (*made)[i].slot_ = static_cast<std::uint16_t>(i);
  }
  std::lock_guard hold(hub_->lock);
  if (flushes_ == nullptr) flushes_ = std::move(made);
  return Status::ok;
}

bool ProxyRecvComm::flush_wanted() const { return !core_->devices->config().gdr_flush_disable; }

Status ProxyRecvComm::iflush(std::span<const RecvBuffer> buffers, Request** request) {
  *request = nullptr;
  const RecvBuffer* gpu = nullptr;
  for (const RecvBuffer& b : buffers) {
    const auto* m = static_cast<const ProxyMemory*>(b.memory);
    // What was staged was copied in order; the GPU sees it.
    if (m != nullptr && m->type == MemoryType::cuda && m->direct && b.bytes > 0) gpu = &b;
  }
  if (gpu == nullptr || !flush_wanted()) return Status::ok;
  std::unique_lock hold(hub_->lock);
  // Made at registration, unless that was through another comm; anew after a failure.
  if ((flushes_ == nullptr || flush_stale_) && !link_->halted()) {
    hold.unlock();
    TP_TRY(prepare_flush());
    hold.lock();
  }
  if (link_->halted()) {
    (void)link_->poll();
    in_vain(true);
    return link_->broken() ? Status::remote : Status::again;
  }
  // A flush under way was posted after this data, too; but it is not done, so it does not count.
  std::uint32_t rails = carried_;
  for (const FlushRequest& r : *flushes_)
    if (r.active_) rails |= r.rails_;
  if (rails == 0) return Status::ok;
  auto f = std::find_if(flushes_->begin(), flushes_->end(),
                        [](const FlushRequest& r) { return !r.active_; });
  if (f == flushes_->end()) return Status::again;
  f->active_ = true;
  f->rails_ = rails;
  f->address_ = reinterpret_cast<std::uintptr_t>(gpu->data);
  f->memory_ = static_cast<const ProxyMemory*>(gpu->memory);
  TP_TRY(post_flush(*f, rails));
  carried_ = 0;
  *request = &*f;
  return Status::ok;
}

Status ProxyRecvComm::post_flush(FlushRequest& f, std::uint32_t rails) {
  f.pending_ = 0;
  ++f.generation_;
  for (int rail = 0; rail < cts_.layout().rails(); ++rail) {
    if ((rails >> rail & 1u) == 0) continue;
    const int error = flush_.post(rail, f.address_, f.memory_->rkey(rail), f.slot_, f.generation_);
    if (error != 0) {
      link_->fail("cannot post a flush read: %s (errno %d)", std::strerror(error), error);
      return Status::system;
    }
    ++f.pending_;
  }
  return Status::ok;
}

Status FlushRequest::test(Completion& out) { return comm_->test(*this, out); }

Status ProxyRecvComm::test(FlushRequest& request, Completion& out) {
  out.done = false;
  std::lock_guard hold(hub_->lock);
  if (!request.active_) return Status::bad_argument;
  if (request.pending_ > 0) (void)link_->poll(flush_.queues());
  // A failed adapter says so by an event, perhaps without a completion.
  if (request.pending_ > 0 && !link_->broken())
    link_->waited(
        moved() ^ request.generation_, [] { return counters::Wait::flush; },
        [this] { return waiting(1); });
  if (request.pending_ > 0) return link_->broken() ? Status::remote : Status::ok;
  request.active_ = false;
  out.done = true;
  out.count = 0;
  return Status::ok;
}

}  // namespace twinpath
