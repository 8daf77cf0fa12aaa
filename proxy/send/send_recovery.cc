// What a send comm does when its queues are replaced (connect/recovery.h): it tells how far it has
// read the ring, and afterwards sends again what the receiver awaits.
#include <algorithm>
#include <array>
#include <bitset>

#include "proxy/send/send_comm.h"

namespace twinpath {

// Nothing reaches the ring any more, so what lies there is all that has come.
HeldState ProxySendComm::held() {
  while (!link_->broken() && see_cell()) {
  }
  HeldState held;
  held.begin = held.end = seen_;
  return held;
}

// Every write tells by its completion that it has arrived, or the last of its batch does.
AtRisk ProxySendComm::at_risk() {
  AtRisk risk;
  for (std::size_t i = 0; requests_.made(i); ++i) {
    const SendRequest& r = requests_.at(i);
    if (!r.active_ || r.pending_ == 0) continue;
    risk.any = true;
    risk.bytes += r.bytes_;
  }
  risk.mark = ++looks_;
  return risk;
}

void ProxySendComm::keep_cell(SendRequest& request, const CellView& cell) {
  if (!link_->recoverable()) return;
  request.special_ |= SendRequest::kUnnoted;
  if (kept_cells_.empty()) kept_cells_.resize(layout_.stride() * kSendSlots);
  (void)cell.copy(kept_cells_.data() + layout_.stride() * slot_of(request.wr_id_),
                  layout_.field_bytes());
}

// Each message of its own, the oldest first: of two without notice for one buffer the later one
// must be the last to arrive, and NCCL's own rule is that it waits for the earlier.
int ProxySendComm::resume(const HeldState& theirs) {
  choose_queues();
  credit_ = {};  // the receiver counts parcels anew, too
  small_ahead_ = 0;
  timed_since_ = 0;
  std::bitset<kSendSlots> not_sent;
  for (std::uint16_t slot = batch_last_; slot != SendRequest::kNone;
       slot = requests_.at(slot).before_)
    not_sent[slot] = true;
  int again = post_staged_again();
  if (staged_ != nullptr)
    staged_->for_waiting([&](std::uint16_t slot, int) { not_sent[slot] = true; });

  std::array<std::uint16_t, kSendSlots> open;
  std::size_t count = 0;
  for (std::uint16_t slot = 0; requests_.made(slot); ++slot) {
    SendRequest& r = requests_.at(slot);
    if (!r.active_ || r.pending_ == 0 || not_sent[slot]) continue;
    // What its old queue may still say of it finds another number.
    r.wr_id_ += std::uint64_t{1} << 48;
    r.before_ = SendRequest::kNone;
    if (r.block_ != kNoBlock) pools_[r.pool_]->give(std::exchange(r.block_, kNoBlock));
    r.small_ = false;
    r.special_ &= SendRequest::kUnnoted | SendRequest::kStaged;
    r.pending_ = 0;
    const bool unnoted = (r.special_ & SendRequest::kUnnoted) != 0;
    if (!unnoted && cell_of(r) >= theirs.end) {
      link_->fail("it says that it never offered a receive which was answered (cell %llu)",
                  static_cast<unsigned long long>(cell_of(r)));
      return -1;
    }
    if (unnoted || theirs.awaits(cell_of(r))) open[count++] = slot;
  }
  std::sort(open.begin(), open.begin() + static_cast<std::ptrdiff_t>(count),
            [this](std::uint16_t a, std::uint16_t b) {
              return cell_of(requests_.at(a)) < cell_of(requests_.at(b));
            });
  for (std::size_t i = 0; i < count; ++i, ++again)
    if (send_again(requests_.at(open[i])) != Status::ok) return -1;
  if ((told_ != 0 || tell_at_ != kNever) && tell_used() != Status::ok) return -1;
  set_slow_from();
  if (!batch_.empty() || (staged_ != nullptr && staged_->busy())) hub_->hold(*this);
  return again;
}

Status ProxySendComm::send_again(SendRequest& r) {
  const std::uint16_t slot = slot_of(r.wr_id_);
  const bool unnoted = (r.special_ & SendRequest::kUnnoted) != 0;
  const CellView cell(unnoted ? kept_cells_.data() + layout_.stride() * slot : cell_at(cell_of(r)));
  const CellMeta meta = cell.meta();
  Outgoing m{r.data_, r.memory_, cell, meta, r.bytes_, slot};
  Mirror* mirror = (r.special_ & SendRequest::kStaged) != 0 ? r.memory_->mirror.get() : nullptr;
  if (!meta.valid() || (mirror != nullptr && !mirror->enter())) {
    link_->fail("%s", mirror != nullptr
                          ? "a message is to be sent again whose memory was deregistered meanwhile"
                          : "it changed a clear-to-send cell that was being answered");
    return Status::remote;
  }
  if (mirror != nullptr) {
    m.data = mirror->at(reinterpret_cast<std::uintptr_t>(r.data_));
    m.memory = &mirror->memory;
  }
  r.pending_ = 1;
  int first = 0;
  const int lanes = one_queue_ ? 1 : choose_lanes(m.bytes, first);
  const Status s =
      lanes > 1 ? post_striped(r, m, first, lanes)
                : post_piece(r, m, WriteMaker::whole(m),
                             lanes_[static_cast<std::size_t>(one_queue_ ? 0 : next_queue())]);
  if (mirror != nullptr) mirror->leave();
  return s;
}

// Messages that are still being copied go on over a queue that is in use; of the oldest the pieces
// that had left are posted once more, before its next ones: they come in order.  How many messages
// that are.
int ProxySendComm::post_staged_again() {
  staged_writes_ = 0;
  if (staged_ == nullptr || !staged_->busy()) return 0;
  staged_->for_waiting([this](std::uint16_t, int& queue) { queue = next_queue(); });
  const int popped = staged_->popped();
  if (popped == 0) return 0;
  for (int i = 0; i < popped; ++i) {
    const StagedSends::Piece piece = staged_->popped_piece(i);
    SendRequest& r = requests_.at(piece.message->slot);
    if (i == 0) {
      r.wr_id_ += std::uint64_t{1} << 48;
      r.pending_ = static_cast<std::uint8_t>(piece.chunks);
    }
    if (!piece.mirror->enter()) {
      link_->fail("a message is to be sent again whose memory was deregistered meanwhile");
      return 0;
    }
    (void)post_copied(piece);
    piece.mirror->leave();
  }
  return 1;
}

}  // namespace twinpath
