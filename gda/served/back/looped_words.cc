// See looped_words.h.
#include "gda/served/back/looped_words.h"

#include <algorithm>
#include <cstring>

#include "plugin/base/log.h"
#include "plugin/rdma/completion_text.h"
#include "plugin/rdma/path.h"
#include "plugin/rdma/queue_pair.h"

namespace twinpath::gda {

Result<std::unique_ptr<GpuWords>> LoopedWords::make(const TeamCore& team, WordTurn& turn,
                                                    const Values& values) {
  std::unique_ptr<LoopedWords> made(new LoopedWords(turn, values));
  made->port_ = team.rail.port.port->name;
  auto cq =
      make_completion_queue(team.verbs(), team.rail.port.adapter->context, kBatch, team.owner());
  if (!cq) return cq.status();
  made->cq_ = std::move(cq).take();
  QueueSettings settings = path_settings(team.config(), team.settings);
  settings.access = IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE;
  settings.recv_depth = 0;
  settings.send_depth = static_cast<int>(kBatch);
  auto pair = QueuePair::make(team.verbs(), team.rail, made->cq_.get(), settings, team.limits);
  if (!pair) return pair.status();
  made->pair_ = std::move(pair).take();
  TP_TRY(made->pair_->raise(made->pair_->end(), "itself", true));
  return std::unique_ptr<GpuWords>(std::move(made));
}

LoopedWords::~LoopedWords() {
  if (pair_ != nullptr) pair_->stop();
  turn_.give_back(this);  // what was under way is over
}

bool LoopedWords::begin(std::span<const Word> words) {
  if (!turn_.take(this)) return false;
  std::copy(words.begin(), words.end(), words_.begin());
  count_ = words.size();
  post(Phase::reading);
  return true;
}

void LoopedWords::post(Phase phase) {
  std::array<ibv_send_wr, kBatch> requests{};
  std::array<ibv_sge, kBatch> sges{};
  for (std::size_t i = 0; i < count_; ++i) {
    sges[i] = {reinterpret_cast<std::uintptr_t>(values_.at + i), sizeof(std::uint64_t),
               values_.lkey};
    ibv_send_wr& wr = requests[i];
    wr.sg_list = &sges[i];
    wr.num_sge = 1;
    wr.opcode = phase == Phase::reading ? IBV_WR_RDMA_READ : IBV_WR_RDMA_WRITE;
    wr.send_flags = IBV_SEND_SIGNALED;
    wr.wr.rdma.remote_addr = words_[i].address;
    wr.wr.rdma.rkey = words_[i].rkey;
    wr.next = i + 1 < count_ ? &requests[i + 1] : nullptr;
  }
  phase_ = phase;
  under_way_ = count_;
  ibv_send_wr* bad = nullptr;
  if (const int error = ibv_post_send(pair_->qp(), requests.data(), &bad); error != 0)
    fail(std::strerror(error), error);
}

GpuWords::State LoopedWords::look() {
  if (phase_ == Phase::failed) return State::failed;
  std::array<ibv_wc, kBatch> wcs;
  const int n = ibv_poll_cq(cq_.get(), static_cast<int>(wcs.size()), wcs.data());
  if (n < 0) fail("its completion queue cannot be read", n);
  for (int i = 0; i < n && phase_ != Phase::failed; ++i) {
    const ibv_wc_status status = wcs[static_cast<std::size_t>(i)].status;
    if (status != IBV_WC_SUCCESS) fail(completion_hint(status), static_cast<int>(status));
    --under_way_;
  }
  if (phase_ == Phase::failed) return State::failed;
  if (under_way_ != 0) return State::busy;
  if (phase_ == Phase::writing) {
    phase_ = Phase::idle;
    turn_.give_back(this);
    return State::idle;
  }
  // All READs have completed: the words, and that all data before their signals is in place.
  for (std::size_t i = 0; i < count_; ++i) values_.at[i] += words_[i].add;
  post(Phase::writing);
  return phase_ == Phase::failed ? State::failed : State::busy;
}

void LoopedWords::fail(const char* what, int error) {
  phase_ = Phase::failed;
  TP_WARN(
      "%s: adding to a signal in GPU memory, by the adapter, fails: %s (%d); the communicator "
      "cannot be used any more; see dmesg of this host",
      port_.c_str(), what, error);
}

}  // namespace twinpath::gda
