// The outgoing ring of a QP: reserve, fill, publish.
#include <cstring>

#include "plugin/fabric/soft/objects.h"

namespace twinpath::soft {

PacketHeader* reserve_packet(SoftQp& qp, std::uint32_t payload) {
  const std::uint32_t bytes = (std::uint32_t{sizeof(PacketHeader)} + payload + 15u) & ~15u;
  std::uint64_t at = qp.link.mine->produced.load(std::memory_order_relaxed);
  std::uint64_t room = kRingBytes - (at - qp.link.theirs->consumed.load(std::memory_order_acquire));
  std::uint32_t offset = static_cast<std::uint32_t>(at % kRingBytes);
  if (offset + bytes > kRingBytes) {
    // A packet lies in one piece: fill the ring's end with a pad and start over.
    std::uint32_t pad = kRingBytes - offset;
    if (room < pad + bytes) return nullptr;
    auto* p = reinterpret_cast<PacketHeader*>(qp.link.out_ring + offset);
    p->bytes = pad;
    p->op = PacketOp::pad;  // 16 bytes at least are there: all sizes are multiples of 16
    qp.link.mine->produced.store(at + pad, std::memory_order_release);
    offset = 0;
  } else if (room < bytes) {
    return nullptr;
  }
  auto* p = reinterpret_cast<PacketHeader*>(qp.link.out_ring + offset);
  std::memset(p, 0, sizeof *p);
  p->bytes = bytes;
  return p;
}

void publish_packet(SoftQp& qp, PacketHeader* p) {
  // Pairs with the acquire in respond(): the bytes are there before the count says so.
  qp.link.mine->produced.store(qp.link.mine->produced.load(std::memory_order_relaxed) + p->bytes,
                               std::memory_order_release);
}

}  // namespace twinpath::soft
