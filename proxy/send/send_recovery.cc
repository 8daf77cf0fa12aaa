// What a send comm does when its queues are replaced (connect/recovery.h): it tells how far it has
// read the ring, and afterwards sends again what the receiver awaits.
#include <algorithm>
#include <array>
#include <bitset>
#include <string>

#include "proxy/send/send_comm.h"

namespace twinpath {
namespace {
constexpr const char* kMemoryGone =
    "a message is to be sent again whose memory was deregistered meanwhile";
}

// Nothing reaches the ring any more, so what lies there is all that has come.
// What these cells say of parcels may be of another count: where the next round overtook the last
// one the receiver may have gone on in that, and this end not.  Both count anew before they go on.
HeldState ProxySendComm::held() {
  if (!link_->broken()) ring_.see_all();
  HeldState held;
  held.begin = held.end = ring_.seen();
  return held;
}

// Every write tells by its completion that it has arrived, or the last of its batch does.
AtRisk ProxySendComm::at_risk() {
  AtRisk risk;
  for (std::size_t i = 0; requests_.made(i); ++i) {
    const SendRequest& r = requests_.at(i);
    if (r.pending() == 0) continue;
    risk.any = true;
    risk.bytes += r.bytes_;
  }
  risk.mark = ++looks_;
  return risk;
}

void ProxySendComm::keep_cell(SendRequest& request, const CellView& cell) {
  if (!link_->recoverable()) return;
  request.special_ |= SendRequest::kUnnoted;
  if (kept_cells_.empty()) kept_cells_.resize(ring_.layout().stride() * kSendSlots);
  (void)cell.copy(kept_cells_.data() + ring_.layout().stride() * slot_of(request.wr_id_),
                  ring_.layout().field_bytes());
}

// Each message of its own, the oldest first: of two without notice for one buffer the later one
// must be the last to arrive, and NCCL's own rule is that it waits for the earlier.
// What is to be sent again must be known to the adapter, and the peer's box to the peer's.
Status ProxySendComm::reach(FencedNote&, std::string& why) {
  const int rail = link_->set().reserve_rail();
  if (rail < 0) return Status::ok;
  keys_change_ = true;
  const Queue& queue = link_->queue(link_->set().first());
  bool known = core_->devices->stand_by(device_, rail) && link_->rkey(queue) != 0 &&
               (queue.inline_bytes >= sizeof(std::uint32_t) || ring_memory_->lkey(rail) != 0);
  for (std::size_t i = 0; requests_.made(i) && known; ++i) {
    const SendRequest& r = requests_.at(i);
    if (r.pending() == 0 || r.bytes_ == 0 || forgotten(r)) continue;
    const bool staged = (r.special_ & SendRequest::kStaged) != 0;
    known = (staged ? r.memory_->mirror->memory : *r.memory_).lkey(rail) != 0;
  }
  if (!known) why = link_->not_registered(rail);
  return known ? Status::ok : Status::system;
}

// The receiver writes nothing into cells that this end has seen, until they are answered; what it
// writes into later ones has the new keys.
bool ProxySendComm::renew_keys(const FencedNote& theirs) {
  const auto renew = [&](std::uint8_t* cell) {
    // Where they have never changed, the old ones are right.
    return CellView(cell).bytes() == 0 ||
           twinpath::renew_keys(ring_.layout(), cell, theirs.memory) || !keys_change_;
  };
  for (std::uint64_t seq = ring_.head(); seq != ring_.seen(); ++seq)
    if (!ring_.used(seq) && !renew(ring_memory_->data() + ring_.layout().offset(seq))) return false;
  for (std::uint16_t slot = 0; requests_.made(slot); ++slot) {
    const SendRequest& r = requests_.at(slot);
    if (r.pending() == 0) continue;
    const bool unnoted = (r.special_ & SendRequest::kUnnoted) != 0;
    const std::uint64_t seq = cell_of(r);
    if (!unnoted && !theirs.held.awaits(seq)) continue;
    if (!renew(unnoted ? kept_cells_.data() + ring_.layout().stride() * slot
                       : ring_memory_->data() + ring_.layout().offset(seq)))
      return false;
  }
  bool all = true;
  if (staged_ != nullptr) staged_->for_cells([&](std::uint8_t* cell) { all = renew(cell) && all; });
  return all;
}

int ProxySendComm::resume(const FencedNote& note) {
  const HeldState& theirs = note.held;
  if (coalescer_.group_open()) end_group();
  choose_queues();
  if (link_->has_reserve() && (note.key_rails != ring_.layout().rails() || !renew_keys(note))) {
    link_->fail("it does not say which keys a clear-to-send cell has now");
    return -1;
  }
  ring_.count_parcels_anew();  // the receiver counts parcels anew, too
  coalescer_.nothing_ahead();
  timed_since_ = 0;
  std::bitset<kSendSlots> not_sent;
  for (std::uint16_t slot = coalescer_.last(); slot != SendRequest::kNone;
       slot = requests_.at(slot).before_)
    not_sent[slot] = true;
  int again = post_staged_again();
  if (staged_ != nullptr)
    staged_->for_waiting([&](std::uint16_t slot, int) { not_sent[slot] = true; });

  std::array<std::uint16_t, kSendSlots> open;
  std::size_t count = 0;
  for (std::uint16_t slot = 0; requests_.made(slot); ++slot) {
    SendRequest& r = requests_.at(slot);
    if (r.pending() == 0 || not_sent[slot]) continue;
    // What its old queue may still say of it finds another number.
    r.wr_id_ += std::uint64_t{1} << 48;
    r.before_ = SendRequest::kNone;
    if (r.block_ != kNoBlock) pools_[r.pool_]->give(std::exchange(r.block_, kNoBlock));
    r.small_ = false;
    r.special_ &= SendRequest::kUnnoted | SendRequest::kStaged;
    const bool unnoted = (r.special_ & SendRequest::kUnnoted) != 0;
    if (!unnoted && cell_of(r) >= theirs.end) {
      link_->fail("it says that it never offered a receive which was answered (cell %llu)",
                  static_cast<unsigned long long>(cell_of(r)));
      return -1;
    }
    // What is to be sent again stays pending all the while: its owner looks without the lock.
    if (unnoted || theirs.awaits(cell_of(r)))
      open[count++] = slot;
    else
      r.set_pending(0);
  }
  std::sort(open.begin(), open.begin() + static_cast<std::ptrdiff_t>(count),
            [this](std::uint16_t a, std::uint16_t b) {
              return cell_of(requests_.at(a)) < cell_of(requests_.at(b));
            });
  for (std::size_t i = 0; i < count; ++i, ++again)
    if (send_again(requests_.at(open[i])) != Status::ok) return -1;
  // What was told before may have been lost.
  if (ring_.report().needed() && tell_used() != Status::ok) return -1;
  set_slow_from();
  if (!coalescer_.batch().empty() || (staged_ != nullptr && staged_->busy())) hub_->hold(*this);
  return again;
}

// Whoever aborts deregisters first and closes then; between the two queues may be replaced.
void ProxySendComm::forget(const ProxyMemory& memory) {
  if (!link_->recoverable()) return;
  bool any = false;
  for (std::size_t i = 0; requests_.made(i); ++i) {
    SendRequest& r = requests_.at(i);
    if (r.pending() == 0 || r.memory_ != &memory || r.bytes_ == 0) continue;
    r.memory_ = nullptr;
    any = true;
  }
  // What is held, too, is read only when the queues are new.
  if (any && link_->halted()) link_->fail("%s", kMemoryGone);
}

Status ProxySendComm::send_again(SendRequest& r) {
  const std::uint16_t slot = slot_of(r.wr_id_);
  const bool unnoted = (r.special_ & SendRequest::kUnnoted) != 0;
  const CellView cell(unnoted ? kept_cells_.data() + ring_.layout().stride() * slot
                              : ring_.at(cell_of(r)));
  const CellMeta meta = cell.meta();
  Outgoing m{r.data_, r.memory_, cell, meta, r.bytes_, slot};
  const bool staged = (r.special_ & SendRequest::kStaged) != 0;
  Mirror* mirror = staged && !forgotten(r) ? r.memory_->mirror.get() : nullptr;
  if (!meta.valid()) {
    link_->fail("it changed a clear-to-send cell that was being answered");
    return Status::remote;
  }
  if (forgotten(r) || (mirror != nullptr && !mirror->enter())) {
    link_->fail("%s", kMemoryGone);
    return Status::remote;
  }
  if (mirror != nullptr) {
    m.data = mirror->at(reinterpret_cast<std::uintptr_t>(r.data_));
    m.memory = &mirror->memory;
  }
  r.set_pending(1);
  const Lanes::Range over = lanes_.one() ? Lanes::Range{} : lanes_.choose(m.bytes, core_->expected);
  const Status s = over.count > 1 ? post_striped(r, m, over)
                                  : post_piece(r, m, WriteMaker::whole(m), lanes_.next_lane());
  if (mirror != nullptr) mirror->leave();
  return s;
}

// Messages that are still being copied go on over a queue that is in use; of the oldest the pieces
// that had left are posted once more, before its next ones: they come in order.  How many messages
// that are.
int ProxySendComm::post_staged_again() {
  staged_writes_ = 0;
  if (staged_ == nullptr || !staged_->busy()) return 0;
  staged_->for_waiting([this](std::uint16_t, int& queue) { queue = lanes_.next(); });
  const int popped = staged_->popped();
  if (popped == 0) return 0;
  for (int i = 0; i < popped; ++i) {
    const StagedSends::Piece piece = staged_->popped_piece(i);
    SendRequest& r = requests_.at(piece.message->slot);
    if (i == 0) {
      r.wr_id_ += std::uint64_t{1} << 48;
      r.set_pending(static_cast<int>(piece.chunks));
    }
    if (!piece.mirror->enter()) {
      link_->fail("%s", kMemoryGone);
      return 0;
    }
    (void)post_copied(piece);
    piece.mirror->leave();
  }
  return 1;
}

}  // namespace twinpath
