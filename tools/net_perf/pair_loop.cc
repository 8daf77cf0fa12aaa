#include "tools/net_perf/pair_loop.h"

#include <cstring>

namespace twinpath::tools {

PairLoop::PairLoop(Endpoint& e, const Shape& shape, Buffer& out, Buffer& in, void* out_memory,
                   void* in_memory)
    : e_(e),
      shape_(shape),
      out_(out),
      in_(in),
      out_memory_(out_memory),
      in_memory_(in_memory),
      groups_(static_cast<std::size_t>(shape.window)) {}

void PairLoop::move(std::uint64_t groups, bool stamp) {
  posted_ = sent_ = completed_ = 0;
  calls_ = {};
  // With a window, receives are posted ahead of their sends, as NCCL keeps them.
  const std::uint64_t window = groups_.size(), ahead = window / 2;
  while (completed_ < groups) {
    bool moved = false, stuck = false;
    if (posted_ < groups && posted_ - completed_ < window) {
      moved = post_receive();
      stuck = !moved;
    }
    if (sent_ < posted_ && (posted_ - sent_ > ahead || posted_ == groups || stuck)) {
      const bool sent = post_sends(stamp);
      moved = sent || moved;
      stuck = stuck || !sent;
    }
    // Tested only when full: tested at once, the window would never hold more than one message.
    if (stuck || posted_ - completed_ == window || posted_ == groups)
      moved = test_oldest(stamp) || moved;
    if (!moved) e_.idle();
  }
}

// False when the receiver's clear-to-send is not here yet; the next call goes on from there.
bool PairLoop::post_sends(bool stamp) {
  Group& g = slot(sent_);
  for (; g.sends_posted < shape_.group; ++g.sends_posted) {
    const int i = g.sends_posted;
    std::uint8_t* data = out_.data() + shape_.offset(0, sent_, i);
    if (stamp) {
      const std::uint64_t number = sent_ * std::uint64_t(shape_.group) + std::uint64_t(i);
      std::memcpy(data, &number, sizeof number);
    }
    void*& request = g.sends[static_cast<std::size_t>(i)];
    ++calls_.isend;
    e_.check(e_.plugin->isend(e_.sends[0], data, shape_.size, i, out_memory_, &request), "isend");
    if (request == nullptr) {
      ++calls_.in_vain;
      return false;
    }
  }
  ++sent_;
  return true;
}

bool PairLoop::post_receive() {
  Group& g = slot(posted_);
  std::array<void*, kMostGrouped> data{}, memories{};
  std::array<std::size_t, kMostGrouped> bytes{};
  std::array<int, kMostGrouped> tags{};
  for (int i = 0; i < shape_.group; ++i) {
    const auto k = static_cast<std::size_t>(i);
    data[k] = in_.data() + shape_.offset(0, posted_, i);
    bytes[k] = shape_.size;
    tags[k] = i;
    memories[k] = in_memory_;
  }
  ++calls_.irecv;
  e_.check(e_.plugin->irecv(e_.receives[0], shape_.group, data.data(), bytes.data(), tags.data(),
                            memories.data(), &g.receive),
           "irecv");
  if (g.receive == nullptr) return false;
  g.sends_posted = 0;
  g.open = shape_.group + 1;
  ++posted_;
  return true;
}

// One test of each request of the oldest group.  The receive comes first: where a fabric moves
// data while it is polled, the sends are then done at their first test.
bool PairLoop::test_oldest(bool stamp) {
  if (completed_ == posted_) return false;
  Group& g = slot(completed_);
  if (g.receive != nullptr && done(g.receive, "test of a receive")) {
    --g.open;
    if (stamp) look(completed_);
  }
  for (int i = 0; i < shape_.group; ++i) {
    void*& send = g.sends[static_cast<std::size_t>(i)];
    if (send != nullptr && done(send, "test of a send")) --g.open;
  }
  if (g.open != 0) return false;
  ++completed_;
  return true;
}

bool PairLoop::done(void*& request, const char* what) {
  int done = 0;
  std::array<int, kMostGrouped> bytes{};
  ++calls_.test;
  e_.check(e_.plugin->test(request, &done, bytes.data()), what);
  if (done != 0)
    request = nullptr;
  else
    ++calls_.in_vain;
  return done != 0;
}

void PairLoop::look(std::uint64_t group) {
  for (int i = 0; i < shape_.group; ++i) {
    const std::uint64_t number = group * std::uint64_t(shape_.group) + std::uint64_t(i);
    std::uint64_t stamp = 0;
    std::memcpy(&stamp, in_.data() + shape_.offset(0, group, i), sizeof stamp);
    if (stamp != number && wrong_++ == 0)
      first_wrong_ = "message " + std::to_string(number) + " holds " + std::to_string(stamp);
  }
}

}  // namespace twinpath::tools
