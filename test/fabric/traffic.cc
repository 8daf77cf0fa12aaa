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
  if (mix.optional_one_in > 0 && number < mix.optional_until &&
      below(static_cast<std::size_t>(mix.optional_one_in)) == 0) {
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

bool TrafficEnd::give_back(Piece& piece, Comm& through) {
  if (piece.registered == nullptr) return true;
  if (through.deregister_memory(std::exchange(piece.registered, nullptr)) == Status::ok)
    return true;
  fail("a registration cannot be given back");
  return false;
}

void TrafficEnd::take_memory(Comm& through, bool unmap) {
  for (Piece& piece : pieces_) {
    (void)give_back(piece, through);
    piece.pages->become_others(unmap);
  }
}

bool TrafficEnd::untouched() const {
  return std::all_of(pieces_.begin(), pieces_.end(),
                     [](const Piece& piece) { return piece.pages->untouched(); });
}

TrafficEnd::TrafficEnd(Comm& comm, const Mix& mix, std::size_t slots, std::size_t together)
    : mix_(mix),
      comm_(comm),
      stride_((mix.most_bytes() + kSlack + kGuard + 8 + 63) / 64 * 64),
      together_(mix.renewed_one_in > 0 ? together : slots),
      pieces_(slots / together_),
      random_(static_cast<unsigned>(mix.seed + slots)) {
  for (Piece& piece : pieces_) make(piece);
}

void TrafficEnd::make(Piece& piece) {
  piece.pages = std::make_unique<OwnPages>(together_ * stride_);
  auto made =
      comm_.register_memory(piece.pages->data(), piece.pages->size(), MemoryType::host, 0, -1);
  if (made)
    piece.registered = *made;
  else
    lose("regMr", piece.pages->size(), made.status());
}

void TrafficEnd::renew(std::size_t slot) {
  if (mix_.renewed_one_in == 0 || random(static_cast<std::size_t>(mix_.renewed_one_in)) != 0)
    return;
  if (!give_back(piece(slot), comm_)) return;
  piece(slot).pages.reset();  // whoever touches it now touches nothing, or what comes there next
  make(piece(slot));
}

TrafficEnd::~TrafficEnd() {
  for (Piece& piece : pieces_) (void)give_back(piece, comm_);
}

void TrafficEnd::lose(const char* call, std::uint64_t number, Status status) {
  if (failure_.empty()) lost_ = true;
  fail("%s %zu: %s", call, static_cast<std::size_t>(number), status_name(status));
}

bool TrafficEnd::settle() {
  if (failure_.empty()) lose("message", ended_, Status::closed);
  return settle_all();
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
    : TrafficEnd(comm, mix, mix.groups_open * kMaxRecvs, kMaxRecvs),
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
  renew(place * kMaxRecvs);
  if (!failure().empty()) return false;
  std::array<RecvBuffer, kMaxRecvs> buffers;
  for (std::size_t i = 0; i < group.count; ++i) {
    const Planned& m = group.messages[i];
    std::uint8_t* data = room(place * kMaxRecvs + i, next_ * kMaxRecvs + i);
    std::memset(data + m.bytes, kGuardByte, kGuard);
    buffers[i] = {data, m.capacity, m.tag, registered(place * kMaxRecvs)};
  }
  Request* request = nullptr;
  const Status s = comm_.irecv({buffers.data(), group.count}, group.optional, &request);
  if (s != Status::ok && s != Status::again) lose("irecv", next_, s);
  if (request == nullptr) return false;
  open_.push_back({next_++, request, place});
  free_.pop_back();
  return true;
}

// A receive, or a flush of one, that has ended.  False: it goes on as a flush.
bool TrafficReceiver::take(Open& open, const PlannedGroup& group, const Completion& c) {
  open.request = nullptr;
  if (std::exchange(open.flush, false)) return true;
  if (c.count != static_cast<int>(group.count))
    fail("%d messages in a group of %zu", c.count, group.count);
  for (std::size_t m = 0; m < group.count && !group.optional; ++m)
    if (c.bytes[m] != group.messages[m].bytes)
      fail("group %zu, message %zu: %zu bytes reported instead of %zu",
           static_cast<std::size_t>(open.number), m, c.bytes[m], group.messages[m].bytes);
  if (group.optional || mix_.flushed_one_in == 0 ||
      random(static_cast<std::size_t>(mix_.flushed_one_in)) != 0)
    return true;
  open.request = flush(group, open);
  open.flush = open.request != nullptr;
  return !open.flush;
}

Request* TrafficReceiver::flush(const PlannedGroup& group, const Open& open) {
  std::array<RecvBuffer, kMaxRecvs> buffers;
  const std::size_t first = open.place * kMaxRecvs;
  for (std::size_t i = 0; i < group.count; ++i)
    buffers[i] = {room(first + i, open.number * kMaxRecvs + i), group.messages[i].bytes, 0,
                  registered(first)};
  Request* request = nullptr;
  const Status s = comm_.iflush({buffers.data(), group.count}, &request);
  if (s != Status::ok) lose("iflush", open.number, s);
  return request;
}

void TrafficReceiver::look_at(std::size_t i) {
  Open& open = open_[i];
  const PlannedGroup group = plan_group(mix_, open.number);
  if (open.request != nullptr) {
    Completion c;
    const Status s = open.request->test(c);
    if (s != Status::ok) {
      open.request = nullptr;  // dead
      return lose("test of receive", open.number, s);
    }
    if (!c.done || !take(open, group, c)) return;
  }
  if (!failure().empty() || (group.optional && !sent(group, open.number))) return;
  check(group, open.number, open.place, "done");
  former_[open.place] = open.number + 1;
  free_.insert(free_.begin() + static_cast<std::ptrdiff_t>(random(free_.size() + 1)), open.place);
  ended_ += group.count;
  open_.erase(open_.begin() + static_cast<std::ptrdiff_t>(i));
}

bool TrafficReceiver::settle_all() {
  for (Open& open : open_) {
    Completion c;
    if (open.request != nullptr && (open.request->test(c) != Status::ok || c.done))
      open.request = nullptr;
  }
  return std::all_of(open_.begin(), open_.end(),
                     [](const Open& o) { return o.request == nullptr; });
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
    : TrafficEnd(comm, mix, kSlots, 1), comm_(comm), marks_(marks) {
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
      renew(m.slot);
      if (!failure().empty()) return false;
      fill_message(room(m.slot, m.number), m.number, m.what.tag, m.what.bytes);
    }
    Request* request = nullptr;
    const Status s =
        comm_.isend(room(m.slot, m.number), m.what.bytes, m.what.tag, registered(m.slot), &request);
    if (s != Status::ok && s != Status::again) lose("isend", m.number, s);
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
  if (s != Status::ok) {
    under_way_.erase(under_way_.begin() + static_cast<std::ptrdiff_t>(i));  // dead
    return lose("test of send", u.number, s);
  }
  if (!c.done) return;
  if (c.bytes[0] != u.bytes) fail("%zu bytes sent instead of %zu", c.bytes[0], u.bytes);
  if (marks_ != nullptr) marks_->set(u.number);
  ++ended_;
  free_.push_back(u.slot);
  under_way_.erase(under_way_.begin() + static_cast<std::ptrdiff_t>(i));
}

bool TrafficSender::settle_all() {
  std::erase_if(under_way_, [](const UnderWay& u) {
    Completion c;
    return u.request->test(c) != Status::ok || c.done;
  });
  return under_way_.empty();
}

std::string TrafficSender::state() const {
  return "sender: " + std::to_string(waiting_) + " messages of " + std::to_string(planned_) +
         " groups not accepted, " + std::to_string(under_way_.size()) + " under way";
}

}  // namespace twinpath::test
