#include "proxy/wire/failover.h"

#include <bit>

namespace twinpath {
namespace {

constexpr std::size_t kMostWhy = 400;

std::vector<std::uint8_t> frame(FailoverKind kind, const std::vector<std::uint8_t>& body) {
  Writer w;
  w.integer(kFailoverByte);
  w.integer(static_cast<std::uint8_t>(kind));
  w.integer(static_cast<std::uint16_t>(body.size()));
  w.raw(body.data(), body.size());
  return w.take();
}

}  // namespace

bool renew_keys(const CtsLayout& layout, std::uint8_t* cell, std::span<const KeyRange> memory) {
  const CellView view(cell);
  for (const KeyRange& range : memory) {
    if (!range.covers(view.address(), view.bytes())) continue;
    layout.set_keys(cell, range.rkeys);
    return true;
  }
  return false;
}

std::vector<std::uint8_t> encode_failover(const StopNote& note) {
  Writer w;
  w.integer(note.round);
  w.integer(note.unwanted);
  w.integer(note.down);
  w.text(loggable(note.why, kMostWhy));
  return frame(FailoverKind::stop, w.bytes());
}

std::vector<std::uint8_t> encode_failover(const FencedNote& note) {
  Writer w;
  w.integer(note.round);
  w.integer(note.held.begin);
  w.integer(note.held.end);
  for (const std::uint64_t word : note.held.open) w.integer(word);
  w.integer(note.made);
  for (const QueueAddress& q : note.queues) encode_address(w, q);
  w.integer(static_cast<std::uint8_t>(note.rails.size()));
  for (const HelloRail& rail : note.rails) encode_rail(w, rail);
  w.integer(static_cast<std::uint8_t>(note.key_rails));
  w.integer(static_cast<std::uint16_t>(note.memory.size()));
  for (const KeyRange& range : note.memory) {
    w.integer(range.address);
    w.integer(range.bytes);
    for (int i = 0; i < note.key_rails; ++i) w.integer(range.rkeys[static_cast<std::size_t>(i)]);
  }
  return frame(FailoverKind::fenced, w.bytes());
}

std::vector<std::uint8_t> encode_ready(std::uint32_t round) {
  Writer w;
  w.integer(round);
  return frame(FailoverKind::ready, w.bytes());
}

std::vector<std::uint8_t> encode_failover(FailoverKind kind) { return frame(kind, {}); }

std::size_t failover_frame_bytes(std::span<const std::uint8_t> bytes) {
  if (bytes.size() < kFailoverHeader) return 0;
  return kFailoverHeader + (std::size_t{bytes[2]} | std::size_t{bytes[3]} << 8);
}

bool decode_failover(std::span<const std::uint8_t> body, StopNote& note) {
  Reader r(body);
  note.round = r.integer<std::uint32_t>();
  note.unwanted = r.integer<std::uint32_t>();
  note.down = r.integer<std::uint32_t>();
  note.why = loggable(r.text(), kMostWhy);
  return r.ok();
}

bool decode_failover(std::span<const std::uint8_t> body, FencedNote& note) {
  Reader r(body);
  note = {};
  note.round = r.integer<std::uint32_t>();
  note.held.begin = r.integer<std::uint64_t>();
  note.held.end = r.integer<std::uint64_t>();
  for (std::uint64_t& word : note.held.open) word = r.integer<std::uint64_t>();
  note.made = r.integer<std::uint32_t>();
  for (int left = std::popcount(note.made); left > 0; --left) {
    QueueAddress q;
    if (!decode_address(r, q)) return false;
    note.queues.push_back(q);
  }
  const int rails = r.integer<std::uint8_t>();
  if (!r.ok() || rails < 1 || rails > kMaxRails) return false;
  std::string why;
  for (int i = 0; i < rails; ++i) {
    HelloRail rail;
    if (!decode_rail(r, i, rail, why)) return false;
    note.rails.push_back(std::move(rail));
  }
  note.key_rails = r.integer<std::uint8_t>();
  const std::size_t ranges = r.integer<std::uint16_t>();
  if (!r.ok() || note.key_rails > kMaxRails || ranges > kMostKeyRanges) return false;
  for (std::size_t i = 0; i < ranges && r.ok(); ++i) {
    KeyRange range;
    range.address = r.integer<std::uint64_t>();
    range.bytes = r.integer<std::uint64_t>();
    for (int k = 0; k < note.key_rails; ++k)
      range.rkeys[static_cast<std::size_t>(k)] = r.integer<std::uint32_t>();
    note.memory.push_back(range);
  }
  return r.ok();
}

bool decode_ready(std::span<const std::uint8_t> body, std::uint32_t& round) {
  Reader r(body);
  round = r.integer<std::uint32_t>();
  return r.ok();
}

}  // namespace twinpath
