// See rma_inbox.h.
#include "gda/rma/rma_inbox.h"

#include <cstring>

#include "plugin/base/log.h"

namespace twinpath::gda::rma {

Result<std::unique_ptr<Inbox>> Inbox::make(Team& team, std::size_t queues, const Memory& memory,
                                           GpuFlush* flush) {
  std::unique_ptr<Inbox> made(new Inbox(team, queues, memory, flush));
  TP_TRY(made->adder_.reach_gpu(
      team, team.words,
      {reinterpret_cast<std::uint64_t*>(made->receive(queues, 0)), memory.lkeys[0]}));
  return made;
}

Status Inbox::listen(std::size_t queue, int port, ibv_qp* qp) {
  rows_[queue].qp = qp;
  rows_[queue].port = port;
  if (flush_ != nullptr) flush_->comes_over(port);
  return prepare(queue, port, qp);
}

Status Inbox::prepare(std::size_t queue, int port, ibv_qp* qp) const {
  for (std::uint32_t slot = 0; slot < slots_; ++slot) {
    if (const int error = post(queue, slot, port, qp); error != 0) {
      TP_WARN("posting receives for signals fails: %s (errno %d); see dmesg of this host",
              std::strerror(error), error);
      return Status::system;
    }
  }
  return Status::ok;
}

int Inbox::post(std::size_t queue, std::uint32_t slot, int port, ibv_qp* qp) const {
  ibv_sge sge{reinterpret_cast<std::uintptr_t>(receive(queue, slot)), SignalMessage::kBytes,
              lkeys_[static_cast<std::size_t>(port)]};
  ibv_recv_wr wr{};
  wr.wr_id = WorkRequestId::of(queue, WorkRequestId::kSlots + slot);
  wr.sg_list = &sge;
  wr.num_sge = 1;
  ibv_recv_wr* bad = nullptr;
  return ibv_post_recv(qp, &wr, &bad);
}

bool Inbox::ask_for_last(std::size_t queue) {
  ibv_recv_wr wr{};
  wr.wr_id = WorkRequestId::of(queue, WorkRequestId::kLastReceive);
  ibv_recv_wr* bad = nullptr;
  return ibv_post_recv(rows_[queue].qp, &wr, &bad) == 0;
}

void Inbox::move(std::size_t queue, int port, ibv_qp* qp) {
  Row& row = rows_[queue];
  if (flush_ != nullptr) flush_->moves(row.port, port);
  row.qp = qp;
  row.port = port;
  ++row.generation;
}

bool Inbox::on_receive(const ibv_wc& wc, const std::string& from) {
  const std::size_t queue = WorkRequestId::pair(wc);
  const auto slot = static_cast<std::uint32_t>(WorkRequestId::slot(wc));
  // Flushed receives: the sender, or this end's own work, tells what went wrong.
  if (wc.status != IBV_WC_SUCCESS || queue >= rows_.size() || slot >= slots_) return true;
  ++rows_[queue].taken;
  const auto message = SignalMessage::decode(receive(queue, slot));
  KeyedMemory window;
  const bool known = wc.byte_len == SignalMessage::kBytes && team_.find(message.window, window);
  if (!known || window.bytes < sizeof(std::uint64_t) ||
      message.offset > window.bytes - sizeof(std::uint64_t) ||
      (window.address + message.offset) % sizeof(std::uint64_t) != 0) {
    TP_WARN("%s: a signal came for offset %llu of window %u, where there is no word of this rank%s",
            from.c_str(), static_cast<unsigned long long>(message.offset), message.window,
            known ? "" : ": the window is not registered (any more)");
    return false;
  }
  adder_.add({.address = window.address + message.offset,
              .add = message.add,
              .gpu = window.gpu,
              .rkeys = {window.fabric_key, window.second_key},
              .never_reset = window.never_reset},
             {static_cast<std::uint32_t>(queue), slot, rows_[queue].generation});
  return true;
}

void Inbox::added(const WordAdder::Receipt& receipt) {
  if (receipt.generation != rows_[receipt.queue].generation) return;  // of one that was left
  // An error is the queue pair's end, which its work reports.
  (void)post(receipt.queue, receipt.slot);
}

}  // namespace twinpath::gda::rma
