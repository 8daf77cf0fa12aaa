#pragma once
// The loops of --loop with both ends in one thread, in as few lines as can be: whatever plugin is
// measured, the calls that it gets are the same.
//
//   one    irecv, isend, test, test: one message at a time
//   group  one irecv of n buffers, n isends, then tests: one group at a time
//   poll   a full window, half of it sent; each round posts one irecv and one isend and tests the
//          oldest of each
// All three are one loop: post while the window has room, test the oldest when it has none.
#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "tools/net_perf/endpoint.h"
#include "tools/net_perf/stream.h"

namespace twinpath::tools {

struct Calls {
  std::uint64_t irecv = 0, isend = 0, test = 0;
  std::uint64_t in_vain = 0;  // isend without a request, test of something not done
};

// From the endpoint's first send connection to its first receive connection.
class PairLoop {
 public:
  PairLoop(Endpoint& e, const Shape& shape, Buffer& out, Buffer& in, void* out_memory,
           void* in_memory);
  // With `stamp` each message carries its number, and the receiver looks at it.
  void move(std::uint64_t groups, bool stamp);
  const Calls& calls() const { return calls_; }
  std::uint64_t wrong() const { return wrong_; }
  const std::string& first_wrong() const { return first_wrong_; }

 private:
  static constexpr std::size_t kMostGrouped = 8;
  struct Group {
    void* receive = nullptr;
    std::array<void*, kMostGrouped> sends{};
    int sends_posted = 0;
    int open = 0;  // requests not yet done
  };
  Group& slot(std::uint64_t group) { return groups_[group % groups_.size()]; }
  bool post_receive();
  bool post_sends(bool stamp);
  bool test_oldest(bool stamp);
  bool done(void*& request, const char* what);
  void look(std::uint64_t group);

  Endpoint& e_;
  const Shape shape_;
  Buffer &out_, &in_;
  void *out_memory_, *in_memory_;
  std::vector<Group> groups_;                            // ring, as large as the window
  std::uint64_t posted_ = 0, sent_ = 0, completed_ = 0;  // receives, their sends, all done
  Calls calls_;
  std::uint64_t wrong_ = 0;
  std::string first_wrong_;
};

}  // namespace twinpath::tools
