#pragma once
// Commands for softhca-mlx5-selftest, written by byte, highest and lowest bit of the big-endian
// word that begins there, as the adapter's reference manual has them; the model reads them by a
// table of its own.
#include <cstddef>
#include <cstdint>
#include <vector>

namespace twinpath::softhca {

class Bytes {
 public:
  explicit Bytes(std::size_t size) : bytes_(size) {}

  // Bits [high:low] of the word of 32 bits at `byte`.
  Bytes& put(std::size_t byte, unsigned high, unsigned low, std::uint32_t value) {
    const std::uint32_t mask = (high - low == 31 ? ~0u : (1u << (high - low + 1)) - 1) << low;
    const std::uint32_t word = (word_at(byte) & ~mask) | (value << low & mask);
    for (unsigned i = 0; i < 4; ++i)
      bytes_.at(byte + i) = static_cast<std::uint8_t>(word >> (24 - 8 * i));
    return *this;
  }
  std::uint32_t get(std::size_t byte, unsigned high, unsigned low) const {
    const std::uint32_t word = word_at(byte) >> low;
    return high - low == 31 ? word : word & ((1u << (high - low + 1)) - 1);
  }
  std::uint8_t* data() { return bytes_.data(); }
  std::size_t size() const { return bytes_.size(); }

 private:
  std::uint32_t word_at(std::size_t byte) const {
    std::uint32_t word = 0;
    for (unsigned i = 0; i < 4; ++i) word = word << 8 | bytes_[byte + i];
    return word;
  }
  std::vector<std::uint8_t> bytes_;
};

// What the queues of one queue pair lie in.
struct Parts {
  std::uint32_t uar_page, cq_umem, cq_dbr_umem, sq_umem, dbr_umem, eqn, pdn;
};

inline Bytes command(std::uint32_t opcode, std::size_t size) {
  return Bytes(size).put(0, 31, 16, opcode);
}

inline Bytes query_caps(std::uint32_t kind) {
  return command(0x100, 16).put(4, 15, 0, kind << 1 | 1);
}

inline Bytes create_cq(const Parts& p, unsigned log_size) {
  return command(0x400, 272)
      .put(0x10, 17, 17, 1)  // overrun is ignored
      .put(0x10, 25, 25, 1)
      .put(0x14, 31, 0, p.cq_dbr_umem)
      .put(0x1c, 28, 24, log_size)
      .put(0x1c, 23, 0, p.uar_page)
      .put(0x24, 7, 0, p.eqn)
      .put(0x58, 31, 0, p.cq_umem)
      .put(0x5c, 31, 31, 1);
}

inline Bytes create_qp(const Parts& p, std::uint32_t cqn, unsigned log_size) {
  constexpr std::size_t kContext = 0x18;
  return command(0x500, 272)
      .put(kContext + 0x04, 23, 0, p.pdn)
      .put(kContext + 0x08, 14, 11, log_size)
      .put(kContext + 0x08, 7, 6, 1)  // ts_format: the adapter's own choice of clock
      .put(kContext + 0x0c, 23, 0, p.uar_page)
      .put(kContext + 0x7c, 23, 0, cqn)
      .put(kContext + 0x94, 23, 0, 1)  // where some encoders' 64-bit store of cd_master ends up
      .put(kContext + 0xac, 26, 24, 3)
      .put(kContext + 0xd0, 28, 28, 1)
      .put(kContext + 0xe4, 31, 0, p.dbr_umem)
      .put(0x108, 31, 0, p.sq_umem)
      .put(0x10c, 31, 31, 1);
}

// RST2INIT 0x502, INIT2RTR 0x503, RTR2RTS 0x504 and so on.
inline Bytes modify_qp(std::uint32_t opcode, std::uint32_t qpn) {
  return command(opcode, 272).put(0x08, 23, 0, qpn);
}

inline Bytes to_init(std::uint32_t qpn) {
  return modify_qp(0x502, qpn)
      .put(0x18, 12, 11, 3)
      .put(0x18 + 0x3c, 23, 16, 1)  // port
      .put(0x18 + 0x90, 15, 13, 7)  // reads, writes, atomics
      .put(0x18 + 0x90, 19, 16, 1);
}

// By GID and MAC on Ethernet, by LID on InfiniBand.
inline Bytes to_receive(std::uint32_t qpn, bool ethernet, const std::uint8_t* gid,
                        const std::uint8_t* mac) {
  constexpr std::size_t kPath = 0x18 + 0x18;
  Bytes c = modify_qp(0x503, qpn);
  c.put(0x18 + 0x08, 31, 29, 5).put(0x18 + 0x08, 28, 24, 30).put(0x18 + 0x14, 23, 0, qpn);
  c.put(0x18 + 0x94, 28, 24, 12);
  if (!ethernet) return c.put(kPath + 0x04, 15, 0, 1);
  c.put(kPath + 0x08, 23, 16, 1).put(kPath + 0x08, 7, 0, 255).put(kPath + 0x20, 15, 0, 0xc001);
  for (std::size_t i = 0; i < 16; ++i) c.data()[kPath + 0x10 + i] = gid[i];
  for (std::size_t i = 0; i < 6; ++i) c.data()[kPath + 0x26 + i] = mac[i];
  return c;
}

inline Bytes to_send(std::uint32_t qpn) {
  return modify_qp(0x504, qpn)
      .put(0x18 + 0x18 + 0x08, 31, 27, 20)
      .put(0x18 + 0x70, 18, 16, 7)
      .put(0x18 + 0x70, 15, 13, 7);
}

}  // namespace twinpath::softhca
