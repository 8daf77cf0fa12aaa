// See flush_loop.h.
#include "gda/served/back/flush_loop.h"

#include <array>
#include <utility>

#include "gda/served/back/path_blame.h"
#include "plugin/base/log.h"
#include "plugin/rdma/completion_text.h"
#include "plugin/rdma/path.h"
#include "plugin/rdma/queue_pair.h"

namespace twinpath::gda {

Result<std::unique_ptr<FlushLoop>> FlushLoop::make(const TeamCore& team, const Where& where,
                                                   const Sink& sink) {
  std::unique_ptr<FlushLoop> made(new FlushLoop(team, where, sink));
  // Twice: what a queue pair had comes back beside what the next one does.
  auto cq = make_completion_queue(team.verbs(), where.rail.port.adapter->context, 2 * kReads,
                                  team.owner());
  if (!cq) return cq.status();
  made->cq_ = std::move(cq).take();
  auto pair = made->make_pair(where.rail);
  if (!pair) return pair.status();
  made->pair_ = std::move(pair).take();
  return made;
}

Result<std::unique_ptr<QueuePair>> FlushLoop::make_pair(const Rail& rail) const {
  QueueSettings settings = path_settings(team_.config(), team_.settings);
  settings.access = IBV_ACCESS_REMOTE_READ;
  settings.recv_depth = 0;
  settings.send_depth = static_cast<int>(kReads);
  auto pair = QueuePair::make(team_.verbs(), rail, cq_.get(), settings, where_.limits);
  if (!pair) return pair.status();
  TP_TRY((*pair)->raise((*pair)->end(), "itself", true));
  return pair;
}

Status FlushLoop::renew() {
  if (state() != State::broken || has_renewed_.load(std::memory_order_acquire)) return Status::ok;
  std::string why;
  const auto now = team_.devices->live(where_.rail.port, why);
  if (!now) return now.status();
  auto pair = make_pair(Rail::of(where_.rail.port, *now));
  if (!pair) return pair.status();
  renewed_ = std::move(pair).take();
  has_renewed_.store(true, std::memory_order_release);  // partner: turn()
  return Status::ok;
}

void FlushLoop::post(std::uint64_t n) {
  const bool before = pending();
  const FlushSource* const source = team_.flush_sources.current(where_.port);
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
  wr.wr.rdma.rkey = source->rkeys[where_.port];
  ibv_send_wr* bad = nullptr;
  if (const int error = ibv_post_send(pair_->qp(), &wr, &bad); error != 0)
    return fail("cannot be posted", error, State::broken);
  ++under_way_;
}

void FlushLoop::turn() {
  if (has_renewed_.load(std::memory_order_acquire)) {
    std::swap(pair_, renewed_);  // the one before goes when another is made
    if (!pending()) rest();
    state_.store(State::works, std::memory_order_release);
    has_renewed_.store(false, std::memory_order_release);
  }
  if (!busy()) return;
  std::array<ibv_wc, kReads> wcs;
  const int n = ibv_poll_cq(cq_.get(), static_cast<int>(wcs.size()), wcs.data());
  for (int i = 0; i < n && state() == State::works; ++i) {
    const ibv_wc& wc = wcs[static_cast<std::size_t>(i)];
    if (wc.qp_num != pair_->qp()->qp_num) continue;  // of the one before
    --under_way_;
    if (wc.status == IBV_WC_SUCCESS) {
      read_.store(wc.wr_id, std::memory_order_release);
      settle(wc.wr_id);
      continue;
    }
    fail(completion_hint(wc.status), static_cast<int>(wc.status),
         // Not the port's doing: the GPU, or its registration.
         is_own_fault(syndrome_of(wc.status)) ? State::refused : State::broken);
  }
  if (under_way_ != 0) return;
  // No window is there any more, so no kernel may look at one; or another queue pair was asked.
  if (team_.flush_sources.current(where_.port) == nullptr) settle(last());
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
  return read >= n || read == last || state() != State::works;
}

void FlushLoop::fail(const char* what, int status, State state) {
  failure_ = {what, status};
  TP_INFO(net, "%s: a read of GPU memory %s (%d)", where_.rail.port.port->name.c_str(), what,
          status);
  pair_->stop();
  under_way_ = 0;
  state_.store(state, std::memory_order_release);
}

}  // namespace twinpath::gda
