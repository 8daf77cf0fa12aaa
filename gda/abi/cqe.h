#pragma once
// Completion queue entries as kernels poll them: 64 bytes in the format of mlx5 (PRM "CQE"; error
// CQEs likewise).  Kernels look at the last byte only: opcode and owner bit.  The owner bit is the
// parity of the lap, so a CQ starts full of entries whose owner bit is 1.
//
// CQE number = WQE number, because every WQE asks for a CQE.
#include <cstdint>
#include <cstring>

#include "gda/abi/host_device.h"
#include "gda/abi/operation.h"

namespace twinpath::gda {

inline constexpr std::size_t kCqeBytes = 64;
inline constexpr std::uint8_t kCqeFill = 0xff;  // opcode "invalid", owner 1: not of lap 0

enum class CqeOpcode : std::uint8_t { done = 0, error = 13, invalid = 15 };

using CqeBytes = std::uint8_t[kCqeBytes];

TWINPATH_HD constexpr std::uint8_t cqe_owner(std::uint64_t index, std::uint32_t depth) {
  return (index & depth) != 0;
}

namespace cqe_detail {
inline void put_be32(CqeBytes& cqe, std::size_t at, std::uint32_t value) {
  const std::uint32_t be = swap32(value);
  std::memcpy(cqe + at, &be, sizeof be);
}
// wqe_counter, signature, op_own: the dword that makes the entry valid.
inline void finish(CqeBytes& cqe, std::uint64_t index, std::uint32_t depth, CqeOpcode opcode) {
  const auto op_own =
      static_cast<std::uint32_t>(static_cast<unsigned>(opcode) << 4 | cqe_owner(index, depth));
  put_be32(cqe, 60, static_cast<std::uint32_t>(index & 0xffff) << 16 | op_own);
}
}  // namespace cqe_detail

// `wqe_opcode`: first byte of what the adapter reports about the WQE; for debuggers only.
inline void make_cqe(CqeBytes& cqe, std::uint64_t index, std::uint32_t depth, std::uint32_t qpn,
                     std::uint8_t wqe_opcode, std::uint32_t bytes) {
  std::memset(cqe, 0, kCqeBytes);
  cqe_detail::put_be32(cqe, 44, bytes);
  cqe_detail::put_be32(cqe, 56, std::uint32_t{wqe_opcode} << 24 | qpn);
  cqe_detail::finish(cqe, index, depth, CqeOpcode::done);
}

inline void make_error_cqe(CqeBytes& cqe, std::uint64_t index, std::uint32_t depth,
                           std::uint32_t qpn, std::uint8_t wqe_opcode, Syndrome syndrome) {
  std::memset(cqe, 0, kCqeBytes);
  cqe[55] = static_cast<std::uint8_t>(syndrome);
  cqe_detail::put_be32(cqe, 56, std::uint32_t{wqe_opcode} << 24 | qpn);
  cqe_detail::finish(cqe, index, depth, CqeOpcode::error);
}

// Reading: for tests and for whoever plays the kernel.  `last`: dword 15 of the CQE, as it lies in
// memory.
TWINPATH_HD constexpr CqeOpcode cqe_opcode(std::uint32_t last) {
  return static_cast<CqeOpcode>(last >> 28);
}
TWINPATH_HD constexpr std::uint16_t cqe_counter(std::uint32_t last) {
  return static_cast<std::uint16_t>(swap32(last) >> 16);
}
TWINPATH_HD constexpr bool cqe_is_of_lap(std::uint32_t last, std::uint64_t index,
                                         std::uint32_t depth) {
  return (last >> 24 & 1) == cqe_owner(index, depth);
}
inline Syndrome cqe_syndrome(const CqeBytes& cqe) { return static_cast<Syndrome>(cqe[55]); }

}  // namespace twinpath::gda
