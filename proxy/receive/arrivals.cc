#include "proxy/receive/arrivals.h"

#include <algorithm>
#include <bit>
#include <cstdarg>
#include <cstdio>
#include <cstring>

namespace twinpath {

bool Arrivals::refuse(const char* format, ...) {
  char text[256];
  va_list list;
  va_start(list, format);
  std::vsnprintf(text, sizeof text, format, list);
  va_end(list);
  if (why_.empty()) why_ = text;
  return false;
}

bool Arrivals::take(std::uint32_t bits, std::uint32_t bytes, int queue, CtsWriter& cells) {
  if (is_parcel(bits) ? take_parcel(bits, bytes, queue, cells)
                      : take_chunk(bits, bytes, queue, cells)) [[likely]]
    return true;
  if (!why_.empty()) return false;
  if (!is_parcel(bits) && came_before(CellMeta(bits)))
    return refuse("it sent one message a second time (immediate 0x%x, %u bytes)",
                  static_cast<unsigned>(bits), bytes);
  return unexpected(bits);
}

bool Arrivals::unexpected(std::uint32_t bits) {
  return refuse("it sent data for no receive posted here (immediate 0x%x)",
                static_cast<unsigned>(bits));
}

bool Arrivals::came_before(CellMeta which) {
  if (!requests_.made(which.slot())) return false;
  const RecvRequest& r = requests_.at(which.slot());
  const auto ago = static_cast<std::uint8_t>(CellMeta(r.bits_).generation() - which.generation());
  return ago == 1 || (ago == 0 && r.left() == 0 && !r.optional_);
}

namespace {

// A reliable connection brings a chunk once. Soft-RoCE does not hold that (test/vm/README.md): it
// may execute a finished request again, with its immediate and none of its bytes. Such a one must
// not be counted for a chunk that is still under way. Chunks have a queue each, or come in order on
// one and are never empty.
bool chunk_came_before(std::uint32_t queues_seen, bool in_order, std::uint32_t bytes, int queue) {
  return in_order ? bytes == 0 : (queues_seen >> queue & 1) != 0;
}

// A word of a parcel's head.
std::uint32_t entry_at(const std::uint8_t* at) {
  std::uint32_t word;
  std::memcpy(&word, at, sizeof word);
  return word;
}

}  // namespace

bool Arrivals::take_chunk(std::uint32_t bits, std::uint32_t bytes, int queue, CtsWriter& cells) {
  Immediate imm;
  if (!decode_immediate(bits, imm)) [[unlikely]]
    return false;
  RecvRequest* r = expecting(CellMeta(bits & kReceiveBits));
  if (r == nullptr) [[unlikely]]
    return false;
  if (imm.whole_group) return take_group(*r, imm, bytes, queue, cells);
  RecvRequest::Sub& sub = r->subs_[imm.sub];
  std::uint32_t& size = r->sizes_[imm.sub];
  std::uint32_t& queues = r->queues_[imm.sub];
  if (sub.state.expected == 0) {
    sub.state.expected = imm.chunks;
    size = queues = 0;
  }
  if (sub.state.expected != imm.chunks || sub.state.arrived == sub.state.expected) [[unlikely]] {
    return refuse("it sent %d chunks where it had announced %d", sub.state.arrived + 1,
                  sub.state.expected);
  }
  if (imm.chunks > 1) {
    if (chunk_came_before(queues, imm.in_order, bytes, queue)) [[unlikely]] {
      return refuse("it sent one of %d chunks a second time (immediate 0x%x, %u bytes)", imm.chunks,
                    static_cast<unsigned>(bits), bytes);
    }
    queues |= 1u << queue;
  }
  ++sub.state.arrived;
  if (imm.sized) {
    sub.state.sized = true;
    bytes = 0;
    carried_ |= rail_bit_[static_cast<std::size_t>(queue)];
  }
  // Each queue that brings a long chunk writes the size before its own immediate, the same from
  // each: only behind the last chunk does nobody write it any more.  Short ones among them have
  // theirs in the completion, and the message's is all of them.
  if (sub.state.sized && sub.state.arrived == sub.state.expected) {
    std::uint32_t whole;
    std::memcpy(&whole, box_ + size_offset(imm.slot, imm.sub), sizeof whole);
    bytes = whole - size;  // less than nothing is more than there is room for
  }
  if (size > sub.capacity || bytes > sub.capacity - size) [[unlikely]] {
    return refuse("it sent %u bytes into a receive of %u", size + bytes, sub.capacity);
  }
  size += bytes;
  counters::Rail& rail = *rail_counts_[static_cast<std::size_t>(queue)];
  if constexpr (counters::kConnectionCounts) rail.bytes.add(bytes);
  if ((r->staged_ >> imm.sub & 1) != 0) [[unlikely]]
    return land(*r, imm.sub, imm.in_order);
  if (bytes > 0) carried_ |= rail_bit_[static_cast<std::size_t>(queue)];
  if (sub.state.arrived == sub.state.expected) sub_complete(*r, rail, cells);
  return true;
}

// All messages of a receive of several at once.  The peer may not be believed that none came
// before.
bool Arrivals::take_group(RecvRequest& r, const Immediate& imm, std::uint32_t bytes, int queue,
                          CtsWriter& cells) {
  const std::uint32_t told = imm.sized ? sizeof(std::uint32_t) : r.subs_[imm.sub].capacity;
  bool awaited = r.left() == r.count_ && bytes == told;
  for (std::size_t i = 0; i != r.count_; ++i) awaited = awaited && r.subs_[i].state.expected == 0;
  if (!awaited) [[unlikely]]
    return false;
  std::uint64_t got = 0;
  for (std::size_t i = 0; i != r.count_; ++i) {
    RecvRequest::Sub& sub = r.subs_[i];
    sub.state.become(RecvRequest::Sub::State::whole());
    r.sizes_[i] = sub.capacity;
    got += sub.capacity;
  }
  counters::Rail& rail = *rail_counts_[static_cast<std::size_t>(queue)];
  if constexpr (counters::kConnectionCounts) rail.bytes.add(got);
  const std::uint8_t staged = r.staged_;
  const unsigned direct = r.count_ - static_cast<unsigned>(std::popcount(staged));
  if (got > 0 && direct != 0) carried_ |= rail_bit_[static_cast<std::size_t>(queue)];
  // Those to be copied on first: with its last part the receive is over.
  for (std::size_t i = 0; i != r.count_; ++i)
    if ((staged >> i & 1) != 0 && !land(r, i, false)) return false;
  if (direct != 0) sub_complete(r, rail, cells, direct);
  return true;
}

// As a sender lays a group that it sends in order: the longest messages, for one part after the
// other.  How many of at most `most`.
TP_ALWAYS_INLINE inline unsigned Arrivals::take_in_order(RecvRequest& r, const std::uint8_t* entry,
                                                         const std::uint8_t* data, unsigned most) {
  std::uint32_t expected = entry_at(entry);
  const unsigned index = CellMeta(expected & kReceiveBits).sub();
  RecvRequest::Sub* sub = &r.subs_[index];
  std::uint32_t* size = &r.sizes_[index];
  if (expected >> 17 != kParcelBytes) return 0;
  most = std::min(most, kMaxRecvs - index);
  for (unsigned n = 0; n != most; ++n, ++sub, expected += kOneSub, data += kParcelBytes) {
    if (entry_at(entry + sizeof expected * n) != expected ||
        !sub->state.awaits(RecvRequest::Copied::straight) || sub->capacity < kParcelBytes)
      return n;
    sub->state.become(RecvRequest::Sub::State::whole());
    size[n] = kParcelBytes;
    copy_words(sub->to, data, kParcelBytes);
  }
  return most;
}

bool Arrivals::take_parcel(std::uint32_t bits, std::uint32_t bytes, int queue, CtsWriter& cells) {
  ParcelImmediate imm;
  if (!decode_immediate(bits, imm) || bytes > kParcelStride || bytes < parcel_data_at(imm.count))
      [[unlikely]]
    return false;
  const std::uint8_t* entry = box_ + place_offset(imm.number);
  const std::uint8_t* const end = entry + bytes;
  const std::uint8_t* data = entry + parcel_data_at(imm.count);
  counters::Rail& rail = *rail_counts_[static_cast<std::size_t>(queue)];
  std::uint64_t got = 0;
  unsigned left = imm.count;
  do {
    // Members of a group come together: their receive is looked for once, and told once.
    const std::uint32_t of = entry_at(entry) & kReceiveBits & ~kSubBits;
    RecvRequest* const r = expecting(CellMeta(of));
    if (r == nullptr) [[unlikely]]
      return false;
    unsigned laid = 0;
    if (r->count_ != 1) {
      const auto fit = static_cast<unsigned>(end - data) / unsigned{kParcelBytes};
      laid = take_in_order(*r, entry, data, std::min(left, fit));
      left -= laid;
      entry += sizeof of * laid;
      data += kParcelBytes * laid;
      got += kParcelBytes * laid;
    }
    for (; left != 0 && (entry_at(entry) & kReceiveBits & ~kSubBits) == of; --left) {
      ParcelEntry in;
      const bool known = decode_entry(entry_at(entry), in);
      const unsigned index = CellMeta(in.receive).sub();
      RecvRequest::Sub& sub = r->subs_[index];
      const std::uint8_t* const from = data;
      data += padded(in.bytes);
      if (!known || in.bytes > sub.capacity || data > end) [[unlikely]]
        return false;
      got += in.bytes;
      if (sub.state.awaits(RecvRequest::Copied::straight)) [[likely]] {
        sub.state.become(RecvRequest::Sub::State::whole());
        r->sizes_[index] = in.bytes;
        copy_words(sub.to, from, in.bytes);
        ++laid;
      } else if (!land_parcel(*r, index, from, in.bytes)) {
        return false;
      }
      entry += sizeof of;
    }
    if (laid != 0) sub_complete(*r, rail, cells, laid);
  } while (left != 0);
  if constexpr (counters::kConnectionCounts) rail.bytes.add(got);
  return data == end && parcels_.read(imm.number);
}

bool Arrivals::expects_data() {
  bool expects = false;
  for_incomplete([&](const RecvRequest& r, unsigned i) {
    const auto& state = r.subs_[i].state;
    expects = expects || (!state.complete() && state.copied != RecvRequest::Copied::gone);
  });
  return expects;
}

void Arrivals::restart(HeldState& held) {
  for_incomplete([&](RecvRequest& r, unsigned i) {
    RecvRequest::Sub& sub = r.subs_[i];
    if (sub.state.complete()) return;
    held.set_open(r.first_cell_ + i);
    sub.state.expected = sub.state.arrived = 0;
    sub.state.sized = false;
    if ((r.staged_ >> i & 1) != 0) staged_->restart(r.slot(), static_cast<int>(i));
  });
  parcels_ = {};
}

}  // namespace twinpath
