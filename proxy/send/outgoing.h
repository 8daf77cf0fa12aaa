#pragma once
// One message on its way out, and the work requests that carry it.
#include <arpa/inet.h>

#include <array>
#include <cstddef>
#include <cstdint>

#include "plugin/base/counters.h"
#include "plugin/base/sync.h"
#include "plugin/rdma/devices.h"
#include "proxy/queues/depths.h"
#include "proxy/queues/queue_set.h"
#include "proxy/wire/parcel.h"

namespace twinpath {

// A message and the cell that it answers.  The cell stays as it is until the answer is posted.
struct Outgoing {
  const std::uint8_t* data = nullptr;
  const ProxyMemory* memory = nullptr;  // null only with no bytes
  CellView cell;
  CellMeta meta;  // of the cell, as it was validated: the peer could write it again
  std::uint32_t bytes = 0;
  std::uint16_t slot = 0;  // of the request

  // Whether it may go into a parcel.
  bool small() const {
    return bytes <= kParcelBytes && meta.copyable() && !meta.no_completion() &&
           (bytes == 0 || memory->type == MemoryType::host);
  }
};

// What the work requests of one queue have in common.
struct Lane {
  ibv_qp* qp = nullptr;
  std::uint8_t rail = 0;
  std::uint8_t remote_rail = 0;
  std::uint8_t cell_key = 0;       // which of a cell's keys is for its remote rail
  std::uint16_t inline_bytes = 0;  // at most kInlineData
  std::uint32_t speed_mbps = 0;
  counters::Rail* counts = nullptr;
  bool shared = false;  // with other connections (SharedPairs)
};

// Builds the writes of messages.  The peer's box takes sizes that no immediate brings.
class WriteMaker {
 public:
  // Messages longer than `split_above` go as a write and, behind it on the same queue, a write of
  // their size with the immediate: switches that route adaptively may spread the first.
  WriteMaker(std::uint64_t remote_box, const std::array<std::uint32_t, kMaxRails>& remote_rkeys,
             std::size_t split_above)
      : remote_box_(remote_box), remote_rkeys_(remote_rkeys), split_above_(split_above) {}

  struct Piece {
    std::uint64_t offset = 0;
    std::uint32_t bytes = 0;
    std::uint32_t chunks = 1;  // of the message
    bool in_order = false;
  };
  static Piece whole(const Outgoing& m) { return {0, m.bytes, 1, false}; }

  std::size_t split_above() const { return split_above_; }
  bool splits(std::size_t bytes) const { return bytes > split_above_; }
  // How many work requests a piece takes: 1 or 2.
  int count(const Outgoing& m, const Piece& piece, const Lane& lane) const {
    return piece.bytes > split_above_ && !piece.in_order && !m.meta.no_completion() &&
                   lane.inline_bytes >= sizeof(std::uint32_t)
               ? 2
               : 1;
  }
  // What is this message's own in a write whose next, list and opcode stand.
  static void fill(const Outgoing& m, const Piece& piece, const Lane& lane, ibv_send_wr& wr,
                   ibv_sge& sge) {
    wr.send_flags = 0;
    wr.num_sge = 1;
    if (piece.bytes > 0) [[likely]] {
      sge.addr = reinterpret_cast<std::uintptr_t>(m.data) + piece.offset;
      sge.length = piece.bytes;
      sge.lkey = m.memory->lkey(lane.rail);
      // The CPU reads inline data, so CUDA memory cannot be.
      if (piece.bytes <= lane.inline_bytes && m.memory->type == MemoryType::host)
        wr.send_flags = IBV_SEND_INLINE;
    } else {
      wr.num_sge = 0;
    }
    wr.wr.rdma.remote_addr = m.cell.address() + piece.offset;
    wr.wr.rdma.rkey = m.cell.rkey(lane.cell_key);
  }
  // Fills wr[0 .. count) and sge[0 .. count), linked with each other, without wr_id and signal.
  // Returns the last.  `size` must live until they are posted.
  ibv_send_wr* write(const Outgoing& m, const Piece& piece, const Lane& lane, int count,
                     ibv_send_wr* wr, ibv_sge* sge, std::uint32_t& size) const {
    fill(m, piece, lane, wr[0], sge[0]);
    wr[0].next = nullptr;
    wr[0].sg_list = &sge[0];
    if (count == 1) [[likely]] {
      if (m.meta.no_completion()) {
        wr[0].opcode = IBV_WR_RDMA_WRITE;
      } else {
        wr[0].opcode = IBV_WR_RDMA_WRITE_WITH_IMM;
        wr[0].imm_data = htonl(message_immediate(m.meta.receive(), piece.chunks, piece.in_order));
      }
      return &wr[0];
    }
    wr[0].opcode = IBV_WR_RDMA_WRITE;
    wr[0].next = &wr[1];
    announce(m, piece, lane, wr[1], sge[1], size);
    return &wr[1];
  }
  // What is its own in the write of a parcel whose next, list and opcode stand; not signalled.
  TP_ALWAYS_INLINE void fill_parcel(const std::uint8_t* data, std::uint32_t bytes,
                                    std::uint32_t lkey, const ParcelImmediate& parcel,
                                    const Lane& lane, ibv_send_wr& wr, ibv_sge& sge) const {
    sge.addr = reinterpret_cast<std::uintptr_t>(data);
    sge.length = bytes;
    sge.lkey = lkey;
    wr.num_sge = 1;
    wr.send_flags = 0;
    wr.imm_data = htonl(encode(parcel));
    wr.wr.rdma.remote_addr = remote_box_ + place_offset(parcel.number);
    wr.wr.rdma.rkey = box_rkey(lane);
  }
  std::uint64_t remote_box() const { return remote_box_; }
  std::uint32_t box_rkey(const Lane& lane) const { return remote_rkeys_[lane.remote_rail]; }

 private:
  // RC places the messages of a queue in order and completes receives in order (IB spec vol. 1,
  // 9.7 and o9-20), so the data are there when the receiver sees this one's immediate.
  void announce(const Outgoing& m, const Piece& piece, const Lane& lane, ibv_send_wr& wr,
                ibv_sge& sge, std::uint32_t& size) const {
    size = m.bytes;  // of the whole message: pieces on other queues say the same
    sge.addr = reinterpret_cast<std::uintptr_t>(&size);
    sge.length = sizeof size;
    sge.lkey = 0;
    wr.next = nullptr;
    wr.sg_list = &sge;
    wr.num_sge = 1;
    wr.opcode = IBV_WR_RDMA_WRITE_WITH_IMM;
    wr.send_flags = IBV_SEND_INLINE;
    wr.imm_data = htonl(message_immediate(m.meta.receive(), piece.chunks, false, true));
    wr.wr.rdma.remote_addr = remote_box_ + size_offset(m.meta.slot(), m.meta.sub());
    wr.wr.rdma.rkey = box_rkey(lane);
  }

  const std::uint64_t remote_box_;
  const std::array<std::uint32_t, kMaxRails> remote_rkeys_;
  const std::size_t split_above_;
};

}  // namespace twinpath
