// See gpu_flush.h.
#include "gda/served/back/gpu_flush.h"

#include <algorithm>
#include <utility>

#include "plugin/base/log.h"
#include "plugin/gpu/driver.h"

namespace twinpath::gda {

Result<std::unique_ptr<GpuFlush>> GpuFlush::make(const TeamCore& team,
                                                 const FlushLoop::Sink& sink) {
  if (team.verbs().ordered || gpu::cuda::driver() == nullptr) return std::unique_ptr<GpuFlush>();
  std::unique_ptr<GpuFlush> made(new GpuFlush(team));
  auto loop = FlushLoop::make(team, 0, sink);
  if (!loop) return loop.status();
  made->loops_[0] = std::move(loop).take();
  return made;
}

Status GpuFlush::add_second(const FlushLoop::Sink& sink) {
  if (team_.gpu < 0) return Status::ok;  // nor has any window that queues move with
  auto loop = FlushLoop::make(team_, 1, sink);
  if (!loop) return loop.status();
  loops_[1] = std::move(loop).take();
  writes_ = std::make_unique<gpu::WriteFlush>(team_.gpu);
  return Status::ok;
}

void GpuFlush::moves(int from, int to) {
  const auto left = static_cast<std::size_t>(from), come_to = static_cast<std::size_t>(to);
  --over_[left];
  ++over_[come_to];
  left_[left] = true;
  left_[come_to] = false;
}

bool GpuFlush::reads(std::size_t port) const {
  if (loops_[port] == nullptr) return false;
  return over_[port] != 0 || own_[port] || (port == 0 && over_[1] == 0);
}

void GpuFlush::post() {
  const std::uint64_t n = posted_.load(std::memory_order_relaxed) + 1;
  for (std::size_t port = 0; port < loops_.size(); ++port)
    if (reads(port) && !loops_[port]->has_room()) return;
  for (std::size_t port = 0; port < loops_.size(); ++port)
    if (reads(port)) loops_[port]->post(n);
  own_ = {};
  posted_.store(n, std::memory_order_release);
}

std::uint64_t GpuFlush::fence() {
  if (writes_ == nullptr || !needed()) return 0;
  const std::uint64_t ticket = ask_driver();
  if (fence_.ticket == 0) fence_ = {ticket, {loops_[0]->last(), loops_[1]->last()}};
  return ticket;
}

void GpuFlush::take_fence() {
  if (fence_.ticket == 0 || writes_->done() < fence_.ticket) return;
  for (std::size_t port = 0; port < loops_.size(); ++port) loops_[port]->settle(fence_.last[port]);
  fence_ = {};
}

bool GpuFlush::works(FlushLoop& loop) {
  loop.turn();
  if (loop.state() == FlushLoop::State::works) return true;
  if (loop.state() == FlushLoop::State::refused || writes_ == nullptr || writes_->failed())
    return false;
  if (loop.pending() && fence_.ticket == 0) (void)fence();
  return true;
}

// A READ that the driver's flush has made needless still reads a window, whose end waits for it.
bool GpuFlush::under_way() const {
  return wanted_ != done() || std::any_of(loops_.begin(), loops_.end(), [](const auto& loop) {
           return loop != nullptr && loop->busy();
         });
}

bool GpuFlush::turn() {
  if (!under_way() || dead()) return false;
  const std::uint64_t before = done();
  if (wanted_ > posted_.load(std::memory_order_relaxed)) post();
  take_fence();
  std::uint64_t done = posted_.load(std::memory_order_relaxed);
  for (const auto& loop : loops_) {
    if (loop == nullptr) continue;
    if (!works(*loop)) {
      fail(*loop);
      return false;
    }
    if (loop->pending()) done = std::min(done, loop->done());
  }
  done_.store(done, std::memory_order_release);
  return done != before;
}

void GpuFlush::fail(const FlushLoop& loop) {
  TP_WARN(
      "%s: a read of GPU memory, which makes what peers wrote there visible, %s (%d); the "
      "communicator cannot be used any more; see dmesg of this host",
      loop.pair().port().c_str(), loop.failure().what, loop.failure().status);
  dead_.store(true, std::memory_order_release);
}

bool GpuFlush::settled(std::uint64_t posted) const {
  return dead() || std::all_of(loops_.begin(), loops_.end(), [posted](const auto& loop) {
           return loop == nullptr || loop->quiet(posted);
         });
}

}  // namespace twinpath::gda
