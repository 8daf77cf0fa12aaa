// What a send comm does when its queues are replaced (connect/failover.h): it tells how far it has
// read the ring, and afterwards sends again what the receiver awaits.
#include <string>

#include "proxy/send/replay.h"
#include "proxy/send/send_comm.h"

namespace twinpath {

// Nothing reaches the ring any more, so what lies there is all that has come.
// What these cells say of parcels may be of another count: where the next round overtook the last
// one the receiver may have gone on in that, and this end not.  Both count anew before they go on.
HeldState ProxySendComm::held() {
  if (!link_->broken()) ring_.see_all();
  HeldState held;
  held.begin = held.end = ring_.seen();
  return held;
}

// What is to be sent again must be known to the adapter, and the peer's box to the peer's.
Status ProxySendComm::reach(FencedNote&, std::string& why) {
  const int rail = link_->set().reserve_rail();
  if (rail < 0) return Status::ok;
  kept_.keys_change();
  const Queue& queue = link_->queue(link_->set().first());
  bool known = core_->devices->stand_by(rules_.device, rail) && link_->rkey(queue) != 0 &&
               (queue.inline_bytes >= sizeof(std::uint32_t) || ring_memory_->lkey(rail) != 0);
  requests_.for_pending([&](const SendRequest& r) {
    if (!known || r.bytes() == 0 || r.forgotten()) return;
    const ProxyMemory& from = r.is(SendRequest::kStaged) ? r.memory()->mirror->memory : *r.memory();
    known = from.lkey(rail) != 0;
  });
  if (!known) why = not_registered_text(link_->set().rails()[static_cast<std::size_t>(rail)]);
  return known ? Status::ok : Status::system;
}

int ProxySendComm::resume(const FencedNote& note) {
  if (coalescer_.group_open()) end_group();
  choose_queues();
  if (link_->has_reserve() &&
      (note.key_rails != ring_.layout().rails() ||
       !kept_.renew_all(ring_, requests_, staged_.get(), note.held, note.memory))) {
    link_->fail("it does not say which keys a clear-to-send cell has now");
    return -1;
  }
  ring_.count_parcels_anew();  // the receiver counts parcels anew, too
  coalescer_.nothing_ahead();
  trace_.stop();
  Replay replay;
  for (std::uint16_t slot = coalescer_.last(); slot != SendRequest::kNone;
       slot = requests_.at(slot).before())
    replay.leave_out(slot);
  int again = post_staged_again();
  if (staged_ != nullptr)
    staged_->for_waiting([&](std::uint16_t slot, int) { replay.leave_out(slot); });
  const auto cell = [&replay] { return static_cast<unsigned long long>(replay.cell()); };
  switch (replay.choose(requests_, ring_, note.held, blocks_)) {
    case Replay::Verdict::right:
      break;
    case Replay::Verdict::never_offered:
      link_->fail("it says that it never offered a receive which was answered (cell %llu)", cell());
      return -1;
    case Replay::Verdict::lost:
      link_->fail(
          "its adapter failed between acknowledging a message and telling of it (cell %llu), and "
          "that cannot be sent again: its buffer may have been given back; start the job again",
          cell());
      return -1;
  }
  for (const std::uint16_t slot : replay.slots()) {
    if (send_again(requests_.at(slot)) != Status::ok) return -1;
    ++again;
  }
  // What was told before may have been lost.
  if (ring_.report().needed() && tell_used() != Status::ok) return -1;
  set_slow_from();
  if (!coalescer_.batch().empty() || (staged_ != nullptr && staged_->busy())) hub_->hold(*this);
  return again;
}

Status ProxySendComm::send_again(SendRequest& r) {
  const CellView cell(kept_.of(r, ring_));
  const CellMeta meta = cell.meta();
  Outgoing m{r.data(), r.memory(), cell, meta, r.bytes(), r.slot()};
  Mirror* mirror =
      r.is(SendRequest::kStaged) && !r.forgotten() ? r.memory()->mirror.get() : nullptr;
  if (!meta.valid()) {
    link_->fail("it changed a clear-to-send cell that was being answered");
    return Status::remote;
  }
  if (r.forgotten() || (mirror != nullptr && !mirror->enter())) {
    link_->fail("%s", kSentMemoryGone);
    return Status::remote;
  }
  if (mirror != nullptr) {
    m.data = mirror->at(reinterpret_cast<std::uintptr_t>(r.data()));
    m.memory = &mirror->memory;
  }
  r.set_pending(1);
  Lanes& lanes = queues_.lanes();
  const Lanes::Range over = lanes.one() ? Lanes::Range{} : lanes.choose(m.bytes, core_->expected);
  const bool posted =
      over.count > 1
          ? queues_.post_striped(r, m, over, trace_, ring_.head())
          : queues_.post_piece(m, WriteMaker::whole(m), lanes.next_lane(), r.wr_id(), ring_.head());
  const Status s = posted ? Status::ok : post_failed();
  if (mirror != nullptr) mirror->leave();
  return s;
}

// Messages that are still being copied go on over a queue that is in use; of the oldest the pieces
// that had left are posted once more, before its next ones: they come in order.  How many messages
// that are.
int ProxySendComm::post_staged_again() {
  if (staged_ == nullptr) return 0;
  staged_->forget_writes();
  if (!staged_->busy()) return 0;
  staged_->for_waiting([this](std::uint16_t, int& queue) { queue = queues_.lanes().next(); });
  const int popped = staged_->popped();
  if (popped == 0) return 0;
  for (int i = 0; i < popped; ++i) {
    const StagedSends::Piece piece = staged_->popped_piece(i);
    SendRequest& r = requests_.at(piece.message->slot);
    if (i == 0) {
      r.renumber();
      r.set_pending(static_cast<int>(piece.chunks));
    }
    if (!piece.mirror->enter()) {
      link_->fail("%s", kSentMemoryGone);
      return 0;
    }
    (void)post_copied(piece);
    piece.mirror->leave();
  }
  return 1;
}

}  // namespace twinpath
