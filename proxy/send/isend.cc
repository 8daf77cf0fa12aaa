// What isend does, top down: the ways that nearly all messages take, then the one for whatever is
// special, then how a message gets onto a queue.
//
// send_next(), join() and answer() are entered with the lock and leave it.  They are called last,
// as leave_by() is, so that nobody keeps registers over the call.
#include <mutex>

#include "plugin/base/log.h"
#include "proxy/send/send_comm.h"

namespace twinpath {

static_assert(SendRequest::kNone == Coalescer::kNone);

// Of host memory.  Here stands the way of the next member of a group whose parcel is being laid.
Status ProxySendComm::isend(void* data, std::size_t bytes, int tag, Memory* memory,
                            Request** request) {
  const auto* mine = static_cast<const ProxyMemory*>(memory);
  if (!rules_.plain(data, bytes, mine) || !hub_->lock.take()) [[unlikely]]
    return isend_any(data, bytes, tag, mine, request);
  if (bytes == kParcelBytes) {
    const std::uint16_t slot = requests_.next();
    if (SendRequest* const r = member(data, kParcelBytes, tag, mine); r != nullptr) {
      *request = r;
      if (coalescer_.add_longest(slot, data)) return leave_by<&ProxySendComm::post_group>();
      hub_->lock.unlock();
      return Status::ok;
    }
  }
  return send_next(data, bytes, tag, mine, request);
}

// Of any memory; waits for the lock.
Status ProxySendComm::isend_any(void* data, std::size_t bytes, int tag, const ProxyMemory* memory,
                                Request** request) {
  hub_->lock.lock();
  return rules_.plain(data, bytes, memory) ? send_next(data, bytes, tag, memory, request)
                                           : answer(data, bytes, tag, memory, request);
}

// A message by itself for the next cell, over the only queue, of host memory.
Status ProxySendComm::send_next(void* data, std::size_t bytes, int tag, const ProxyMemory* memory,
                                Request** request) {
  if (coalescer_.group_open() || link_->halted() || !ring_.ready()) [[unlikely]]
    return coalescer_.group_open() ? join(data, bytes, tag, memory, request)
                                   : answer(data, bytes, tag, memory, request);
  const CellView cell = ring_.cell(ring_.head());
  const CellMeta meta = cell.meta();
  if (bytes > queues_.plain_up_to() || cell.tag() != tag || bytes > cell.bytes() ||
      ring_.head() >= slow_from_) [[unlikely]]
    return answer(data, bytes, tag, memory, request);
  if (!meta.lone() || (coalescer_.takes_small() && bytes <= kParcelBytes && meta.copyable()))
    return join(data, bytes, tag, memory, request);
  SendRequest* const r = requests_.take_again();
  if (r == nullptr) [[unlikely]]
    return answer(data, bytes, tag, memory, request);
  *request = r;
  r->begin(data, bytes, memory, ring_.head());
  queues_.lay_plain(data, bytes, memory, cell, meta, r->wr_id());
  if (bytes <= kParcelBytes) {
    r->small_ = true;
    coalescer_.small_left();
  }
  ring_.use_head();
  if (!queues_.post_plain(bytes, ring_.head())) [[unlikely]]
    return leave_by<&ProxySendComm::post_failed>();
  hub_->lock.unlock();
  return Status::ok;
}

// A message that leaves with others: a member of the group that is open, or that its cell begins;
// or one that is added to the batch.
Status ProxySendComm::join(void* data, std::size_t bytes, int tag, const ProxyMemory* memory,
                           Request** request) {
  if (coalescer_.group_open() || begin_group(bytes)) {
    SendRequest* const r = bytes <= kParcelBytes ? member(data, bytes, tag, memory) : nullptr;
    if (r == nullptr) return answer(data, bytes, tag, memory, request);
    *request = r;
    if (coalescer_.add_member(r->slot(), data, static_cast<std::uint32_t>(bytes)))
      return leave_by<&ProxySendComm::post_group>();
    hub_->lock.unlock();
    return Status::ok;
  }
  const CellView cell = ring_.cell(ring_.head());
  const CellMeta meta = cell.meta();
  if (!meta.valid() || meta.no_completion()) [[unlikely]]
    return answer(data, bytes, tag, memory, request);
  const std::uint16_t slot = requests_.next();
  SendRequest* const r = requests_.take_again();
  if (r == nullptr) [[unlikely]]
    return answer(data, bytes, tag, memory, request);
  *request = r;
  r->begin(data, bytes, memory, ring_.head());
  ring_.use_head();
  if (coalescer_.add_plain(static_cast<const std::uint8_t*>(data), memory, cell, meta,
                           static_cast<std::uint32_t>(bytes), slot, r->before_))
    return leave_by<&ProxySendComm::post_batch>();
  hub_->hold(*this);
  hub_->lock.unlock();
  return Status::ok;
}

// Has the next isend take answer(), whatever its message.
void ProxySendComm::watch_next() {
  std::lock_guard hold(hub_->lock);
  trace_.watch_next();
  set_slow_from();
  if (coalescer_.group_open() && !link_->halted()) end_group();
}

// Any message, for the first cell with its tag.
Status ProxySendComm::answer(void* data, std::size_t bytes, int tag, const ProxyMemory* memory,
                             Request** request) {
  std::lock_guard hold(hub_->lock, std::adopt_lock);
  *request = nullptr;
  const bool watched = trace_.watched();
  bool stage = false;
  TP_TRY(rules_.check(data, bytes, memory, link_->peer().text, stage));
  if (link_->halted()) return no_cell_yet();
  if (coalescer_.group_open()) end_group();
  std::uint64_t seq = 0;
  if (!ring_.find(tag, seq) || requests_.full() || !queues_.room()) return no_cell_yet();
  const CellView cell = ring_.cell(seq);
  const CellMeta meta = cell.meta();
  if (!meta.valid()) {
    link_->fail("it wrote a clear-to-send cell that makes no sense (number %llu)",
                static_cast<unsigned long long>(seq));
    return Status::remote;
  }
  if (const std::uint32_t room = cell.bytes(); bytes > room) {
    warn_truncated(bytes, room);
    bytes = room;
    stage = stage && bytes > 0;
  }
  ring_.use(seq);
  if (meta.no_completion()) ring_.report().answered(seq);
  set_slow_from();
  SendRequest& r = *requests_.take();
  r.begin(data, bytes, memory, seq);
  if (stage) r.mark(SendRequest::kStaged);
  if (meta.no_completion() && link_->can_fail_over()) {
    r.mark(SendRequest::kUnnoted);
    kept_.keep(r.slot(), cell);
  }
  if (watched) trace_.begin(r.slot());
  *request = &r;
  const Outgoing m{static_cast<const std::uint8_t*>(data), memory,  cell, meta,
                   static_cast<std::uint32_t>(bytes),      r.slot()};
  if (stage)
    send_staged(r, m);
  else
    TP_TRY(send_now(r, m));
  if (watched) trace_.end();
  // Behind the message: its cell has been read, or copied.
  return ring_.report_due() ? tell_used() : Status::ok;
}

// Waiting for the peer's cell counts: it must not wait for a peer that has gone.
Status ProxySendComm::no_cell_yet() {
  if (!link_->halted() && ring_.lies())
    link_->fail("it says that it read parcels that were not sent (cell %llu)",
                static_cast<unsigned long long>(ring_.seen()));
  (void)link_->poll();
  in_vain(1);
  return link_->broken() ? Status::remote : Status::again;
}

void ProxySendComm::warn_truncated(std::size_t sent, std::size_t posted) {
  if (warned_truncated_) return;
  warned_truncated_ = true;
  TP_WARN(
      "a send of %zu bytes to %s met a receive of %zu bytes and was cut to it (further ones "
      "are not reported); ranks disagree on the message size",
      sent, link_->peer().text.c_str(), posted);
}

// Cut over several queues, with others, or by itself.
Status ProxySendComm::send_now(SendRequest& r, const Outgoing& m) {
  const bool time = trace_.due(ring_.head(), m.bytes);
  if (time) set_slow_from();
  Lanes& lanes = queues_.lanes();
  if (!lanes.one()) [[unlikely]] {
    const Lanes::Range over = lanes.choose(m.bytes, core_->expected);
    if (over.count > 1) {
      // It goes by itself, but the others of its group need not wait for it.
      const bool release = coalescer_.releases(m.meta);
      if (time) trace_.start(r);
      if (!queues_.post_striped(r, m, over, trace_, ring_.head())) return post_failed();
      return release ? post_batch() : Status::ok;
    }
  }
  if (m.meta.group() > 1 || (coalescer_.takes_small() && m.small())) return gather(r, m);
  if (time) trace_.start(r);
  const Lane& lane = lanes.next_lane();
  trace_.leaves(lane, m.bytes);
  if (queues_.splits(m.bytes) || m.meta.no_completion())
    return queues_.post_piece(m, WriteMaker::whole(m), lane, r.wr_id(), ring_.head())
               ? Status::ok
               : post_failed();
  if (m.bytes <= kParcelBytes) {
    r.small_ = true;
    coalescer_.small_left();
  }
  return queues_.post_whole(m, lane, r.wr_id(), ring_.head()) ? Status::ok : post_failed();
}

// A message of a group, or one that is held behind another.
inline Status ProxySendComm::gather(SendRequest& r, const Outgoing& m) {
  const bool leaves = coalescer_.add(m, r.before_);
  trace_.gathered(queues_.first(), r.bytes());
  if (leaves) return post_batch();
  hub_->hold(*this);
  return Status::ok;
}

Status ProxySendComm::post_batch() {
  const Lane& lane = queues_.lanes().next_lane();
  SendRequest& last = requests_.at(coalescer_.leave());
  SendBatch& batch = coalescer_.leaving();
  last.small_ = true;
  SendBatch::Parcel parcel;
  if (blocks_.known(lane.rail) && batch.wants_parcel() && ring_.find_credit()) {
    parcel = blocks_.take(last, lane.rail);
    if (parcel.data != nullptr) parcel.number = ring_.take_credit();
  }
  return queues_.post_batch(batch, lane, parcel, last.wr_id(), last.bytes(), ring_.head())
             ? Status::ok
             : post_failed();
}

// --- groups whose members come in the order of their cells (group_parcel.h)

// The request of the next member of the open group; null where that is something else.
TP_ALWAYS_INLINE inline SendRequest* ProxySendComm::member(const void* data, std::size_t bytes,
                                                           int tag, const ProxyMemory* memory) {
  if (!coalescer_.group_open() || link_->halted()) [[unlikely]]
    return nullptr;
  const CellView cell = coalescer_.group().cell();
  if (cell.tag() != tag || bytes > cell.bytes()) [[unlikely]]
    return nullptr;
  SendRequest* const r = requests_.take_again();
  if (r == nullptr) [[unlikely]]
    return nullptr;
  r->begin(data, bytes, memory, ring_.head(), coalescer_.last());
  ring_.use_next();
  return r;
}

// Whether the next cell begins such a group, with a message of that length.  The cells of a group
// come together, so all are there when the first is; else, and where anything else is special, its
// members go the way of any batch.
inline bool ProxySendComm::begin_group(std::size_t bytes) {
  const CellMeta first = ring_.cell(ring_.head()).meta();
  if (first.lone() || bytes > kParcelBytes) return false;
  ParcelPool* const pool = blocks_.pool(queues_.first().rail);
  if (!coalescer_.may_begin_group(first) || ring_.used_ahead() != 0 ||
      ring_.head() + first.group() > slow_from_ || pool == nullptr || !ring_.any_credit() ||
      !ring_.see_group(first))
    return false;
  const std::uint16_t block = pool->take();
  if (block == kNoBlock) return false;
  coalescer_.begin_group(ring_.at(ring_.head()), ring_.layout().stride(), first, block,
                         pool->data(block));
  hub_->hold(*this);
  return true;
}

Status ProxySendComm::post_group() {
  const GroupParcel& group = coalescer_.group();
  SendRequest& last = requests_.at(coalescer_.leave());
  const std::uint8_t rail = queues_.first().rail;
  blocks_.keep(last, rail, group.block());
  last.small_ = true;
  return queues_.post_group(group, blocks_.pool(rail)->lkey(), ring_.take_credit(), last.wr_id(),
                            ring_.head())
             ? Status::ok
             : post_failed();
}

// Its members are a batch from now on: the parcel was laid for all of them.
void ProxySendComm::end_group() {
  const std::uint64_t begin = ring_.head() - coalescer_.group().sent();
  const std::uint16_t block = coalescer_.end_group(
      [this](std::uint16_t slot) { return requests_.at(slot).before(); },
      [this, begin](std::uint16_t slot, unsigned i) {
        const SendRequest& r = requests_.at(slot);
        return Outgoing{r.data(),  r.memory(), ring_.cell(begin + i), coalescer_.group().meta(i),
                        r.bytes(), slot};
      });
  blocks_.pool(queues_.first().rail)->give(block);
}

}  // namespace twinpath
