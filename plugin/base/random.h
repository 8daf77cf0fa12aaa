#pragma once
// Numbers that nobody guesses, from the system's random source.
//
// Threads: any.
#include <array>
#include <cstdint>

namespace twinpath {

using Nonce = std::array<std::uint8_t, 16>;
Nonce random_nonce();
std::uint32_t random_24_bits();

}  // namespace twinpath
