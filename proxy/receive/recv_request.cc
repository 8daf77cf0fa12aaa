// What the caller asks a receive: whether it is over, and how it goes over the network.
#include "proxy/receive/recv_request.h"

#include <mutex>

#include "proxy/receive/recv_comm.h"

namespace twinpath {

inline Status RecvRequest::finish(int& done, int* sizes) {
  if (!active_) [[unlikely]]
    return Status::bad_argument;
  active_ = false;
  done = 1;
  if (sizes != nullptr) {
    if (count_ == 1) [[likely]]
      sizes[0] = told_size(sizes_[0]);
    else
      for (std::size_t i = 0; i != count_; ++i) sizes[i] = told_size(sizes_[i]);
  }
  comm_->arrivals_.requests().give(*this);
  return Status::ok;
}

Status RecvRequest::test(int& done, int* sizes) {
  // Pairs with set_left() of whoever took the last part, perhaps another thread.
  if (left_.load(std::memory_order_acquire) != 0 || optional_) [[unlikely]]
    return comm_->test_pending(*this, done, sizes);
  return finish(done, sizes);
}

Status ProxyRecvComm::test_pending(RecvRequest& request, int& done, int* sizes) {
  done = 0;
  {
    std::lock_guard hold(hub_->lock);
    if (!finished(request)) (void)link_->poll();
    if (!finished(request)) {
      in_vain(true);
      return link_->broken() ? Status::remote : Status::ok;
    }
  }
  return request.finish(done, sizes);
}

// Data may come over any rail; the first queue in use stands for them.
std::size_t RecvRequest::parts(std::span<Part, kMaxParts> out) const {
  std::lock_guard hold(comm_->hub_->lock);
  Part part;
  const QueueSet& set = comm_->link_->set();
  for (const Queue& queue : set.queues()) {
    if (queue.qp == nullptr) continue;
    part.device =
        comm_->core_->devices->index_of(set.rails()[static_cast<std::size_t>(queue.rail)].port);
    part.queue = queue.qp->qp_num;
    break;
  }
  for (std::size_t i = 0; i < count_; ++i) {
    part.id = first_cell_ + i;
    part.bytes = subs_[i].capacity;
    part.buffer = static_cast<int>(i);
    out[i] = part;
  }
  return count_;
}

std::uint32_t RecvRequest::parts_left() const {
  std::lock_guard hold(comm_->hub_->lock);
  std::uint32_t bits = 0;
  for (std::size_t i = 0; i < count_; ++i)
    if (!subs_[i].state.complete()) bits |= 1u << i;
  return bits;
}

}  // namespace twinpath
