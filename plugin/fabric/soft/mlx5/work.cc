#include "plugin/fabric/soft/mlx5/work.h"

#include <algorithm>

#include "plugin/fabric/soft/mlx5/field.h"

namespace twinpath::soft::mlx5 {
namespace {

using Bytes = std::span<const std::uint8_t>;

// The key that ends a list of receives, as no memory has it.
constexpr std::uint32_t kEndOfList = 0x100;
constexpr std::uint32_t kInline = 0x80000000;

std::uint32_t word(Bytes bytes, std::size_t at) {
  std::uint32_t value = 0;
  for (std::size_t i = 0; i < 4; ++i) value = value << 8 | bytes[at + i];
  return value;
}
std::uint64_t long_word(Bytes bytes, std::size_t at) {
  return std::uint64_t{word(bytes, at)} << 32 | word(bytes, at + 4);
}

Piece piece(Bytes bytes, std::size_t at) {
  return {long_word(bytes, at + 8), word(bytes, at) & ~kInline, word(bytes, at + 4)};
}

// Whether a queue pair of that service has it.
bool known(std::uint32_t opcode, Service service) {
  switch (static_cast<Operation>(opcode)) {
    case Operation::nop:
      return true;
    case Operation::send:
    case Operation::send_immediate:
      return service != Service::key_changes;
    case Operation::change_key:
      return service == Service::key_changes;
    case Operation::write:
    case Operation::write_immediate:
    case Operation::wait:
    case Operation::read:
    case Operation::compare_swap:
    case Operation::fetch_add:
    case Operation::masked_compare_swap:
    case Operation::masked_fetch_add:
    case Operation::dump:
      return service == Service::reliable || service == Service::dynamic;
  }
  return false;
}

// Segments between the first, which all have, and the data.
std::size_t fixed_segments(Operation operation) {
  switch (operation) {
    case Operation::nop:
    case Operation::send:
    case Operation::send_immediate:
    case Operation::dump:
    case Operation::change_key:
      return 0;
    case Operation::write:
    case Operation::write_immediate:
    case Operation::read:
    case Operation::wait:
      return 1;
    case Operation::compare_swap:
    case Operation::fetch_add:
      return 2;
    case Operation::masked_fetch_add:
    case Operation::masked_compare_swap:
      return 2;  // and one more with operands of 8 bytes, see there
  }
  return 0;
}

// The operands of an atomic; where the data begin after them.
std::size_t read_operands(Bytes bytes, std::size_t at, Work& work) {
  if (!work.masked()) {
    work.add_or_swap = long_word(bytes, at);
    work.compare = long_word(bytes, at + 8);
    return at + kSegmentBytes;
  }
  const bool swap = work.operation == Operation::masked_compare_swap;
  if (work.operand_bytes() == 4) {
    work.add_or_swap = word(bytes, at);
    work.add_or_swap_mask = word(bytes, swap ? at + 8 : at + 4);
    if (swap) work.compare = word(bytes, at + 4), work.compare_mask = word(bytes, at + 12);
    return at + kSegmentBytes;
  }
  work.add_or_swap = long_word(bytes, at);
  if (!swap) {
    work.add_or_swap_mask = long_word(bytes, at + 8);
    return at + kSegmentBytes;
  }
  work.compare = long_word(bytes, at + 8);
  work.add_or_swap_mask = long_word(bytes, at + 16);
  work.compare_mask = long_word(bytes, at + 24);
  return at + 2 * kSegmentBytes;
}

// The address vector of a datagram.
constexpr std::size_t kAddressBytes = 48;
DatagramAddress read_address(Bytes bytes) {
  constexpr Field kQkey{0, 32}, kQpn{72, 24}, kServiceLevel{100, 4}, kPathBits{105, 7},
      kLid{112, 16};
  constexpr Field kTrafficClass{208, 8}, kHopLimit{216, 8}, kRouted{225, 1}, kGidIndex{228, 8},
      kFlow{236, 20};
  DatagramAddress to;
  to.qkey = static_cast<std::uint32_t>(get(bytes, kQkey));
  to.qpn = static_cast<std::uint32_t>(get(bytes, kQpn));
  to.lid = static_cast<std::uint16_t>(get(bytes, kLid));
  to.service_level = static_cast<std::uint8_t>(get(bytes, kServiceLevel));
  to.path_bits = static_cast<std::uint8_t>(get(bytes, kPathBits));
  to.routed = get(bytes, kRouted) != 0;
  to.gid_index = static_cast<std::uint8_t>(get(bytes, kGidIndex));
  to.hop_limit = static_cast<std::uint8_t>(get(bytes, kHopLimit));
  to.traffic_class = static_cast<std::uint8_t>(get(bytes, kTrafficClass));
  to.flow_label = static_cast<std::uint32_t>(get(bytes, kFlow));
  std::copy_n(bytes.begin() + 32, to.gid.size(), to.gid.begin());
  return to;
}

// Inline data, or a list of pieces, from `at` to the end.
Defect read_data(Bytes bytes, std::size_t at, Work& work) {
  while (at < bytes.size()) {
    const std::uint32_t head = word(bytes, at);
    if ((head & kInline) == 0) {
      const Piece p = piece(bytes, at);
      if (p.bytes != 0) work.pieces.push_back(p);
      at += kSegmentBytes;
      continue;
    }
    const std::size_t length = head & ~kInline;
    if (length > bytes.size() - at - 4) return Defect::inline_length;
    const auto begin = bytes.begin() + static_cast<std::ptrdiff_t>(at) + 4;
    work.inline_data.insert(work.inline_data.end(), begin,
                            begin + static_cast<std::ptrdiff_t>(length));
    at += (4 + length + kSegmentBytes - 1) / kSegmentBytes * kSegmentBytes;
  }
  return Defect::none;
}

}  // namespace

const char* text_of(Defect defect) {
  switch (defect) {
    case Defect::none:
      return "";
    case Defect::operation:
      return "there is no such operation";
    case Defect::queue_pair:
      return "the entry is of another queue pair";
    case Defect::place:
      return "the entry's index is not that of its place";
    case Defect::size:
      return "the entry's size is not that of its operation";
    case Defect::inline_length:
      return "more inline data than the entry has room";
  }
  return "";
}

unsigned blocks_of(Bytes first) {
  const std::size_t segments = std::max<std::size_t>(1, word(first, 4) & 0x3f);
  return static_cast<unsigned>((segments * kSegmentBytes + kBlockBytes - 1) / kBlockBytes);
}

Defect read_work(Bytes bytes, std::uint32_t qpn, std::uint64_t index, Service service, Work& work) {
  work = {};
  if (bytes.size() < kBlockBytes) return Defect::size;
  const std::uint32_t first = word(bytes, 0), second = word(bytes, 4);
  work.index = static_cast<std::uint16_t>(first >> 8);
  work.modifier = static_cast<std::uint8_t>(first >> 24);
  work.blocks = blocks_of(bytes);
  if (!known(first & 0xff, service)) return Defect::operation;
  work.operation = static_cast<Operation>(first & 0xff);
  if (second >> 8 != qpn) return Defect::queue_pair;
  if (work.index != static_cast<std::uint16_t>(index)) return Defect::place;
  const std::uint8_t flags = bytes[11];
  work.completion = (flags & 0x0c) == 0x08;
  work.solicited = (flags & 0x02) != 0;
  work.fenced = (flags & 0xe0) != 0;
  work.immediate = word(bytes, 12);

  const std::size_t segments = second & 0x3f;
  const bool addressed = is_datagram(service);
  const std::size_t fixed =
      1 + (addressed ? kAddressBytes / kSegmentBytes : fixed_segments(work.operation));
  if (segments < fixed || segments * kSegmentBytes > bytes.size()) return Defect::size;
  const Bytes entry = bytes.first(segments * kSegmentBytes);
  std::size_t at = kSegmentBytes;
  if (work.operation == Operation::nop) return Defect::none;
  if (work.operation == Operation::change_key) {
    work.inline_data.assign(entry.begin() + static_cast<std::ptrdiff_t>(at), entry.end());
    return Defect::none;
  }
  if (work.operation == Operation::wait) {
    work.wait_index = word(entry, at + 8);
    work.wait_cqn = word(entry, at + 12) & 0xffffff;
    return Defect::none;
  }
  if (addressed) {
    work.to = read_address(entry.subspan(at, kAddressBytes));
    return read_data(entry, at + kAddressBytes, work);
  }
  if (fixed > 1) {
    work.remote_address = long_word(entry, at);
    work.remote_key = word(entry, at + 8);
    at += kSegmentBytes;
  }
  if (fixed > 2) {
    const bool longest =
        work.operation == Operation::masked_compare_swap && work.operand_bytes() == 8;
    if (longest && segments < fixed + 1) return Defect::size;
    at = read_operands(entry, at, work);
  }
  if (const Defect defect = read_data(entry, at, work); defect != Defect::none) return defect;
  // An atomic brings something back, and must say where to.
  return fixed > 2 && work.pieces.size() != 1 ? Defect::size : Defect::none;
}

std::vector<Piece> read_receive(Bytes bytes) {
  std::vector<Piece> pieces;
  for (std::size_t at = 0; at + kSegmentBytes <= bytes.size(); at += kSegmentBytes) {
    const Piece p = piece(bytes, at);
    if (p.bytes == 0 || p.key == kEndOfList) break;
    pieces.push_back(p);
  }
  return pieces;
}

std::optional<std::uint64_t> extend_index(std::uint64_t known, std::uint32_t told, unsigned bits,
                                          std::uint64_t depth) {
  const std::uint64_t mask = (std::uint64_t{1} << bits) - 1;
  const std::uint64_t ahead = (told - known) & mask;
  if (ahead > depth) return std::nullopt;
  return known + ahead;
}

}  // namespace twinpath::soft::mlx5
