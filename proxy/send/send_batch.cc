#include "proxy/send/send_batch.h"

#include <bit>
#include <cstring>

namespace twinpath {

void SendBatch::add_whole(Chain& chain, std::uint32_t which, const Lane& lane,
                          const WriteMaker& maker, std::uint64_t wr_id) const {
  for (; which != 0; which &= which - 1) {
    const auto i = static_cast<std::size_t>(std::countr_zero(which));
    const Outgoing& m = messages_[i];
    const WriteMaker::Piece piece = WriteMaker::whole(m);
    const int count = maker.count(m, piece, lane);
    ibv_send_wr* const first = &chain.wrs[chain.count];
    chain.link(*first);
    ibv_send_wr* last =
        maker.write(m, piece, lane, count, first, &chain.sges[chain.count], chain.sizes[i]);
    for (ibv_send_wr* wr = first; wr <= last; ++wr) wr->wr_id = wr_id;
    chain.count += static_cast<std::size_t>(count);
  }
}

bool SendBatch::fills_group() const {
  const std::uint32_t first = messages_[0].meta.bits();
  if (count_ == 1 || messages_[0].meta.group() != count_ || small_ != 0 ||
      messages_[0].meta.no_completion())
    return false;
  constexpr std::uint32_t kSame = (kReceiveBits & ~kSubBits) | kGroupBits | kNoCompletionBit;
  for (int i = 0; i != count_; ++i) {
    const Outgoing& m = messages_[static_cast<std::size_t>(i)];
    if (((m.meta.bits() ^ first) & kSame) != 0 || m.bytes != m.cell.bytes()) return false;
  }
  return true;
}

// RC places the messages of a queue in order and completes receives in order (IB spec vol. 1, 9.7
// and o9-20): when the receiver sees the last one's notice, all are in place.
void SendBatch::add_group(Chain& chain, const Lane& lane, const WriteMaker& maker,
                          std::uint64_t wr_id) const {
  const auto last = static_cast<std::size_t>(count_ - 1);
  for (std::size_t i = 0; i != last; ++i) {
    ibv_send_wr& wr = chain.wrs[i];
    WriteMaker::fill(messages_[i], WriteMaker::whole(messages_[i]), lane, wr, chain.sges[i]);
    wr.wr_id = wr_id;
    wr.next = &chain.wrs[i + 1];
    wr.sg_list = &chain.sges[i];
    wr.opcode = IBV_WR_RDMA_WRITE;
  }
  const Outgoing& m = messages_[last];
  const int count = maker.count(m, WriteMaker::whole(m), lane);
  ibv_send_wr* const notice = maker.write(m, WriteMaker::whole(m), lane, count, &chain.wrs[last],
                                          &chain.sges[last], chain.sizes[last]);
  chain.wrs[last].wr_id = wr_id;
  notice->imm_data |= htonl(kWholeGroupBit);
  chain.count = last + static_cast<std::size_t>(count);
}

int SendBatch::post(const Lane& lane, const WriteMaker& maker, const Parcel& parcel,
                    std::uint64_t wr_id) {
  Chain chain;
  const std::uint32_t in_parcel = parcel.data != nullptr ? small_ : 0;
  if (fills_group())
    add_group(chain, lane, maker, wr_id);
  else if (const std::uint32_t others = ((1u << count_) - 1) & ~in_parcel; others != 0)
    add_whole(chain, others, lane, maker, wr_id);
  if (in_parcel != 0) {
    const auto small = static_cast<std::size_t>(std::popcount(in_parcel));
    std::uint8_t* entry = parcel.data;
    std::uint8_t* to = parcel.data + parcel_data_at(small);
    for (std::uint32_t left = in_parcel; left != 0; left &= left - 1) {
      const Outgoing& m = messages_[static_cast<std::size_t>(std::countr_zero(left))];
      const std::uint32_t bits = encode(ParcelEntry{m.meta.receive(), m.bytes});
      std::memcpy(entry, &bits, sizeof bits);
      entry += sizeof bits;
      lay_message(to, m.data, m.bytes);
      to += padded(m.bytes);
    }
    ibv_send_wr& wr = chain.wrs[chain.count];
    chain.link(wr);
    ibv_sge& sge = chain.sges[chain.count++];
    wr.next = nullptr;
    wr.sg_list = &sge;
    wr.opcode = IBV_WR_RDMA_WRITE_WITH_IMM;
    maker.fill_parcel(parcel.data, static_cast<std::uint32_t>(to - parcel.data), parcel.lkey,
                      {parcel.number, static_cast<std::uint8_t>(small)}, lane, wr, sge);
  }
  // RC completes in order, so the last one speaks for all.
  ibv_send_wr& last = chain.wrs[chain.count - 1];
  last.send_flags |= IBV_SEND_SIGNALED;
  last.wr_id = wr_id;
  count_ = 0;
  small_ = 0;
  bytes_ = 0;
  ibv_send_wr* bad = nullptr;
  return ibv_post_send(lane.qp, chain.wrs.data(), &bad);
}

}  // namespace twinpath
