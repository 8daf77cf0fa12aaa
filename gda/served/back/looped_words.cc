// See looped_words.h.
#include "gda/served/back/looped_words.h"

#include <algorithm>
#include <cstring>

#include "gda/served/back/moving.h"
#include "plugin/base/clock.h"
#include "plugin/base/log.h"
#include "plugin/rdma/completion_text.h"

namespace twinpath::gda {

LoopedWords::LoopedWords(TeamCore& team, WordTurn& turn, GpuFlush& flush, const Values& values)
    : team_(team), turn_(turn), flush_(flush), values_(values.at), lkeys_{values.lkey, 0} {}

Result<std::unique_ptr<GpuWords>> LoopedWords::make(TeamCore& team, WordTurn& turn, GpuFlush& flush,
                                                    const Values& values) {
  std::unique_ptr<LoopedWords> made(new LoopedWords(team, turn, flush, values));
  TP_TRY(made->make_loop(0));
  return std::unique_ptr<GpuWords>(std::move(made));
}

Status LoopedWords::add_second(std::uint32_t lkey) {
  if (team_.gpu < 0) return Status::ok;  // nor has any window that queues move with
  lkeys_[1] = lkey;
  return make_loop(1);
}

Status LoopedWords::make_loop(int port) {
  auto loop = LoopPair::make(
      team_, port,
      {IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE, static_cast<std::uint32_t>(kBatch)});
  if (!loop) return loop.status();
  loops_[static_cast<std::size_t>(port)] = std::move(loop).take();
  return Status::ok;
}

void LoopedWords::stop() {
  for (const auto& each : loops_)
    if (each != nullptr) (void)each->stop();
  phase_ = Phase::failed;
  turn_.give_back(this);  // what was under way is over
}

bool LoopedWords::usable(int port) const {
  const auto at = static_cast<std::size_t>(port);
  const auto words = batch();
  return !loops_[at]->broken() && !team_.watch(port).down() &&
         std::all_of(words.begin(), words.end(),
                     [at](const Word& word) { return word.rkeys[at] != 0; });
}

int LoopedWords::choose(int wanted) {
  if (loops_[1] == nullptr) return 0;
  for (const auto& each : loops_)
    if (each->has_renewed()) each->take_renewed();
  const int other = 1 - wanted;
  if (works(wanted)) return wanted;
  if (works(other)) return other;
  return usable(wanted) ? wanted : usable(other) ? other : -1;
}

bool LoopedWords::may_repeat() const {
  const auto words = batch();
  return loops_[1] != nullptr && (phase_ == Phase::reading ||
                                  std::all_of(words.begin(), words.end(),
                                              [](const Word& word) { return word.never_reset; }));
}

// From now on until the batch is over.
void LoopedWords::hurry() {
  if (!limit_) limit_.emplace(move_limit(team_.config()));
}

bool LoopedWords::late() {
  if (!limit_ || !limit_->over(now_ns())) return false;
  fail("no port has done it in time", 0);
  return true;
}

GpuWords::State LoopedWords::begin(std::span<const Word> words) {
  if (!turn_.take(this)) return State::idle;
  std::copy(words.begin(), words.end(), words_.begin());
  count_ = words.size();
  const int port = choose(team_.words_port);
  if (port < 0) {
    turn_.give_back(this);  // another context may have one
    hurry();
    return late() ? State::failed : State::idle;
  }
  next_ = Phase::reading;
  // What came before was asked for by this context's port (word_adder.cc).
  if (port == port_ && port == team_.words_port)
    post(next_);
  else
    fence(port);
  return phase_ == Phase::failed ? State::failed : State::busy;
}

void LoopedWords::fence(int port) {
  port_ = port;
  fence_ = flush_.ask_driver();
  phase_ = Phase::fencing;
  hurry();
}

void LoopedWords::post(Phase phase) {
  std::array<ibv_send_wr, kBatch> requests{};
  std::array<ibv_sge, kBatch> sges{};
  const auto port = static_cast<std::size_t>(port_);
  for (std::size_t i = 0; i < count_; ++i) {
    sges[i] = {reinterpret_cast<std::uintptr_t>(values_ + i), sizeof(std::uint64_t), lkeys_[port]};
    ibv_send_wr& wr = requests[i];
    wr.sg_list = &sges[i];
    wr.num_sge = 1;
    wr.opcode = phase == Phase::reading ? IBV_WR_RDMA_READ : IBV_WR_RDMA_WRITE;
    wr.send_flags = IBV_SEND_SIGNALED;
    wr.wr.rdma.remote_addr = words_[i].address;
    wr.wr.rdma.rkey = words_[i].rkeys[port];
    wr.next = i + 1 < count_ ? &requests[i + 1] : nullptr;
  }
  phase_ = phase;
  under_way_ = count_;
  if (phase == Phase::writing) team_.words_port = port_;
  ibv_send_wr* bad = nullptr;
  const int error = ibv_post_send(loop().qp(), requests.data(), &bad);
  if (error == 0) return;
  under_way_ = static_cast<std::size_t>(bad - requests.data());
  on_error(std::strerror(error), error, IBV_WC_LOC_QP_OP_ERR);
}

void LoopedWords::poll() {
  std::array<ibv_wc, kBatch> wcs;
  const int n = loop().poll(wcs);
  if (n < 0) return fail("its completion queue cannot be read", n);
  under_way_ -= static_cast<std::size_t>(n);
  for (int i = 0; i < n && posted(); ++i) {
    const ibv_wc_status status = wcs[static_cast<std::size_t>(i)].status;
    if (status != IBV_WC_SUCCESS)
      on_error(completion_hint(status), static_cast<int>(status), status);
  }
}

void LoopedWords::on_error(const char* what, int error, ibv_wc_status status) {
  if (!may_repeat() || !blame_.blamed(status, ended_, now_ns())) return fail(what, error);
  leave(what, error);
}

void LoopedWords::leave(const char* why, int error) {
  TP_INFO(net, "%s: adding to a signal in GPU memory, by the adapter, begins again: %s (%d)",
          loop().port().c_str(), why, error);
  next_ = phase_;
  phase_ = Phase::stopping;
  hurry();
  if (!loop().stop()) fail("it does not take its queue pair out of service", 0);
}

GpuWords::State LoopedWords::look() {
  if (late()) return State::failed;
  if (posted() || phase_ == Phase::stopping) poll();
  if (posted() && under_way_ != 0) {
    if (may_repeat() && !works(port_) && works(1 - port_)) leave("it is left", 0);
    return phase_ == Phase::failed ? State::failed : State::busy;
  }
  switch (phase_) {
    case Phase::stopping:
      if (under_way_ == 0) phase_ = Phase::waiting;
      [[fallthrough]];
    case Phase::waiting:
      if (phase_ != Phase::waiting) break;
      // One that is mute fails all, and is not known to.
      if (const int port = choose(1 - port_); port >= 0) fence(port);
      break;
    case Phase::fencing:
      if (flush_.driver_failed())
        fail("what came before cannot be made visible", 0);
      else if (flush_.fenced(fence_) && usable(port_))
        post(next_);
      else if (flush_.fenced(fence_))
        phase_ = Phase::waiting;
      break;
    case Phase::reading:
      if (loops_[1] != nullptr && !works(port_) && works(1 - port_)) {
        fence(1 - port_);  // and not a WRITE that may not be repeated
        break;
      }
      // All have completed: the words, and that all data before their signals is in place.
      for (std::size_t i = 0; i < count_; ++i) values_[i] += words_[i].add;
      post(Phase::writing);
      break;
    case Phase::writing:
      phase_ = Phase::idle;
      limit_.reset();
      ++ended_;
      turn_.give_back(this);
      return State::idle;
    case Phase::idle:
    case Phase::failed:
      break;
  }
  return phase_ == Phase::failed ? State::failed : State::busy;
}

void LoopedWords::fail(const char* what, int error) {
  phase_ = Phase::failed;
  TP_WARN(
      "%s: adding to a signal in GPU memory, by the adapter, fails: %s (%d); the communicator "
      "cannot be used any more; see dmesg of this host",
      loop().port().c_str(), what, error);
}

}  // namespace twinpath::gda
