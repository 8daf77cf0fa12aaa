// See flush_loop.h.
#include "gda/served/back/flush_loop.h"

#include <array>
#include <utility>

#include "gda/served/back/path_blame.h"
#include "plugin/base/log.h"
#include "plugin/rdma/completion_text.h"

namespace twinpath::gda {

Result<std::unique_ptr<FlushLoop>> FlushLoop::make(const TeamCore& team, int port,
                                                   const Sink& sink) {
  std::unique_ptr<FlushLoop> made(new FlushLoop(team, port, sink));
  auto pair = LoopPair::make(team, port, {IBV_ACCESS_REMOTE_READ, kReads});
  if (!pair) return pair.status();
  made->pair_ = std::move(pair).take();
  return made;
}

void FlushLoop::post(std::uint64_t n) {
  const bool before = pending();
  const FlushSource* const source = team_.flush_sources.current(port_);
  if (source == nullptr && !before) return;
  if (!before) {
    read_.store(n - 1, std::memory_order_release);
    done_.store(n - 1, std::memory_order_release);
  }
  last_.store(n, std::memory_order_release);
  if (source == nullptr || state() != State::works) return;
  ibv_sge sge{sink_.address, 1, sink_.lkey};
  ibv_send_wr wr{};
  wr.wr_id = n;
  wr.sg_list = &sge;
  wr.num_sge = 1;
  wr.opcode = IBV_WR_RDMA_READ;
  wr.send_flags = IBV_SEND_SIGNALED;
  wr.wr.rdma.remote_addr = source->address;
  wr.wr.rdma.rkey = source->rkeys[port_];
  ibv_send_wr* bad = nullptr;
  if (const int error = ibv_post_send(pair_->qp(), &wr, &bad); error != 0)
    return fail("cannot be posted", error, false);
  ++under_way_;
}

void FlushLoop::turn() {
  if (pair_->has_renewed()) {
    if (!pending()) rest();
    pair_->take_renewed();
  }
  if (!busy()) return;
  std::array<ibv_wc, kReads> wcs;
  const int n = pair_->poll(wcs);
  for (int i = 0; i < n && state() == State::works; ++i) {
    const ibv_wc& wc = wcs[static_cast<std::size_t>(i)];
    --under_way_;
    if (wc.status == IBV_WC_SUCCESS) {
      read_.store(wc.wr_id, std::memory_order_release);
      settle(wc.wr_id);
      continue;
    }
    // Where it is not the port's doing: the GPU, or its registration.
    fail(completion_hint(wc.status), static_cast<int>(wc.status),
         is_own_fault(syndrome_of(wc.status)));
  }
  if (under_way_ != 0) return;
  // No window is there any more, so no kernel may look at one; or another queue pair was asked.
  if (team_.flush_sources.current(port_) == nullptr) settle(last());
  if (!pending())
    rest();
  else if (state() == State::works)
    post(last());
}

void FlushLoop::settle(std::uint64_t n) {
  if (n > done()) done_.store(n, std::memory_order_release);
}

bool FlushLoop::quiet(std::uint64_t n) const {
  const std::uint64_t last = last_.load(std::memory_order_acquire);
  const std::uint64_t read = read_.load(std::memory_order_acquire);
  return read >= n || read == last || pair_->broken();
}

void FlushLoop::fail(const char* what, int status, bool refused) {
  failure_ = {what, status};
  TP_INFO(net, "%s: a read of GPU memory %s (%d)", pair_->port().c_str(), what, status);
  refused_ = refused;
  (void)pair_->stop();
  under_way_ = 0;
}

}  // namespace twinpath::gda
