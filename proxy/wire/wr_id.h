#pragma once
// The 64 bits that travel with every work request and come back in its completion: which comm,
// what kind of work, and which slot of that comm.  One completion queue serves many comms, so
// this is all that dispatch needs; a comm's index is reused only under another epoch, so a
// completion that outlives its comm finds nobody.
#include <cstdint>

namespace twinpath {

enum class WrKind : std::uint8_t {
  none = 0,
  send_data = 1,
  cts = 2,
  receive = 3,
  flush = 4,
  used = 5,
  probe = 6
};

// Of a WrKind, for messages; never null.
constexpr const char* work_name(int kind) {
  switch (static_cast<WrKind>(kind)) {
    case WrKind::send_data:
      return "data write";
    case WrKind::cts:
      return "clear-to-send write";
    case WrKind::receive:
      return "receive";
    case WrKind::flush:
      return "flush read";
    case WrKind::used:
      return "write of the number of cells used";
    case WrKind::probe:
      return "question whether the peer's adapter answers";
    case WrKind::none:
      break;
  }
  return "work request";
}

struct WrId {
  std::uint16_t comm = 0;        // index in the session's table of comms
  std::uint16_t epoch = 0;       // how often that index was given out
  WrKind kind = WrKind::none;    // 4 bits
  std::uint16_t slot = 0;        // 12 bits: request slot, or queue index for receives
  std::uint16_t generation = 0;  // of the request in that slot
  friend bool operator==(const WrId&, const WrId&) = default;
};

inline constexpr std::uint16_t kMaxWrSlot = 0xfff;

constexpr std::uint64_t encode(const WrId& id) {
  return std::uint64_t{id.comm} | std::uint64_t{id.epoch} << 16 |
         std::uint64_t{static_cast<std::uint8_t>(id.kind)} << 32 |
         std::uint64_t{static_cast<std::uint16_t>(id.slot & kMaxWrSlot)} << 36 |
         std::uint64_t{id.generation} << 48;
}

constexpr WrId decode_wr_id(std::uint64_t bits) {
  WrId id;
  id.comm = static_cast<std::uint16_t>(bits & 0xffff);
  id.epoch = static_cast<std::uint16_t>((bits >> 16) & 0xffff);
  id.kind = static_cast<WrKind>((bits >> 32) & 0xf);
  id.slot = static_cast<std::uint16_t>((bits >> 36) & kMaxWrSlot);
  id.generation = static_cast<std::uint16_t>((bits >> 48) & 0xffff);
  return id;
}

// Single fields of it.
constexpr std::uint16_t comm_of(std::uint64_t bits) { return static_cast<std::uint16_t>(bits); }
constexpr std::uint16_t epoch_of(std::uint64_t bits) {
  return static_cast<std::uint16_t>(bits >> 16);
}
constexpr WrKind kind_of(std::uint64_t bits) { return static_cast<WrKind>(bits >> 32 & 0xf); }
constexpr std::uint16_t slot_of(std::uint64_t bits) {
  return static_cast<std::uint16_t>(bits >> 36 & kMaxWrSlot);
}
constexpr std::uint16_t generation_of(std::uint64_t bits) {
  return static_cast<std::uint16_t>(bits >> 48);
}

}  // namespace twinpath
