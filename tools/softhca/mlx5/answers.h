#pragma once
// What the device answers to a command.  Nothing is carried out yet: every command succeeds,
// queries of capabilities and addresses are answered from tables, all others with zeros.
#include <infiniband/verbs.h>

#include <cstddef>
#include <cstdint>
#include <span>

namespace twinpath::softhca::mlx5 {

// The kernel's limit of a command, and of an answer.
inline constexpr std::size_t kLongest = 0xffff;

// A device may be asked with fewer than 16 bytes by nobody, nor answer so few.
bool well_formed(const void* in, std::size_t in_bytes, const void* out, std::size_t out_bytes);

// Fills `out` (all of it) in answer to a query of the device `context`.
void answer(ibv_context* context, std::span<const std::uint8_t> in, std::span<std::uint8_t> out);

}  // namespace twinpath::softhca::mlx5
