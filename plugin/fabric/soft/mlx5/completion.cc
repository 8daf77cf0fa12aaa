#include "plugin/fabric/soft/mlx5/completion.h"

namespace twinpath::soft::mlx5 {
namespace {

using Entry = std::array<std::uint8_t, kEntryBytes>;

void put(Entry& entry, std::size_t at, std::size_t bytes, std::uint64_t value) {
  for (std::size_t i = 0; i < bytes; ++i)
    entry[at + i] = static_cast<std::uint8_t>(value >> (8 * (bytes - 1 - i)));
}

}  // namespace

Entry completion_bytes(const Completion& c, std::uint64_t position, unsigned log_entries) {
  Entry entry{};
  const auto kind = static_cast<std::uint8_t>(c.kind);
  put(entry, 32, 4, c.user_index);
  if (c.error()) {
    entry[55] = static_cast<std::uint8_t>(c.syndrome);
  } else {
    constexpr unsigned kRouted = 1;
    entry[17] = c.sender.path_bits;
    put(entry, 22, 2, c.sender.lid);
    put(entry, 24, 4,
        std::uint64_t{c.sender.routed ? kRouted : 0} << 28 |
            std::uint64_t{c.sender.service_level} << 24 | c.sender.qpn);
    put(entry, 36, 4, c.immediate);
    put(entry, 44, 4, c.bytes);
    put(entry, 48, 8, c.time);
  }
  put(entry, 56, 4, std::uint64_t{c.opcode} << 24 | (c.qpn & 0xffffff));
  put(entry, 60, 2, c.index);
  const auto lap = static_cast<std::uint8_t>(position >> log_entries & 1);
  entry[63] = static_cast<std::uint8_t>(kind << 4 | lap);
  return entry;
}

}  // namespace twinpath::soft::mlx5
