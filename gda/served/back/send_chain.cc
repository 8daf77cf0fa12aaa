// See send_chain.h.
#include "gda/served/back/send_chain.h"

#include <algorithm>

namespace twinpath::gda {

SendChain::SendChain(std::uint32_t slots)
    : chain_(std::min(kMost, slots)), sges_(chain_.size()), marks_(slots) {}

SendChain::Place SendChain::place() {
  chain_[chained_] = {};
  sges_[chained_] = {};
  return {chain_[chained_], sges_[chained_]};
}

bool SendChain::add(std::uint64_t index, std::uint64_t done, bool reads) {
  ibv_send_wr& request = chain_[chained_];
  if (chained_ != 0) chain_[chained_ - 1].next = &request;
  ++chained_;
  ++in_flight_;
  ++sequence_;
  index_ = index;
  done_ = done;
  unsignalled_reads_ |= reads;
  if (++unsignalled_ == kSignalEvery) signal(request);
  return chained_ != chain_.size();
}

void SendChain::extend(std::uint64_t done) {
  if (chained_ != 0)
    done_ = done;
  else
    mark(next_ - 1).done = done;
}

ibv_send_wr* SendChain::close() {
  ibv_send_wr& last = chain_[chained_ - 1];
  if (unsignalled_ != 0) signal(last);
  // What was done without a work request may have come after a signalled one.
  mark(next_ - 1).done = done_;
  last.next = nullptr;
  chained_ = 0;
  return chain_.data();
}

void SendChain::signal(ibv_send_wr& request) {
  request.send_flags |= IBV_SEND_SIGNALED;
  mark(next_++) = {done_, unsignalled_, unsignalled_reads_};
  unsignalled_ = 0;
  unsignalled_reads_ = false;
}

// Pieces of one WQE have one number, so exactly one mark goes per completion.
std::optional<SendChain::Mark> SendChain::retire() {
  if (first_ == next_) return std::nullopt;
  const Mark done = mark(first_++);
  in_flight_ -= done.requests;
  return done;
}

void SendChain::forget() {
  chained_ = unsignalled_ = in_flight_ = 0;
  unsignalled_reads_ = false;
  first_ = next_;
}

}  // namespace twinpath::gda
