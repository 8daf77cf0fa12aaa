// See rma_queue.h.
#include "gda/rma/rma_queue.h"

#include <endian.h>

#include <algorithm>
#include <cstring>

#include "gda/served/back/verbs_back_end.h"
#include "plugin/base/log.h"
#include "plugin/rdma/completion_text.h"

namespace twinpath::gda::rma {

void SignalMessage::encode(std::uint8_t* to) const {
  const std::uint64_t words[3] = {htole64(window), htole64(offset), htole64(add)};
  static_assert(sizeof words == kBytes);
  std::memcpy(to, words, sizeof words);
}

SignalMessage SignalMessage::decode(const std::uint8_t* from) {
  std::uint64_t words[3];
  std::memcpy(words, from, sizeof words);
  return {static_cast<std::uint32_t>(le64toh(words[0])), le64toh(words[1]), le64toh(words[2])};
}

void Queue::advance() {
  while (works() && posted_ != work_.end() && chain(work_[posted_], posted_)) ++posted_;
  if (works()) post();
  if (failure_ == Status::ok) tell();
}

// False: there is no room for all of it yet, or the queue has failed or is stopped.
bool Queue::chain(Item& item, std::uint64_t number) {
  const Work& work = item.work;
  const auto here = static_cast<std::size_t>(port());
  const auto there = static_cast<std::size_t>(setup_.ports.there(paths_.on));
  while (item.posted < work.bytes) {
    const auto bytes = std::min(work.bytes - item.posted, setup_.max_bytes);
    ibv_send_wr* const wr = next();
    if (wr == nullptr) return false;
    posting_ = number;
    wr->opcode = work.kind == Work::Kind::read ? IBV_WR_RDMA_READ : IBV_WR_RDMA_WRITE;
    *wr->sg_list = {work.local + item.posted, static_cast<std::uint32_t>(bytes), work.lkey[here]};
    wr->wr.rdma.remote_addr = work.remote + item.posted;
    wr->wr.rdma.rkey = work.rkey[there];
    item.posted += bytes;
    if (item.posted == work.bytes && !work.signals) mark(*wr, number, true);
  }
  if (work.signals && !item.arrived) {
    const std::uint32_t slot = slot_;
    ibv_send_wr* const wr = next();
    if (wr == nullptr) return false;
    posting_ = number;
    fill_signal(*wr, work, slot);
    mark(*wr, number, true);
  }
  // Nothing to post: done with what is before it.
  if (work.bytes == 0 && !work.signals) item.arrived = true;
  return true;
}

// The next of the chain, which holds a slot from now on; null: there is none.
ibv_send_wr* Queue::next() {
  Chain& chain = *setup_.chain;
  if (in_flight_ == setup_.slots) return nullptr;
  if (chain.count == Chain::kMost) {
    post();
    if (!works()) return nullptr;
  }
  ibv_send_wr& wr = chain.requests[chain.count];
  wr = {};
  wr.sg_list = &chain.sges[chain.count];
  wr.num_sge = 1;
  wr.wr_id = id(0);
  if (chain.count != 0) chain.requests[chain.count - 1].next = &wr;
  ++chain.count;
  ++in_flight_;
  ++unmarked_;
  slot_ = (slot_ + 1) % setup_.slots;
  return &wr;
}

void Queue::mark(ibv_send_wr& wr, std::uint64_t item, bool last) {
  wr.send_flags |= IBV_SEND_SIGNALED;
  marks_[next_mark_++ % marks_.size()] = {item, unmarked_, last};
  unmarked_ = 0;
}

void Queue::fill_signal(ibv_send_wr& wr, const Work& work, std::uint32_t slot) {
  // Slots are taken in turn and given back in order, so this one's memory is free, too.
  std::uint8_t* const scratch = setup_.scratch + slot * kScratchSlot;
  const auto address = std::uint64_t{reinterpret_cast<std::uintptr_t>(scratch)};
  if (setup_.counted) {
    work.message.encode(scratch);
    *wr.sg_list = {address, SignalMessage::kBytes, path().scratch_lkey};
    wr.opcode = IBV_WR_SEND;
    return;
  }
  *wr.sg_list = {address, sizeof(std::uint64_t), path().scratch_lkey};  // the old value
  wr.opcode = IBV_WR_ATOMIC_FETCH_AND_ADD;
  wr.wr.atomic.remote_addr = work.signal;
  wr.wr.atomic.rkey = work.signal_rkey[static_cast<std::size_t>(setup_.ports.there(paths_.on))];
  wr.wr.atomic.compare_add = work.message.add;
}

void Queue::post() {
  Chain& chain = *setup_.chain;
  if (chain.count == 0) return;
  ibv_send_wr& last = chain.requests[chain.count - 1];
  // In the middle of something large: slots come back by completions only.
  if (unmarked_ != 0) mark(last, posting_, false);
  last.next = nullptr;
  chain.count = 0;
  ibv_send_wr* bad = nullptr;
  const int error = ibv_post_send(path().pair->qp(), chain.requests.data(), &bad);
  if (error == 0) return;
  TP_WARN("%s: posting a work request fails: %s (errno %d); see dmesg of this host",
          setup_.name.c_str(), std::strerror(error), error);
  if (may_move()) return stop();
  fail(Status::system);
}

void Queue::on_completion(const ibv_wc& wc) {
  if (dead()) return;
  ++completions_;
  if (WorkRequestId::is(wc, WorkRequestId::kLastSend)) {
    phase_ = Phase::drained;
    return;
  }
  const bool path_failed = wc.status != IBV_WC_SUCCESS &&
                           (stopped() || blame_.blamed(wc.status, work_.first(), now_ns()));
  if (path_failed && (stopped() || may_move())) {  // the other path begins with nothing under way
    if (!stopped())
      TP_INFO(net, "%s: a transfer ends in error: status %d, vendor error 0x%x; %s",
              setup_.name.c_str(), static_cast<int>(wc.status), wc.vendor_err,
              completion_hint(wc.status));
    return stop();
  }
  if (WorkRequestId::is(wc, WorkRequestId::kProbe)) {
    if (!probe_.answered(wc, setup_.name)) fail(Status::remote);
    return;
  }
  if (wc.status != IBV_WC_SUCCESS) {
    TP_WARN("%s: a transfer ends in error: status %d, vendor error 0x%x; %s", setup_.name.c_str(),
            static_cast<int>(wc.status), wc.vendor_err, completion_hint(wc.status));
    return fail(Status::remote);
  }
  if (first_mark_ == next_mark_) return;
  const Mark& done = marks_[first_mark_++ % marks_.size()];
  in_flight_ -= done.requests;
  if (done.last) work_[done.item].arrived = true;
}

// A flush is asked for when all before it is done, so that it pushes what that has brought.
// `visible`: all that has come is.
void Queue::tell(bool visible) {
  while (work_.first() != posted_) {
    Item& item = work_.front();
    if (!item.arrived) return;
    if (item.work.flushes && setup_.flush != nullptr && !visible) {
      if (item.ticket == 0 && setup_.flush->needed()) item.ticket = setup_.flush->request();
      if (item.ticket > setup_.flush->done()) return;
    }
    item.work.request->state = Status::ok;
    signals_done_ += item.work.signals ? 1 : 0;
    work_.pop();
  }
}

void Queue::fail(Status why) {
  if (failure_ != Status::ok) return;
  failure_ = why;
  // Partner: the acquire in Context::failed().
  setup_.failed->store(true, std::memory_order_release);
  setup_.chain->count = 0;
  for (const QueuePath& each : paths_.both)
    if (each.pair != nullptr) each.pair->stop();
  if (paths_.next != nullptr) paths_.next->stop();
  while (!work_.empty()) {
    work_.front().work.request->state = why;
    work_.pop();
  }
}

void Queue::ask() {
  if (works()) probe_.ask(path().pair->qp(), id(WorkRequestId::kProbe), path().probed);
}

}  // namespace twinpath::gda::rma
