#pragma once
// A window of messages over all connections of one direction: the engine of bw, bibw, rate,
// group and step.  Both classes are stepped by the caller's loop, so that one thread can drive both
// directions, or both ends.
//
// Message m of a connection belongs to group m / n and is told apart in it by tag m % n; the
// sender sends a group's messages in reverse tag order.  Group g uses buffer slot g % window.
#include <cstdint>
#include <string>
#include <vector>

#include "tools/net_perf/endpoint.h"

namespace twinpath::tools {

enum class Check {
  none,
  stamp,  // first word of every message is its number (host memory, 8 bytes and more)
  full    // every message has a pattern and sometimes another size; every byte is compared
};

struct Shape {
  std::size_t size = 0;
  int group = 1;
  int window = 1;  // groups in flight per connection
  int connections = 1;
  bool one_post = false;   // a step posts once and tests once (--loop poll)
  std::uint64_t salt = 0;  // of the payload patterns; equal at both ends

  std::size_t slot_bytes() const { return ((size + 63) / 64 * 64 + 64) * std::size_t(group); }
  std::size_t buffer_bytes() const {
    return slot_bytes() * std::size_t(window) * std::size_t(connections);
  }
  // Where sub-message `sub` of slot `slot` lies.
  std::size_t offset(int connection, std::uint64_t group_number, int sub) const {
    const auto slot = std::size_t(connection) * std::size_t(window) +
                      std::size_t(group_number % std::uint64_t(window));
    return slot * slot_bytes() + std::size_t(sub) * (slot_bytes() / std::size_t(group));
  }
  // In full checks some messages are shorter than the buffer that receives them.
  std::size_t bytes_of(std::uint64_t message, Check check) const {
    return check == Check::full && size >= 64 ? size - 8 * std::size_t(message % 3) : size;
  }
  std::uint64_t seed(int connection, std::uint64_t message) const;
};

class SendStream {
 public:
  SendStream(Endpoint& endpoint, const Shape& shape, Buffer& buffer,
             const std::vector<void*>& memories);
  void start(std::uint64_t groups, Check check);  // per connection
  bool step();                                    // false: nothing moved
  bool done() const { return left_ == 0; }
  std::string progress() const;

 private:
  struct Lane {
    std::uint64_t posted = 0, completed = 0;  // messages
    std::vector<void*> requests;              // ring of window * group
  };
  bool step_lane(int c);
  bool post(int c, Lane& lane);
  bool test_oldest(Lane& lane);
  Endpoint& e_;
  const Shape shape_;
  Buffer& buffer_;
  const std::vector<void*>& memories_;
  std::vector<Lane> lanes_;
  std::uint64_t total_ = 0, left_ = 0;
  Check check_ = Check::none;
};

class RecvStream {
 public:
  RecvStream(Endpoint& endpoint, const Shape& shape, Buffer& buffer,
             const std::vector<void*>& memories);
  void start(std::uint64_t groups, Check check);
  bool step();
  bool done() const { return left_ == 0; }
  std::string progress() const;
  std::uint64_t wrong() const { return wrong_; }  // messages, since construction
  const std::string& first_wrong() const { return first_wrong_; }
  void count_wrong(int connection, std::uint64_t message, const std::string& what);

 private:
  struct Lane {
    std::uint64_t posted = 0, completed = 0;  // groups
    std::vector<void*> requests;
  };
  bool step_lane(int c);
  bool post(int c, Lane& lane);
  bool test_oldest(int c, Lane& lane);
  void received(int c, std::uint64_t group, const int* bytes);
  void flush(int c, std::uint64_t group, const int* bytes);
  Endpoint& e_;
  const Shape shape_;
  Buffer& buffer_;
  const std::vector<void*>& memories_;
  std::vector<Lane> lanes_;
  std::uint64_t total_ = 0, left_ = 0;
  Check check_ = Check::none;
  std::uint64_t wrong_ = 0;
  std::string first_wrong_;
};

}  // namespace twinpath::tools
