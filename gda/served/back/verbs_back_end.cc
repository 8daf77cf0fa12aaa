// See verbs_back_end.h.
#include "gda/served/back/verbs_back_end.h"

#include <algorithm>
#include <cstring>

#include "plugin/base/log.h"
#include "plugin/rdma/completion_text.h"

namespace twinpath::gda {

VerbsBackEnd::VerbsBackEnd(const VerbsBackEndSetup& setup)
    : setup_(setup),
      chain_(setup.slots),
      kept_(setup.kept),
      paths_{{setup.first, setup.second}, 0, setup.kept != 0, nullptr} {
  if (setup.counted) counted_.emplace(*setup.counted);
}

Issued VerbsBackEnd::issue(std::uint64_t index, const Operation& operation) {
  if (dead()) return Issued::failed;
  if (phase_ != Phase::serving) return Issued::full;
  if (!kept_.empty()) kept_[index & (kept_.size() - 1)] = operation;
  const Issued sent = send(index, operation);
  if (sent == Issued::accepted) issued_.store(index + 1, std::memory_order_release);
  return sent;
}

Issued VerbsBackEnd::send(std::uint64_t index, const Operation& operation) {
  if (operation.kind == OperationKind::nop || operation.kind == OperationKind::dump) {
    nothing(index);
    return Issued::accepted;
  }
  std::uint64_t offset = partial_index_ == index ? partial_offset_ : 0;
  for (;;) {
    if (!chain_.has_room()) {
      partial_index_ = index;
      partial_offset_ = offset;
      post();  // nobody else will, when nothing of this scan is accepted
      return dead() ? Issued::failed : Issued::full;
    }
    const auto piece = static_cast<std::uint32_t>(
        std::min<std::uint64_t>(operation.bytes - offset, setup_.max_bytes));
    const bool last = offset + piece == operation.bytes;
    add(index, operation, offset, piece, last);
    if (dead()) return Issued::failed;
    if (stopped()) return Issued::full;
    if (last) break;
    offset += piece;
  }
  partial_offset_ = 0;
  return Issued::accepted;
}

// Done with whatever comes before it.
void VerbsBackEnd::nothing(std::uint64_t index) {
  if (!chain_.idle())
    chain_.extend(index + 1);
  else if (held_.done == 0)
    finish(index + 1);
  else
    (later_.done != 0 ? later_ : held_).done = index + 1;
}

void VerbsBackEnd::add(std::uint64_t index, const Operation& operation, std::uint64_t offset,
                       std::uint32_t bytes, bool last) {
  const SendChain::Place place = chain_.place();
  place.request.wr_id = WorkRequestId::of(setup_.tag, index);
  fill(place.request, place.sge, operation, offset, bytes);
  if (!chain_.add(index, last ? index + 1 : index, operation.kind == OperationKind::read)) post();
}

void VerbsBackEnd::fill(ibv_send_wr& wr, ibv_sge& sge, const Operation& operation,
                        std::uint64_t offset, std::uint32_t bytes) {
  std::uint8_t* scratch = setup_.scratch + chain_.slot() * kScratchSlot;
  const auto scratch_address = std::uint64_t{reinterpret_cast<std::uintptr_t>(scratch)};
  sge = {operation.local + offset, bytes, operation.lkey_at(setup_.ports.here(on()))};
  wr.sg_list = &sge;
  wr.num_sge = bytes != 0 ? 1 : 0;
  wr.wr.rdma.remote_addr = operation.remote + offset;
  const std::uint32_t rkey = operation.rkey_at(setup_.ports.there(on()));
  wr.wr.rdma.rkey = rkey;
  switch (operation.kind) {
    case OperationKind::read:
      wr.opcode = IBV_WR_RDMA_READ;
      return;
    case OperationKind::fetch_add:
      if (counted_) {
        sge = {scratch_address, counted_->fill(wr, operation, path().rkey, scratch),
               path().scratch_lkey};
        return;
      }
      wr.opcode = IBV_WR_ATOMIC_FETCH_AND_ADD;
      wr.wr.atomic.remote_addr = operation.remote;
      wr.wr.atomic.rkey = rkey;
      wr.wr.atomic.compare_add = operation.add;
      // Not the kernel's sink: all queues would write old values to that one word.
      sge = {scratch_address, sizeof(std::uint64_t), path().scratch_lkey};
      return;
    case OperationKind::write_inline:
      std::memcpy(scratch, operation.inline_data.data(), bytes);
      sge = {scratch_address, bytes, path().scratch_lkey};
      if (setup_.post_inline && bytes <= path().pair->inline_bytes())
        wr.send_flags |= IBV_SEND_INLINE;
      wr.opcode = IBV_WR_RDMA_WRITE;
      return;
    case OperationKind::write:
    case OperationKind::nop:
    case OperationKind::dump:
      wr.opcode = IBV_WR_RDMA_WRITE;
      return;
  }
}

void VerbsBackEnd::flush() { post(); }

void VerbsBackEnd::post() {
  if (chain_.empty() || stopped()) return;
  ibv_send_wr* bad = nullptr;
  const int error = ibv_post_send(path().pair->qp(), chain_.close(), &bad);
  if (error == 0) return;
  TP_WARN("%s: posting a work request fails: %s (errno %d); see dmesg of this host",
          setup_.name.c_str(), std::strerror(error), error);
  if (may_move()) return stop();
  const std::uint64_t index = bad != nullptr ? WorkRequestId::number(bad->wr_id) : chain_.last();
  unreachable_ = true;
  die(index, Syndrome::local_qp_operation);
}

void VerbsBackEnd::on_completion(const ibv_wc& wc) {
  if (dead()) return;
  const std::uint64_t index = WorkRequestId::number(wc.wr_id);
  if (index == WorkRequestId::kLastSend) {
    phase_ = Phase::drained;
    return;
  }
  const bool path_failed =
      wc.status != IBV_WC_SUCCESS && (stopped() || blame_.blamed(wc.status, finished(), now_ns()));
  if (path_failed && may_move()) {  // the other path begins with nothing under way
    if (!stopped())
      TP_INFO(net, "%s: work request %llu ends in error: status %d, vendor error 0x%x; %s",
              setup_.name.c_str(), static_cast<unsigned long long>(index),
              static_cast<int>(wc.status), wc.vendor_err, completion_hint(wc.status));
    return stop();
  }
  if (index == WorkRequestId::kProbe) {
    if (probe_.answered(wc, setup_.name)) return;
    unreachable_ = true;
    return fail_all(syndrome_of(wc.status));
  }
  if (wc.status != IBV_WC_SUCCESS) {
    TP_WARN("%s: work request %llu ends in error: status %d, vendor error 0x%x; %s",
            setup_.name.c_str(), static_cast<unsigned long long>(index),
            static_cast<int>(wc.status), wc.vendor_err, completion_hint(wc.status));
    unreachable_ = path_failed;
    // Everything before it has succeeded; but what is held is not visible yet.
    if (held_.done == 0) finish(index);
    die(held_.done == 0 ? index : finished_.load(std::memory_order_relaxed),
        syndrome_of(wc.status));
    return;
  }
  if (const auto done = chain_.retire()) arrived(*done);
}

void VerbsBackEnd::arrived(const SendChain::Mark& mark) {
  const bool flush = mark.reads && setup_.flush != nullptr && setup_.flush->needed();
  if (!flush && held_.done == 0) return finish(mark.done);
  Held& into = held_.done == 0 ? held_ : later_;
  into.done = mark.done;
  into.ticket = flush ? setup_.flush->request() : std::max(into.ticket, held_.ticket);
}

void VerbsBackEnd::settle() {
  while (held_.done != 0 && held_.ticket <= setup_.flush->done()) {
    finish(held_.done);
    held_ = later_;
    later_ = {};
  }
}

void VerbsBackEnd::ask() {
  if (!dead() && !stopped())
    probe_.ask(path().pair->qp(), WorkRequestId::of(setup_.tag, WorkRequestId::kProbe),
               {setup_.probed, path().rkey});
}

void VerbsBackEnd::finish(std::uint64_t done) {
  const std::uint64_t before = finished_.load(std::memory_order_relaxed);
  if (done <= before) return;
  if (!kept_.empty())
    for (std::uint64_t i = before; i != done; ++i) signals_done_ += kept(i).is_signal() ? 1 : 0;
  finished_.store(done, std::memory_order_release);
  queue_->complete(done - 1);
}

void VerbsBackEnd::fail_all(Syndrome syndrome) {
  if (dead()) return;
  die(finished_.load(std::memory_order_relaxed), syndrome);
}

void VerbsBackEnd::die(std::uint64_t index, Syndrome syndrome) {
  dead_.store(true, std::memory_order_release);
  chain_.forget();
  held_ = later_ = {};
  for (const VerbsPath& path : paths_.both)
    if (path.pair != nullptr) path.pair->stop();
  if (paths_.next != nullptr) paths_.next->stop();
  queue_->fail(index, syndrome);
}

}  // namespace twinpath::gda
