#include "test/fabric/traffic.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdarg>
#include <cstdio>
#include <cstring>
#include <new>
#include <utility>

namespace twinpath::test {
namespace {

constexpr std::size_t kSlack = 64;  // capacity beyond the message, at most
constexpr std::size_t kGuard = 8;   // bytes behind a message that nobody may touch
constexpr std::uint8_t kGuardByte = 0xa5;
constexpr std::size_t kSeenTwice = 4096;  // longer messages are compared once only

std::uint64_t scramble(std::uint64_t x) {
  x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
  x = (x ^ x >> 27) * 0x94d049bb133111ebu;
  return x ^ x >> 31;
}

std::uint64_t key_of(std::uint64_t number, int tag, std::size_t bytes) {
  return scramble(number * 0x9e3779b97f4a7c15u + static_cast<std::uint64_t>(tag) * 0x632be5abu +
                  bytes);
}

}  // namespace

std::size_t Mix::most_bytes() const {
  return sizes.empty() ? std::max(usual, large) : *std::max_element(sizes.begin(), sizes.end());
}

PlannedGroup plan_group(const Mix& mix, std::uint64_t number) {
  std::uint64_t state = scramble(mix.seed) + number * 64;
  const auto below = [&state](std::size_t n) { return scramble(++state) % n; };
  PlannedGroup group;
  group.count = 1 + below(static_cast<std::size_t>(mix.most_in_group));
  if (mix.optional_one_in > 0 && below(static_cast<std::size_t>(mix.optional_one_in)) == 0) {
    group.count = 1;
    group.optional = true;
  }
  // Mostly each message has a tag of its own; sometimes tags meet.
  const bool tags_meet = below(4) == 0;
  const std::size_t first_tag = below(kTrafficTags);
  // Some groups fill their buffers, and have nothing for parcels.
  const bool fills = below(4) == 0;
  for (std::size_t i = 0; i < group.count; ++i) {
    Planned& m = group.messages[i];
    m.tag = static_cast<int>(tags_meet ? below(3) : (first_tag + i) % kTrafficTags);
    const bool large = below(static_cast<std::size_t>(mix.large_one_in)) == 0 || fills;
    m.bytes = mix.sizes.empty() ? below((large ? mix.large : mix.usual) + 1)
                                : mix.sizes[below(mix.sizes.size())];
    m.capacity = m.bytes + (fills || below(2) == 0 ? 0 : below(kSlack + 1));
  }
  return group;
}

void fill_message(std::uint8_t* data, std::uint64_t number, int tag, std::size_t bytes) {
  const std::uint64_t key = key_of(number, tag, bytes);
  for (std::size_t at = 0; at < bytes; at += 8) {
    const std::uint64_t word = scramble(key + at);
    std::memcpy(data + at, &word, std::min<std::size_t>(8, bytes - at));
  }
}

std::size_t differs_at(const std::uint8_t* data, std::uint64_t number, int tag, std::size_t bytes) {
  const std::uint64_t key = key_of(number, tag, bytes);
  for (std::size_t at = 0; at < bytes; at += 8) {
    const std::uint64_t word = scramble(key + at);
    const std::size_t n = std::min<std::size_t>(8, bytes - at);
    if (std::memcmp(data + at, &word, n) == 0) continue;
    std::uint8_t want[8];
    std::memcpy(want, &word, 8);
    return at + static_cast<std::size_t>(std::mismatch(want, want + n, data + at).first - want);
  }
  return bytes;
}

OwnPages::OwnPages(std::size_t bytes) : bytes_(bytes) {
  void* const at =
      ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (at == MAP_FAILED) throw std::bad_alloc();
  data_ = static_cast<std::uint8_t*>(at);
}

OwnPages::~OwnPages() { (void)::munmap(data_, bytes_); }

namespace {
constexpr std::uint8_t kOthers = 0x3c;
}

void OwnPages::become_others(bool unmap) {
  // The addresses stay taken: nothing else comes to lie there.
  if (unmap && ::mprotect(data_, bytes_, PROT_NONE) == 0) return;
  std::fill(data_, data_ + bytes_, kOthers);
  others_ = true;
}

bool OwnPages::untouched() const {
  return !others_ ||
         std::all_of(data_, data_ + bytes_, [](std::uint8_t b) { return b == kOthers; });
}

void TrafficEnd::take_memory(Comm& through, bool unmap) {
  if (through.deregister_memory(std::exchange(registered_, nullptr)) != Status::ok)
    fail("a registration cannot be given back");
  memory_.become_others(unmap);
}

TrafficEnd::TrafficEnd(Comm& comm, const Mix& mix, std::size_t slots)
    : mix_(mix),
      comm_(comm),
      stride_((mix.most_bytes() + kSlack + kGuard + 8 + 63) / 64 * 64),
      memory_(slots * stride_),
      random_(static_cast<unsigned>(mix.seed + slots)) {
  auto made = comm.register_memory(memory_.data(), memory_.size(), MemoryType::host, 0, -1);
  if (made)
    registered_ = *made;
  else
    fail("cannot register %zu bytes", memory_.size());
}

TrafficEnd::~TrafficEnd() {
  if (registered_ != nullptr) (void)comm_.deregister_memory(registered_);
}

void TrafficEnd::fail(const char* format, ...) {
  if (!failure_.empty()) return;
  char text[256];
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  failure_ = text;
}

TrafficReceiver::TrafficReceiver(RecvComm& comm, const Mix& mix, const SentMarks* marks)
    : TrafficEnd(comm, mix, mix.groups_open * kMaxRecvs),
      comm_(comm),
      marks_(marks),
      former_(mix.groups_open) {
  for (std::size_t i = 0; i < mix.groups_open; ++i) free_.push_back(i);
}

void TrafficReceiver::step() {
  for (std::size_t n = random(4); n > 0 && post();) --n;
  if (!open_.empty()) look_at(0);
  if (!open_.empty()) look_at(random(open_.size()));
}

bool TrafficReceiver::post() {
  if (next_ == mix_.groups || free_.empty() || !failure().empty()) return false;
  const std::size_t place = free_.back();
  const PlannedGroup group = plan_group(mix_, next_);
  if (former_[place] != 0) {
    // Also after its completion nothing was written there.
    check(plan_group(mix_, former_[place] - 1), former_[place] - 1, place, "later");
    former_[place] = 0;
  }
  std::array<RecvBuffer, kMaxRecvs> buffers;
  for (std::size_t i = 0; i < group.count; ++i) {
    const Planned& m = group.messages[i];
    std::uint8_t* data = room(place * kMaxRecvs + i, next_ * kMaxRecvs + i);
    std::memset(data + m.bytes, kGuardByte, kGuard);
    buffers[i] = {data, m.capacity, m.tag, registered_};
  }
  Request* request = nullptr;
  const Status s = comm_.irecv({buffers.data(), group.count}, group.optional, &request);
  if (s != Status::ok && s != Status::again) fail("irecv: %s", status_name(s));
  if (request == nullptr) return false;
  open_.push_back({next_++, request, place});
  free_.pop_back();
  return true;
}

void TrafficReceiver::look_at(std::size_t i) {
  Open& open = open_[i];
  const PlannedGroup group = plan_group(mix_, open.number);
  if (open.request != nullptr) {
    Completion c;
    const Status s = open.request->test(c);
    if (s != Status::ok)
      fail("test of receive %zu: %s", static_cast<std::size_t>(open.number), status_name(s));
    if (!c.done) return;
    open.request = nullptr;
    if (c.count != static_cast<int>(group.count))
      fail("%d messages in a group of %zu", c.count, group.count);
    for (std::size_t m = 0; m < group.count && !group.optional; ++m)
      if (c.bytes[m] != group.messages[m].bytes)
        fail("group %zu, message %zu: %zu bytes reported instead of %zu",
             static_cast<std::size_t>(open.number), m, c.bytes[m], group.messages[m].bytes);
  }
  if (group.optional && !sent(group, open.number)) return;
  check(group, open.number, open.place, "done");
  former_[open.place] = open.number + 1;
  free_.insert(free_.begin() + static_cast<std::ptrdiff_t>(random(free_.size() + 1)), open.place);
  ended_ += group.count;
  open_.erase(open_.begin() + static_cast<std::ptrdiff_t>(i));
}

bool TrafficReceiver::sent(const PlannedGroup& group, std::uint64_t number) const {
  for (std::size_t i = 0; i < group.count; ++i)
    if (marks_ == nullptr || !marks_->has(number * kMaxRecvs + i)) return false;
  return true;
}

void TrafficReceiver::check(const PlannedGroup& group, std::uint64_t number, std::size_t place,
                            const char* when) {
  for (std::size_t i = 0; i < group.count; ++i) {
    const Planned& m = group.messages[i];
    const std::uint64_t message = number * kMaxRecvs + i;
    const std::uint8_t* data = room(place * kMaxRecvs + i, message);
    if (when[0] == 'l' && m.bytes > kSeenTwice) continue;
    const std::size_t at = differs_at(data, message, m.tag, m.bytes);
    if (at < m.bytes)
      fail("%s: group %zu, message %zu of tag %d: byte %zu of %zu is wrong", when,
           static_cast<std::size_t>(number), i, m.tag, at, m.bytes);
    if (std::any_of(data + m.bytes, data + m.bytes + kGuard,
                    [](std::uint8_t b) { return b != kGuardByte; }))
      fail("%s: group %zu, message %zu of tag %d: written beyond its %zu bytes", when,
           static_cast<std::size_t>(number), i, m.tag, m.bytes);
  }
}

std::string TrafficReceiver::state() const {
  std::string text = "receiver: " + std::to_string(next_) + " of " + std::to_string(mix_.groups) +
                     " groups posted, open:";
  for (const Open& o : open_)
    text += " " + std::to_string(o.number) + (o.request == nullptr ? " (done, not sent)" : "");
  return text;
}

TrafficSender::TrafficSender(SendComm& comm, const Mix& mix, SentMarks* marks)
    : TrafficEnd(comm, mix, kSlots), comm_(comm), marks_(marks) {
  for (std::size_t i = 0; i < kSlots; ++i) free_.push_back(i);
}

void TrafficSender::step() {
  while (planned_ < mix_.groups && waiting_ < kPlanAhead) {
    const PlannedGroup group = plan_group(mix_, planned_);
    for (std::size_t i = 0; i < group.count; ++i, ++waiting_) {
      const Planned& m = group.messages[i];
      by_tag_[mix_.in_order ? 0 : static_cast<std::size_t>(m.tag)].push_back(
          {planned_ * kMaxRecvs + i, m, kNone});
    }
    ++planned_;
  }
  for (std::size_t n = random(8); n > 0 && send();) --n;
  if (!under_way_.empty()) look_at(0);
  if (!under_way_.empty()) look_at(random(under_way_.size()));
}

// The first message of some tag; of another one where that has no receive yet.
bool TrafficSender::send() {
  const std::size_t first = random(kTrafficTags);
  for (std::size_t t = 0; t < kTrafficTags && failure().empty(); ++t) {
    auto& queue = by_tag_[(first + t) % kTrafficTags];
    if (queue.empty()) continue;
    Message& m = queue.front();
    if (m.slot == kNone) {
      if (free_.empty()) continue;
      m.slot = free_.back();
      free_.pop_back();
      fill_message(room(m.slot, m.number), m.number, m.what.tag, m.what.bytes);
    }
    Request* request = nullptr;
    const Status s =
        comm_.isend(room(m.slot, m.number), m.what.bytes, m.what.tag, registered_, &request);
    if (s != Status::ok && s != Status::again) fail("isend: %s", status_name(s));
    if (request == nullptr) continue;
    under_way_.push_back({request, m.number, m.what.bytes, m.slot});
    queue.pop_front();
    --waiting_;
    return true;
  }
  return false;
}

void TrafficSender::look_at(std::size_t i) {
  const UnderWay u = under_way_[i];
  Completion c;
  const Status s = u.request->test(c);
  if (s != Status::ok)
    fail("test of send %zu: %s", static_cast<std::size_t>(u.number), status_name(s));
  if (!c.done) return;
  if (c.bytes[0] != u.bytes) fail("%zu bytes sent instead of %zu", c.bytes[0], u.bytes);
  if (marks_ != nullptr) marks_->set(u.number);
  ++ended_;
  free_.push_back(u.slot);
  under_way_.erase(under_way_.begin() + static_cast<std::ptrdiff_t>(i));
}

std::string TrafficSender::state() const {
  return "sender: " + std::to_string(waiting_) + " messages of " + std::to_string(planned_) +
         " groups not accepted, " + std::to_string(under_way_.size()) + " under way";
}

}  // namespace twinpath::test
