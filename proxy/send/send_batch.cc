#include "proxy/send/send_batch.h"

#include <arpa/inet.h>

#include <bit>
#include <cstring>

namespace twinpath {
namespace {

// Puts the message into the parcel; where the next one's bytes go.
std::uint8_t* lay(const Outgoing& m, std::uint8_t* entry, std::uint8_t* to) {
  const std::uint32_t bits = encode(ParcelEntry{m.meta.receive(), m.bytes});
  std::memcpy(entry, &bits, sizeof bits);
  if (m.bytes > 0) std::memcpy(to, m.data, m.bytes);
  return to + padded(m.bytes);
}

}  // namespace

int SendBatch::post(const Lane& lane, const WriteMaker& maker, const Parcel& parcel,
                    std::uint64_t wr_id) {
  constexpr std::size_t kMost = 2 * kSendBatch + 1;
  std::array<ibv_send_wr, kMost> wrs;
  std::array<ibv_sge, kMost> sges;
  std::array<std::uint32_t, kSendBatch> sizes;
  std::size_t n = 0;
  const auto link = [&](ibv_send_wr& wr) {
    if (n > 0) wrs[n - 1].next = &wr;
  };
  const auto messages = static_cast<std::size_t>(count_);
  const std::uint32_t in_parcel = parcel.data != nullptr ? small_ : 0;
  const auto small = static_cast<std::size_t>(std::popcount(in_parcel));
  std::uint8_t* entry = parcel.data;
  std::uint8_t* to = parcel.data + parcel_data_at(small);
  for (std::size_t i = 0; i < messages; ++i) {
    const Outgoing& m = messages_[i];
    if ((in_parcel >> i & 1) != 0) {
      to = lay(m, entry, to);
      entry += sizeof(std::uint32_t);
      continue;
    }
    const WriteMaker::Piece piece = WriteMaker::whole(m);
    const int count = maker.count(m, piece, lane);
    link(wrs[n]);
    ibv_send_wr* last = maker.write(m, piece, lane, count, &wrs[n], &sges[n], sizes[i]);
    for (ibv_send_wr* wr = &wrs[n]; wr <= last; ++wr) wr->wr_id = wr_id;
    n += static_cast<std::size_t>(count);
  }
  if (parcel.data != nullptr) {
    ibv_send_wr& wr = wrs[n];
    link(wr);
    ibv_sge& sge = sges[n++];
    sge.addr = reinterpret_cast<std::uintptr_t>(parcel.data);
    sge.length = static_cast<std::uint32_t>(to - parcel.data);
    sge.lkey = parcel.lkey;
    wr.next = nullptr;
    wr.sg_list = &sge;
    wr.num_sge = 1;
    wr.send_flags = 0;
    wr.opcode = IBV_WR_RDMA_WRITE_WITH_IMM;
    wr.imm_data = htonl(encode(ParcelImmediate{parcel.number, static_cast<std::uint8_t>(small)}));
    wr.wr.rdma.remote_addr = maker.remote_box() + place_offset(parcel.number);
    wr.wr.rdma.rkey = maker.box_rkey(lane);
  }
  // RC completes in order, so the last one speaks for all.
  wrs[n - 1].send_flags |= IBV_SEND_SIGNALED;
  wrs[n - 1].wr_id = wr_id;
  count_ = 0;
  small_ = 0;
  bytes_ = 0;
  ibv_send_wr* bad = nullptr;
  return ibv_post_send(lane.qp, wrs.data(), &bad);
}

}  // namespace twinpath
