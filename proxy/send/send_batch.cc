#include "proxy/send/send_batch.h"

#include <arpa/inet.h>

#include <algorithm>

#include "proxy/queues/depths.h"
#include "proxy/wire/parcel.h"

namespace twinpath {

ibv_send_wr data_write(const Outgoing& message, const Queue& queue, std::size_t offset,
                       std::size_t bytes, std::uint32_t immediate, ibv_sge& sge) {
  ibv_send_wr wr{};
  if (bytes > 0) {
    sge.addr = reinterpret_cast<std::uintptr_t>(message.data) + offset;
    sge.length = static_cast<std::uint32_t>(bytes);
    sge.lkey = message.memory->lkey(queue.rail);
    wr.sg_list = &sge;
    wr.num_sge = 1;
    // The CPU reads inline data, so CUDA memory cannot be.
    if (bytes <= std::min<std::size_t>(queue.inline_bytes, kInlineData) &&
        message.memory->type == MemoryType::host)
      wr.send_flags |= IBV_SEND_INLINE;
  }
  wr.wr_id = message.wr_id;
  if (message.cts.no_completion) {
    wr.opcode = IBV_WR_RDMA_WRITE;
  } else {
    wr.opcode = IBV_WR_RDMA_WRITE_WITH_IMM;
    wr.imm_data = htonl(immediate);
  }
  wr.wr.rdma.remote_addr = message.cts.address + offset;
  wr.wr.rdma.rkey = message.cts.rkeys[static_cast<std::size_t>(queue.remote_rail)];
  return wr;
}

struct SendBatch::Chain {
  std::array<ibv_send_wr, kSendBatch> wrs;
  std::array<ibv_sge, kSendBatch> sges;
  std::size_t count = 0;
  void link(const ibv_send_wr& wr) {
    wrs[count] = wr;
    if (count > 0) wrs[count - 1].next = &wrs[count];
    ++count;
  }
};

void SendBatch::add(int queue, const Outgoing& message) {
  queue_ = queue;
  messages_[static_cast<std::size_t>(count_++)] = message;
}

bool SendBatch::fits_parcel(const Outgoing& m) {
  return m.bytes <= static_cast<std::size_t>(kParcelBytes) && m.cts.copyable &&
         !m.cts.no_completion && (m.bytes == 0 || m.memory->type == MemoryType::host);
}

void SendBatch::write_alone(const Outgoing& m, const Queue& queue, Chain& chain) {
  const Immediate imm{m.cts.slot, m.cts.sub, m.cts.generation, 1};
  chain.link(data_write(m, queue, 0, m.bytes, encode(imm), chain.sges[chain.count]));
}

void SendBatch::write_parcel(const Outgoing* const* messages, int n, const Queue& queue,
                             Chain& chain) {
  const std::uint32_t first = cts_place(messages[0]->seq);
  std::uint8_t* box = memory_.data() + layout_.ring_bytes();
  ParcelImmediate imm{static_cast<std::uint8_t>(first), 0};
  for (int i = 0; i < n; ++i) {
    const Outgoing& m = *messages[i];
    // The place's former write is acknowledged, or its cell would not be new.  Should that
    // acknowledgement be lost, the adapter sends these bytes instead; a receiver drops them as a
    // duplicate (IB spec C9-105).
    ParcelPlace* place = parcel_place(box, cts_place(m.seq));
    place->bytes = static_cast<std::uint32_t>(m.bytes);
    place->gen = cts_gen(m.seq);
    if (m.bytes > 0) std::memcpy(place->data, m.data, m.bytes);
    imm.present = static_cast<std::uint16_t>(imm.present | 1u << (m.seq - messages[0]->seq));
  }
  const Outgoing& last = *messages[n - 1];
  const std::size_t span = static_cast<std::size_t>(last.seq - messages[0]->seq);
  ibv_sge& sge = chain.sges[chain.count];
  sge.addr = memory_.address() + layout_.ring_bytes() + sizeof(ParcelPlace) * first;
  sge.length = static_cast<std::uint32_t>(sizeof(ParcelPlace) * span + offsetof(ParcelPlace, data) +
                                          last.bytes);
  sge.lkey = memory_.lkey(queue.rail);
  ibv_send_wr wr{};
  wr.wr_id = last.wr_id;
  wr.sg_list = &sge;
  wr.num_sge = 1;
  if (sge.length <= queue.inline_bytes) wr.send_flags |= IBV_SEND_INLINE;
  wr.opcode = IBV_WR_RDMA_WRITE_WITH_IMM;
  wr.imm_data = htonl(encode(imm));
  wr.wr.rdma.remote_addr = remote_box_ + sizeof(ParcelPlace) * first;
  wr.wr.rdma.rkey = remote_rkeys_[static_cast<std::size_t>(queue.remote_rail)];
  chain.link(wr);
}

int SendBatch::post(Queue& queue) {
  if (count_ == 0) return 0;
  Chain chain;
  std::array<const Outgoing*, kSendBatch> small;
  int smalls = 0;
  for (int i = 0; i < count_; ++i) {
    const Outgoing& m = messages_[static_cast<std::size_t>(i)];
    if (!fits_parcel(m)) {
      write_alone(m, queue, chain);
      continue;
    }
    // Tags may be answered in any order; parcels want the order of cells.  A few elements.
    int at = smalls++;
    for (; at > 0 && small[static_cast<std::size_t>(at - 1)]->seq > m.seq; --at)
      small[static_cast<std::size_t>(at)] = small[static_cast<std::size_t>(at - 1)];
    small[static_cast<std::size_t>(at)] = &m;
  }
  for (int i = 0; i < smalls;) {
    const Outgoing* const* run = small.data() + i;
    int n = 1;
    while (i + n < smalls && run[n]->seq < run[0]->seq + kParcelSpan &&
           cts_place(run[n]->seq) > cts_place(run[0]->seq))
      ++n;
    if (n == 1)
      write_alone(*run[0], queue, chain);
    else
      write_parcel(run, n, queue, chain);
    i += n;
  }
  // RC completes in order, so the last one speaks for all.
  ibv_send_wr& last = chain.wrs[chain.count - 1];
  last.send_flags |= IBV_SEND_SIGNALED;
  last.wr_id = messages_[static_cast<std::size_t>(count_ - 1)].wr_id;
  count_ = 0;
  ibv_send_wr* bad = nullptr;
  return ibv_post_send(queue.qp.get(), chain.wrs.data(), &bad);
}

}  // namespace twinpath
