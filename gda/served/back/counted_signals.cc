// See counted_signals.h.
#include "gda/served/back/counted_signals.h"

#include <endian.h>

#include <array>
#include <atomic>
#include <cstring>

#include "plugin/base/log.h"

namespace twinpath::gda {

std::uint32_t CountedSender::fill(ibv_send_wr& wr, const Operation& operation, std::uint32_t rkey,
                                  std::uint8_t* data) {
  const CountedEntry entry{operation.add, operation.offset, operation.window};
  wr.opcode = IBV_WR_RDMA_WRITE_WITH_IMM;
  wr.wr.rdma.remote_addr = target_.row + sent_++ % target_.entries * sizeof entry;
  wr.wr.rdma.rkey = rkey;
  std::memcpy(data, &entry, sizeof entry);
  const std::uint64_t at = operation.remote - target_.signals;
  const bool in_table = operation.remote >= target_.signals && at < target_.signals_bytes;
  wr.imm_data = htobe32(in_table ? static_cast<std::uint32_t>(at / sizeof entry.add)
                                 : CountedEntry::kInWindow);
  return in_table ? sizeof entry.add : sizeof entry;
}

CountedInbox::CountedInbox(const Memory& memory, GpuFlush* flush)
    : memory_(memory),
      flush_(flush),
      rows_(memory.pairs),
      adder_(*this, flush, memory.pairs * kReceives) {}

Status CountedInbox::listen(std::size_t pair, int port, ibv_qp* qp) {
  rows_[pair].qp = qp;
  rows_[pair].port = port;
  if (flush_ != nullptr) flush_->comes_over(port);
  return prepare(pair, qp, kReceives);
}

Status CountedInbox::prepare(std::size_t pair, ibv_qp* qp, int receives) {
  const int error = post(qp, pair, receives);
  if (error == 0) return Status::ok;
  TP_WARN("posting receives for signals fails: %s (errno %d); see dmesg of this host",
          std::strerror(error), error);
  return Status::system;
}

bool CountedInbox::stop(std::size_t pair) {
  ibv_recv_wr wr{};
  wr.wr_id = WorkRequestId::of(pair, WorkRequestId::kLastReceive);
  ibv_recv_wr* bad = nullptr;
  return ibv_post_recv(rows_[pair].qp, &wr, &bad) == 0;
}

void CountedInbox::move(std::size_t pair, int port, ibv_qp* qp) {
  Row& row = rows_[pair];
  if (flush_ != nullptr) flush_->moves(row.port, port);
  row.port = port;
  row.qp = qp;
  row.owed = 0;
  ++row.generation;
}

int CountedInbox::post(ibv_qp* qp, std::size_t pair, int count) {
  std::array<ibv_recv_wr, kReceives + 1> requests{};
  for (int i = 0; i < count; ++i) {
    ibv_recv_wr& wr = requests[static_cast<std::size_t>(i)];
    wr.wr_id = WorkRequestId::of(pair, WorkRequestId::kReceive);
    wr.next = i + 1 < count ? &requests[static_cast<std::size_t>(i) + 1] : nullptr;
  }
  ibv_recv_wr* bad = nullptr;
  return ibv_post_recv(qp, requests.data(), &bad);
}

void CountedInbox::on_receive(const ibv_wc& wc) {
  const std::size_t pair = WorkRequestId::pair(wc);
  // Flushed receives: the sender, or this end's own sends, tell what went wrong.
  if (wc.status != IBV_WC_SUCCESS || pair >= rows_.size()) return;
  Row& row = rows_[pair];
  const std::uint32_t index = be32toh(wc.imm_data);
  CountedEntry& entry = memory_.entries[pair * memory_.row + row.taken++ % memory_.row];
  GpuWords::Word word;
  // Partner: the adapter's write, which comes before the completion.
  word.add = std::atomic_ref<std::uint64_t>(entry.add).load(std::memory_order_acquire);
  if (index < memory_.signals)
    word.address = reinterpret_cast<std::uintptr_t>(memory_.table + index);
  else if (index != CountedEntry::kInWindow || !find(entry, word))
    return give_back(pair);
  adder_.add(word, {static_cast<std::uint32_t>(pair), 0, row.generation});
}

bool CountedInbox::find(const CountedEntry& entry, GpuWords::Word& word) const {
  Located at;
  const auto window = static_cast<std::uint32_t>(entry.window);
  const bool known = memory_.windows->remote(window, memory_.rank, entry.offset, sizeof word.add,
                                             kRemoteAtomic, at);
  if (!known || at.address % sizeof word.add != 0) {
    TP_WARN("rank %d: a signal came for offset %llu of window 0x%x, where there is %s",
            memory_.rank, static_cast<unsigned long long>(entry.offset), window,
            known ? "no aligned word" : "nothing registered (any more)");
    return false;
  }
  word.address = at.address;
  word.gpu = at.gpu;
  word.rkeys = {at.fabric_key, at.second_key};
  word.never_reset = at.never_reset;
  return true;
}

void CountedInbox::added(const WordAdder::Receipt& receipt) {
  // Not of a queue pair that was left.
  if (receipt.generation == rows_[receipt.queue].generation) give_back(receipt.queue);
}

void CountedInbox::give_back(std::size_t pair) {
  Row& row = rows_[pair];
  if (++row.owed < kRefill) return;
  // An error is the queue pair's end, which its sends report.
  if (post(row.qp, pair, row.owed) == 0) row.owed = 0;
}

}  // namespace twinpath::gda
