#pragma once
// What goes over the sockets of a Mesh, little-endian.
//
//   hello    magic 4 | version 2 | reserved 2 | nonce 16 | rank 4 | ranks 4       connector
//   welcome  magic 4 | rank 4                                                     listener
//   frame    magic 4 | step 4 | tag of the step's name 4 | bytes 4, then the bytes
//   goodbye  a frame of its own magic, without bytes
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "plugin/base/wire.h"

namespace twinpath::gda::mesh {

inline constexpr std::uint32_t kHelloMagic = 0x4d475054;    // "TPGM"
inline constexpr std::uint32_t kWelcomeMagic = 0x57475054;  // "TPGW"
inline constexpr std::uint32_t kFrameMagic = 0x46475054;    // "TPGF"
inline constexpr std::uint32_t kGoodbyeMagic = 0x42475054;  // "TPGB"
inline constexpr std::uint16_t kVersion = 9;
inline constexpr std::size_t kHelloBytes = 32;
inline constexpr std::size_t kWelcomeBytes = 8;
inline constexpr std::size_t kFrameBytes = 16;
inline constexpr std::size_t kMaxBody = std::size_t{1} << 20;

using FrameBytes = std::array<std::uint8_t, kFrameBytes>;

struct Frame {
  std::uint32_t magic = 0, step = 0, tag = 0, bytes = 0;
};

inline FrameBytes encode(const Frame& frame) {
  Writer w;
  w.integer(frame.magic);
  w.integer(frame.step);
  w.integer(frame.tag);
  w.integer(frame.bytes);
  FrameBytes out{};
  std::copy(w.bytes().begin(), w.bytes().end(), out.begin());
  return out;
}

inline Frame decode(std::span<const std::uint8_t> bytes) {
  Reader r(bytes);
  Frame frame;
  frame.magic = r.integer<std::uint32_t>();
  frame.step = r.integer<std::uint32_t>();
  frame.tag = r.integer<std::uint32_t>();
  frame.bytes = r.integer<std::uint32_t>();
  return frame;
}

// Tells steps apart; ranks that call different ones notice.
constexpr std::uint32_t tag_of(std::string_view name) {
  std::uint32_t h = 0x811c9dc5u;
  for (const char c : name) h = (h ^ static_cast<unsigned char>(c)) * 0x01000193u;
  return h;
}

}  // namespace twinpath::gda::mesh
