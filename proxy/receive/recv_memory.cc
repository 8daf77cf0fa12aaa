// What a receive comm does about GPU memory besides receiving: registration, and flushes (flush.h
// says what those do and why).
#include <algorithm>
#include <cstring>
#include <mutex>
#include <utility>

#include "plugin/base/clock.h"
#include "plugin/base/log.h"
#include "proxy/receive/recv_comm.h"

namespace twinpath {
namespace {

// Between tries to make flush queues while a port is in trouble, and how long that may take.
constexpr std::int64_t kFlushPause = 20 * kMillisecond, kFlushPatience = 10 * kSecond;

}  // namespace

Result<Memory*> ProxyRecvComm::register_memory(void* data, std::size_t bytes, MemoryType type,
                                               std::uint64_t dmabuf_offset, int dmabuf_fd) {
  const Staging staging = staging_of(plan_);
  if (type == MemoryType::cuda && flush_wanted() && staging != Staging::always)
    if (const Status s = prepare_flush(); s != Status::ok && !link_->recoverable()) return s;
  auto memory = link_->if_reached(core_->devices->register_memory(
      device_, data, bytes, type, dmabuf_offset, dmabuf_fd, staging));
  if (memory && type == MemoryType::cuda && staging != Staging::never) prepare_staging();
  return memory;
}

Status ProxyRecvComm::deregister_memory(Memory* memory) {
  return core_->devices->deregister_memory(memory);
}

// Parcels are copied under the lock.  One that comes for such a receive from now on ends the
// connection, as an adapter does by refusing the key.
void ProxyRecvComm::give_up(const ProxyMemory& memory) {
  std::lock_guard hold(hub_->lock);
  // A flush that is to be posted has nobody left to whom it matters.
  if (flushes_ != nullptr)
    for (FlushRequest& f : *flushes_)
      if (f.memory_ == &memory) f.memory_ = nullptr;
  if (memory.type != MemoryType::host) return;  // mirrors have a gate of their own
  for (std::size_t slot = 0; requests_.made(slot); ++slot) {
    RecvRequest& r = requests_.at(slot);
    if (r.left() == 0) continue;
    for (unsigned i = 0; i != r.count_; ++i) {
      RecvRequest::Sub& sub = r.subs_[i];
      // Nothing else says which registration it was received under; one is as good as another.
      if (sub.capacity != 0 && memory.covers(sub.to, sub.capacity) &&
          !core_->devices->registered(device_, sub.to, sub.capacity))
        sub.state.copied = RecvRequest::Copied::gone;
    }
  }
}

Status ProxyRecvComm::prepare_flush() {
  std::unique_ptr<QueueSet> stale;
  std::uint32_t rails = 0;
  {
    std::lock_guard hold(hub_->lock);
    make_flushes();
    rails = link_->set().rails_in_use();
    if (flush_.ready() && !flush_stale_) return Status::ok;
    flush_stale_ = false;
    stale = flush_.take();
    repeat_flushes();  // what the old queues have under way is lost with them
  }
  stale.reset();
  return flush_.prepare(rails, !link_->recoverable());
}

void ProxyRecvComm::make_flushes() {
  if (flushes_ != nullptr) return;
  flushes_ = std::make_unique<Flushes>();
  for (std::size_t i = 0; i < flushes_->size(); ++i) {
    (*flushes_)[i].comm_ = this;
    (*flushes_)[i].slot_ = static_cast<std::uint16_t>(i);
  }
}

void ProxyRecvComm::repeat_flushes() {
  if (flushes_ == nullptr) return;
  for (FlushRequest& f : *flushes_) {
    if (!f.active_ || f.pending_ == 0) continue;
    ++f.generation_;
    f.pending_ = 1;
    f.waits_ = true;
  }
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
  if (link_->broken()) return Status::remote;
  make_flushes();
  // A flush under way was posted after this data, too; but it is not done, so it does not count.
  std::uint32_t rails = carried_;
  for (const FlushRequest& r : *flushes_)
    if (r.active_) rails |= r.rails_;
  if (rails == 0) return Status::ok;
  auto f = std::find_if(flushes_->begin(), flushes_->end(),
                        [](const FlushRequest& r) { return !r.active_; });
  if (f == flushes_->end()) {
    // NCCL takes a call without a request for one that had nothing to do.
    TP_WARN("more than %d flushes of one connection are under way", kFlushSlots);
    return Status::bad_argument;
  }
  f->active_ = true;
  f->rails_ = rails;
  f->address_ = reinterpret_cast<std::uintptr_t>(gpu->data);
  f->memory_ = static_cast<const ProxyMemory*>(gpu->memory);
  f->pending_ = 1;
  f->waits_ = true;
  carried_ = 0;
  if (const Status s = begin_flush(hold, *f); s != Status::ok) {
    f->active_ = false;
    return s;
  }
  *request = &*f;
  return Status::ok;
}

// Where nothing can be posted now there is a request all the same: the caller must not take the
// data for visible.
Status ProxyRecvComm::begin_flush(std::unique_lock<SpinLock>& hold, FlushRequest& f) {
  const auto served = [&] {
    const std::uint32_t rails = f.rails_ & link_->set().rails_in_use();
    for (int r = 0; rails >> r != 0; ++r)
      if ((rails >> r & 1) != 0 && !flush_.serves(r)) return false;
    return flush_.ready() && !flush_stale_;
  };
  if (link_->broken()) return Status::remote;
  if (link_->halted()) return Status::ok;
  // Made at registration, unless that was through another comm; anew after a failure.
  if (!served()) {
    const std::int64_t now = now_ns();
    if (now < flush_try_at_) return Status::ok;
    flush_try_at_ = now + kFlushPause;
    flush_stale_ = flush_.ready();
    hold.unlock();
    const Status s = prepare_flush();
    hold.lock();
    if (link_->broken()) return Status::remote;
    if (s != Status::ok && !link_->recoverable()) return s;
    if (link_->halted()) return Status::ok;
    // The connection's own queues will say what is wrong with the port, or all is well soon.
    if (!served()) {
      if (flush_mute_.look(now) < kFlushPatience) return Status::ok;
      link_->fail("a port that brought data to a GPU cannot be read back through (flush)");
      return Status::remote;
    }
  }
  flush_mute_ = RunClock(kSecond);
  flush_try_at_ = 0;
  f.waits_ = false;
  return post_flush(f, f.rails_ & link_->set().rails_in_use());
}

Status ProxyRecvComm::post_flush(FlushRequest& f, std::uint32_t rails) {
  f.pending_ = 0;
  ++f.generation_;
  if (f.memory_ == nullptr) rails = 0;  // it was deregistered
  f.not_before_ = (f.rails_ & ~rails) != 0 ? landed_by() : 0;
  for (int rail = 0; rails >> rail != 0; ++rail) {
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

Status FlushRequest::test(int& done, int*) { return comm_->test(*this, done); }

Status ProxyRecvComm::test(FlushRequest& request, int& done) {
  done = 0;
  std::unique_lock hold(hub_->lock);
  if (!request.active_) return Status::bad_argument;
  if (request.waits_) TP_TRY(begin_flush(hold, request));
  if (request.pending_ > 0 && !request.waits_) (void)link_->poll(flush_.queues());
  if (request.waits_) (void)link_->poll();
  // A failed adapter says so by an event, perhaps without a completion.
  if (request.pending_ > 0 && !link_->broken())
    link_->waited(
        moved() ^ request.generation_, [] { return counters::Wait::flush; },
        [this] { return waiting(1); });
  if (request.pending_ > 0) return link_->broken() ? Status::remote : Status::ok;
  if (request.not_before_ != 0 && now_ns() < request.not_before_) return Status::ok;
  request.active_ = false;
  done = 1;
  return Status::ok;
}

}  // namespace twinpath
