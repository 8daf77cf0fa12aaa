#include "tools/net_perf/stream.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "plugin/base/clock.h"
#include "tools/common/pattern.h"

namespace twinpath::tools {
namespace {

constexpr int kMostGrouped = 8;

std::string progress_of(const char* what, std::uint64_t done, std::uint64_t total) {
  return std::string(what) + " " + std::to_string(done) + " of " + std::to_string(total);
}

}  // namespace

std::uint64_t Shape::seed(int connection, std::uint64_t message) const {
  return pattern_seed(salt, static_cast<std::uint64_t>(connection), message);
}

// --- SendStream -----------------------------------------------------------------------

SendStream::SendStream(Endpoint& endpoint, const Shape& shape, Buffer& buffer,
                       const std::vector<void*>& memories)
    : e_(endpoint),
      shape_(shape),
      buffer_(buffer),
      memories_(memories),
      lanes_(static_cast<std::size_t>(shape.connections)) {
  for (Lane& lane : lanes_)
    lane.requests.resize(static_cast<std::size_t>(shape.window * shape.group));
}

void SendStream::start(std::uint64_t groups, Check check) {
  check_ = check;
  total_ = groups * static_cast<std::uint64_t>(shape_.group);
  left_ = total_ * lanes_.size();
  for (Lane& lane : lanes_) lane.posted = lane.completed = 0;
}

bool SendStream::step() {
  bool moved = false;
  for (int c = 0; c < shape_.connections; ++c) moved = step_lane(c) || moved;
  return moved;
}

bool SendStream::step_lane(int c) {
  Lane& lane = lanes_[static_cast<std::size_t>(c)];
  bool moved = false;
  if (shape_.one_post) {
    moved = post(c, lane);
    // Tested only when full: tested at once, the window would never hold more than one message.
    const bool full = lane.posted - lane.completed == lane.requests.size();
    if (!moved || full) moved = test_oldest(lane) || moved;
    return moved;
  }
  while (post(c, lane)) moved = true;
  while (test_oldest(lane)) moved = true;
  return moved;
}

// False: nothing left to post, no room in the window, or the receiver is not ready.
bool SendStream::post(int c, Lane& lane) {
  if (lane.posted == total_ || lane.posted - lane.completed == lane.requests.size()) return false;
  const auto n = static_cast<std::uint64_t>(shape_.group);
  const std::uint64_t m = lane.posted, group = m / n;
  const int sub = static_cast<int>(n - 1 - m % n);
  const std::size_t offset = shape_.offset(c, group, sub);
  const std::uint64_t message = group * n + static_cast<std::uint64_t>(sub);
  const std::size_t bytes = shape_.bytes_of(message, check_);
  if (check_ == Check::full)
    buffer_.write_pattern(offset, bytes, shape_.seed(c, message));
  else if (check_ == Check::stamp)
    std::memcpy(buffer_.data() + offset, &message, sizeof message);
  void*& request = lane.requests[m % lane.requests.size()];
  e_.check(e_.plugin->isend(e_.sends[static_cast<std::size_t>(c)], buffer_.data() + offset, bytes,
                            sub, memories_[static_cast<std::size_t>(c)], &request),
           "isend");
  if (request == nullptr) return false;
  ++lane.posted;
  return true;
}

bool SendStream::test_oldest(Lane& lane) {
  if (lane.completed == lane.posted) return false;
  int done = 0, bytes = 0;
  e_.check(e_.plugin->test(lane.requests[lane.completed % lane.requests.size()], &done, &bytes),
           "test of a send");
  if (done == 0) return false;
  ++lane.completed;
  --left_;
  return true;
}

std::string SendStream::progress() const {
  const std::uint64_t all = total_ * lanes_.size();
  return progress_of("sent", all - left_, all);
}

// --- RecvStream -----------------------------------------------------------------------

RecvStream::RecvStream(Endpoint& endpoint, const Shape& shape, Buffer& buffer,
                       const std::vector<void*>& memories)
    : e_(endpoint),
      shape_(shape),
      buffer_(buffer),
      memories_(memories),
      lanes_(static_cast<std::size_t>(shape.connections)) {
  for (Lane& lane : lanes_) lane.requests.resize(static_cast<std::size_t>(shape.window));
}

void RecvStream::start(std::uint64_t groups, Check check) {
  check_ = check;
  total_ = groups;
  left_ = groups * lanes_.size();
  for (Lane& lane : lanes_) lane.posted = lane.completed = 0;
}

bool RecvStream::step() {
  bool moved = false;
  for (int c = 0; c < shape_.connections; ++c) moved = step_lane(c) || moved;
  return moved;
}

bool RecvStream::post(int c, Lane& lane) {
  if (lane.posted == total_ || lane.posted - lane.completed == lane.requests.size()) return false;
  std::array<void*, kMostGrouped> data{}, memories{};
  std::array<std::size_t, kMostGrouped> bytes{};
  std::array<int, kMostGrouped> tags{};
  for (int i = 0; i < shape_.group; ++i) {
    const auto k = static_cast<std::size_t>(i);
    data[k] = buffer_.data() + shape_.offset(c, lane.posted, i);
    bytes[k] = shape_.size;
    tags[k] = i;
    memories[k] = memories_[static_cast<std::size_t>(c)];
  }
  // The last one of a run tells when all data is there, so it is never optional.
  const bool optional = e_.options.optional_recv && shape_.group == 1 && lane.posted + 1 != total_;
  void*& request = lane.requests[lane.posted % lane.requests.size()];
  request = optional ? optional_completion() : nullptr;
  e_.check(e_.plugin->irecv(e_.receives[static_cast<std::size_t>(c)], shape_.group, data.data(),
                            bytes.data(), tags.data(), memories.data(), &request),
           "irecv");
  if (request == nullptr) return false;
  ++lane.posted;
  return true;
}

bool RecvStream::step_lane(int c) {
  Lane& lane = lanes_[static_cast<std::size_t>(c)];
  bool moved = false;
  if (shape_.one_post) {
    moved = post(c, lane);
    const bool full = lane.posted - lane.completed == lane.requests.size();
    if (!moved || full) moved = test_oldest(c, lane) || moved;
    return moved;
  }
  while (test_oldest(c, lane)) moved = true;
  while (post(c, lane)) moved = true;
  return moved;
}

bool RecvStream::test_oldest(int c, Lane& lane) {
  if (lane.completed == lane.posted) return false;
  int done = 0;
  std::array<int, kMostGrouped> bytes{};
  e_.check(
      e_.plugin->test(lane.requests[lane.completed % lane.requests.size()], &done, bytes.data()),
      "test of a receive");
  if (done == 0) return false;
  if (e_.props.force_flush && buffer_.on_gpu()) flush(c, lane.completed, bytes.data());
  received(c, lane.completed, bytes.data());
  ++lane.completed;
  --left_;
  return true;
}

void RecvStream::flush(int c, std::uint64_t group, const int* bytes) {
  std::array<void*, kMostGrouped> data{}, memories{};
  std::array<int, kMostGrouped> sizes{};
  for (int i = 0; i < shape_.group; ++i) {
    const auto k = static_cast<std::size_t>(i);
    data[k] = buffer_.data() + shape_.offset(c, group, i);
    memories[k] = memories_[static_cast<std::size_t>(c)];
    sizes[k] = bytes[i];
  }
  void* request = nullptr;
  e_.check(e_.plugin->iflush(e_.receives[static_cast<std::size_t>(c)], shape_.group, data.data(),
                             sizes.data(), memories.data(), &request),
           "iflush");
  int done = request == nullptr ? 1 : 0;
  while (done == 0) {
    e_.check(e_.plugin->test(request, &done, nullptr), "test of a flush");
    if (done == 0) e_.idle();
  }
}

void RecvStream::received(int c, std::uint64_t group, const int* bytes) {
  if (check_ == Check::none) return;
  const bool optional = e_.options.optional_recv && shape_.group == 1 && group + 1 != total_;
  for (int i = 0; i < shape_.group; ++i) {
    const std::uint64_t m =
        group * static_cast<std::uint64_t>(shape_.group) + static_cast<std::uint64_t>(i);
    const std::size_t offset = shape_.offset(c, group, i);
    if (check_ == Check::stamp) {
      std::uint64_t stamp = 0;
      std::memcpy(&stamp, buffer_.data() + offset, sizeof stamp);
      if (!optional && stamp != m) count_wrong(c, m, "holds message " + std::to_string(stamp));
      continue;
    }
    const std::size_t want = shape_.bytes_of(m, check_);
    if (!optional && static_cast<std::size_t>(bytes[i]) != want)
      count_wrong(c, m,
                  "is reported with " + std::to_string(bytes[i]) + " bytes instead of " +
                      std::to_string(want));
    std::ptrdiff_t at = buffer_.check_pattern(offset, want, shape_.seed(c, m));
    // Completion was waived: the data may come a little later, but it must come.
    const std::int64_t patience = now_ns() + kSecond;
    while (optional && at >= 0 && now_ns() < patience) {
      e_.idle();
      at = buffer_.check_pattern(offset, want, shape_.seed(c, m));
    }
    if (at >= 0)
      count_wrong(c, m, "differs from byte " + std::to_string(at) + " of " + std::to_string(want));
  }
}

void RecvStream::count_wrong(int c, std::uint64_t message, const std::string& what) {
  if (wrong_++ == 0)
    first_wrong_ =
        "message " + std::to_string(message) + " of connection " + std::to_string(c) + " " + what;
}

std::string RecvStream::progress() const {
  const std::uint64_t all = total_ * lanes_.size();
  return progress_of("received", all - left_, all) + (shape_.group > 1 ? " groups" : "");
}

}  // namespace twinpath::tools
