#include "test/abi/one_sided_lanes.h"

#include <cstring>

namespace twinpath::test {
namespace {

constexpr std::uint8_t kClear = 0x11, kUsed = 0xee;

void fill_part(std::uint8_t* to, const Lane& lane, std::uint64_t number, std::size_t part,
               std::size_t bytes) {
  const std::uint64_t key = mixed(lane.seed + number * kMostParts + part);
  for (std::size_t at = 0; at < bytes; at += 8) {
    const std::uint64_t word = mixed(key + at);
    std::memcpy(to + at, &word, std::min<std::size_t>(8, bytes - at));
  }
}

}  // namespace

void fill_static(std::uint8_t* to, std::uint64_t seed, int rank) {
  fill_part(to, {.seed = seed + static_cast<std::uint64_t>(rank)}, 0, 0, kStaticBytes);
}

bool LaneSource::step(const SidedWindows& w, std::uint8_t* out, std::uint64_t target) {
  if (!lane_.step()) return false;
  const bool full = under_way_.size() == plan_.slots || posted_ == target;
  if ((full || posted_ % 8 == 0) && !retire(out)) return false;
  const std::uint64_t verified = marks_.verified.load(std::memory_order_acquire);
  if (posted_ == target || under_way_.size() == plan_.slots || posted_ == verified + plan_.slots)
    return true;
  return post(w, out);
}

bool LaneSource::post(const SidedWindows& w, std::uint8_t* out) {
  const SidedMessage m = plan_message(plan_, posted_);
  const std::uint64_t slot = at_ + kLaneHead + posted_ % plan_.slots * plan_.stride();
  for (std::size_t p = 0; p < m.count; ++p)
    fill_part(out + slot + m.parts[p].at, plan_, posted_, p, m.parts[p].bytes);
  // Before any of its signals can be seen.
  marks_.begun.store(posted_ + 1, std::memory_order_release);
  for (std::size_t p = 0; p < m.count; ++p) {
    const std::uint64_t at = slot + m.parts[p].at;
    const bool signals = !m.alone && p + 1 == m.count;
    if (!lane_.put(w, {at, at, m.parts[p].bytes, signals ? m.add : 0})) return false;
  }
  if (m.alone && !lane_.put(w, {.add = m.add})) return false;
  std::uint64_t read = 0;
  if (m.gets && !reading_) {
    reading_ = true;
    read = 1 + mixed(posted_) % kStaticBytes;
    std::memset(reads.landed, kUsed, kStaticBytes);
    if (!lane_.get(w, reads.from, reads.to, read)) return false;
  }
  under_way_.push_back({posted_++, lane_.begun(), read});
  return true;
}

bool LaneSource::retire(std::uint8_t* out) {
  if (under_way_.empty()) return true;
  const std::uint64_t ended = lane_.ended();
  if (!lane_.step()) return false;
  for (; !under_way_.empty() && under_way_.front().calls <= ended; under_way_.pop_front()) {
    const UnderWay& u = under_way_.front();
    // Who reads it from now on reads something else.
    std::memset(out + at_ + kLaneHead + u.number % plan_.slots * plan_.stride(), kUsed,
                plan_.stride());
    if (u.read != 0 && std::memcmp(reads.landed, reads.expected, u.read) != 0) {
      wrong_ = "what was read behind message " + std::to_string(u.number) + " is something else";
      return false;
    }
    if (u.read != 0) reading_ = false;
    ++retired_;
  }
  return true;
}

void LaneSink::begin(std::uint8_t* in) const {
  std::memset(in + at_ + kLaneHead, kClear, plan_.bytes());
}

void LaneSink::step(std::uint8_t* in) {
  const std::uint64_t word = lane_.received(plan_.word_in_window ? in + at_ : nullptr) +
                             (plan_.word_in_window ? before_ : 0);
  // Read after the word: what it shows had been begun.
  const std::uint64_t begun = marks_.begun.load(std::memory_order_acquire);
  for (; begun_ < begun; ++begun_) sum_begun_ += plan_message(plan_, begun_).add;
  if (word > sum_begun_) {
    wrong_ = "signals of " + std::to_string(word) + " where " + std::to_string(sum_begun_) +
             " were sent";
    return;
  }
  while (verified_ < begun_) {
    const SidedMessage m = plan_message(plan_, verified_);
    if (sum_ + m.add > word) break;
    check(in + at_ + kLaneHead + verified_ % plan_.slots * plan_.stride(), m);
    if (!wrong_.empty()) return;
    sum_ += m.add;
    marks_.verified.store(++verified_, std::memory_order_release);
  }
}

void LaneSink::check(std::uint8_t* slot, const SidedMessage& m) {
  std::vector<std::uint8_t> expected(plan_.stride(), kClear);
  for (std::size_t p = 0; p < m.count; ++p)
    fill_part(expected.data() + m.parts[p].at, plan_, verified_, p, m.parts[p].bytes);
  const auto at = std::mismatch(expected.begin(), expected.end(), slot).first - expected.begin();
  if (at != static_cast<std::ptrdiff_t>(expected.size())) {
    wrong_ = "byte " + std::to_string(at) + " of message " + std::to_string(verified_) + " is " +
             std::to_string(slot[at]) + ":";
    for (std::size_t p = 0; p < m.count; ++p)
      wrong_ += " " + std::to_string(m.parts[p].at) + "+" + std::to_string(m.parts[p].bytes);
    return;
  }
  std::memset(slot, kClear, plan_.stride());
}

}  // namespace twinpath::test
