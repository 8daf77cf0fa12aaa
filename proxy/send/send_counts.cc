// What a sender tells besides its bytes.  Readers of the counters: what it waits for, and how long
// some of its messages take.  Who watches it: how each message goes.
#include <mutex>

#include "plugin/base/clock.h"
#include "proxy/send/send_comm.h"

namespace twinpath {

using counters::Wait;

// Asked once a tick of the coarse clock at most.
Wait ProxySendComm::cause() {
  if (requests_.full()) return Wait::slots;
  // While something is on its way, that comes first: the peer may offer nothing because its own
  // receives wait for just this.
  if (requests_.used() == 0) return Wait::peer_cts;
  return staged_ != nullptr && staged_->busy() && staged_writes_ == 0 ? Wait::gpu_copy
                                                                      : Wait::network;
}

void ProxySendComm::in_vain(int more) {
  if (link_->broken()) return;
  link_->waited(
      moved(), [this] { return cause(); }, [this, more] { return waiting(more); });
}

// One at a time: its beginning stands in the comm.
void ProxySendComm::begin_timing(SendRequest& request) {
  if (timed_since_ != 0) return;
  request.special_ |= SendRequest::kTimed;
  timed_since_ = now_ns();
}

// Of a message in pieces each queue's last is told, as what its rail took.
void ProxySendComm::end_timing(SendRequest& request, const ibv_wc& wc) {
  const auto took = static_cast<std::uint64_t>(now_ns() - timed_since_);
  const int lane = lane_of(wc);
  counters::Rail& to = counts_->rails[lane < 0 ? 0 : lanes_[static_cast<std::size_t>(lane)].rail];
  to.timed_ns.add(took);
  to.buckets[counters::bucket_of(took)].add(1);
  if (request.pending() > 0) return;
  request.special_ &= static_cast<std::uint8_t>(~SendRequest::kTimed);
  timed_since_ = 0;
}

void ProxySendComm::leg_arrived(const SendRequest& request, const ibv_wc& wc) {
  if (const int lane = lane_of(wc); lane >= 0)
    flights_->of(slot_of(request.wr_id_)).landed(lanes_[static_cast<std::size_t>(lane)].rail);
}

std::size_t SendRequest::parts(std::span<Part, kMaxParts> out) const {
  std::lock_guard hold(comm_->hub_->lock);
  if (comm_->flights_ == nullptr) return 0;
  const Flight& flight = comm_->flights_->of(slot_of(wr_id_));
  const std::vector<Rail>& rails = comm_->link_->set().rails();
  for (std::size_t i = 0; i < flight.count; ++i) {
    const Flight::Leg& leg = flight.legs[i];
    out[i] = {comm_->core_->devices->index_of(rails[leg.rail].port), leg.queue, wr_id_, leg.bytes,
              0};
  }
  return flight.count;
}

std::uint32_t SendRequest::parts_left() const {
  std::lock_guard hold(comm_->hub_->lock);
  return comm_->flights_ == nullptr ? ~0u : comm_->flights_->of(slot_of(wr_id_)).left();
}

}  // namespace twinpath
