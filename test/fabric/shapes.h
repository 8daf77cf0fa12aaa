#pragma once
// Connections of every shape that settings can give: queues, rails, split or not.
//
// TWINPATH_TEST_RAILS=N takes the machine's adapters in place of the soft HCA: the first N are one
// end and the next N the other, each linked with its opposite, as pair2 of test/vm/rxe-run with 2.
#include <algorithm>
#include <ostream>
#include <utility>
#include <vector>

#include "test/fabric/world.h"
#include "test/support/needs.h"
#include "test/support/numbers.h"

namespace twinpath::test {

struct Shape {
  int queues = 1;  // per connection and rail
  int rails = 1;   // devices merged at each end
  bool split = false;
  friend std::ostream& operator<<(std::ostream& out, const Shape& s) {
    return out << s.queues << " queues, " << s.rails << " rails, " << (s.split ? "split" : "whole");
  }
};

inline std::vector<Shape> all_shapes() {
  std::vector<Shape> shapes;
  for (const int queues : {1, 2, 4})
    for (const int rails : {1, 2, 3})
      for (const bool split : {false, true})
        // Under sanitizers the outer ones.
        if ((real_rails() == 0 || rails <= real_rails()) &&
            !(kSanitizes && (queues == 2 || rails == 2)))
          shapes.push_back({queues, rails, split});
  return shapes;
}

inline Config shaped_config(const Shape& shape) {
  Config c = soft_config(std::to_string(2 * shape.rails));
  if (real_rails() > 0)
    c.ib_timeout = 16;  // 0.3 s: what is lost comes again before a test gives up
  c.ib_qps_per_connection = shape.queues;
  c.ib_split_data_on_qps = shape.split;
  // A port that a busy machine keeps from answering would pass for a dead one, with a warning.  Who
  // drives the traffic tells sooner of one that really stands still.
  c.stall_ms = 60'000;
  return c;
}

// The device of one end: 0 or 1.
inline int shaped_device(Transport& transport, const Shape& shape, int end) {
  const int first = end * std::max(shape.rails, real_rails());
  if (shape.rails == 1) return first;
  std::vector<int> members;
  for (int i = 0; i < shape.rails; ++i) members.push_back(first + i);
  return merge_devices(transport, members);
}

// Two sessions joined by connections of one shape, both ways.
struct ShapedWorld : World {
  // `adjust` as for World.
  explicit ShapedWorld(const Shape& shape, void (*adjust)(Fabric&) = nullptr)
      : ShapedWorld(shape, shaped_config(shape), adjust) {}
  ShapedWorld(const Shape& shape, const Config& c, void (*adjust)(Fabric&) = nullptr)
      : World(c, -1, adjust),
        here(shaped_device(*transport, shape, 0)),
        there(shaped_device(*transport, shape, 1)) {}
  // Session a sends.
  Link forth() { return connect(here, there); }
  // Session b sends.
  Link back() {
    std::swap(a, b);
    Link link = connect(there, here);
    std::swap(a, b);
    return link;
  }
  const int here, there;
};

}  // namespace twinpath::test
