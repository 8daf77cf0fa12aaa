// Sizes at their limits: the longest message, and those around where adaptive routing splits data
// from its notice.
#include <sys/mman.h>

#include <cstring>

#include "test/fabric/shapes.h"
#include "test/fabric/shuffle.h"
#include "test/fabric/traffic.h"
#include "test/support/needs.h"

namespace twinpath::test {
namespace {

// Address space without memory behind it, registered on a comm.
class Vast {
 public:
  Vast(Comm& comm, std::size_t bytes) : comm_(comm), bytes_(bytes) {
    data_ = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    REQUIRE(data_ != MAP_FAILED);
    auto made = comm.register_memory(data_, bytes, MemoryType::host, 0, -1);
    REQUIRE(made);
    memory = *made;
  }
  ~Vast() {
    (void)comm_.deregister_memory(memory);
    (void)munmap(data_, bytes_);
  }
  Vast(const Vast&) = delete;
  Vast& operator=(const Vast&) = delete;
  void* data() { return data_; }
  Memory* memory = nullptr;

 private:
  Comm& comm_;
  std::size_t bytes_;
  void* data_ = nullptr;
};

TEST_CASE("A message longer than the device's limit is refused, and the connection lives on") {
  const Shape shape = GENERATE(values<Shape>({{1, 1, false}, {2, 2, false}, {2, 2, true}}));
  INFO(shape);
  LogCapture log;
  ShapedWorld world(shape);
  auto device = world.transport->device(world.here);
  REQUIRE(device);
  const std::size_t most = device->max_message_bytes;
  Link link = world.forth();
  {
    Vast from(*link.send, most + 4096), to(*link.recv, most + 4096);
    Request* request = nullptr;
    for (const std::size_t bytes : {most + 1, most + 4096}) {
      CHECK(link.send->isend(from.data(), bytes, 7, from.memory, &request) == Status::bad_argument);
      CHECK(request == nullptr);
    }
    // Room for more than can come does no harm, and the connection is as good as new.
    Buffer small(*link.send, 100, 3);
    Request* receive = start_recv(*link.recv, {{to.data(), most + 4096, 7, to.memory}});
    CHECK(finish(start_send(*link.send, small, 100, 7, receive)).bytes[0] == 100);
    CHECK(finish(receive).bytes[0] == 100);
    CHECK(std::memcmp(to.data(), small.data(), 100) == 0);
  }
  CHECK(log.has(LogLevel::warn, std::to_string(most)));
}

// Adaptive routing may deliver a long message's parts in any order, so its notice is a write of its
// own behind the data.  False while the settings do not exist.
template <class C>
bool set_adaptive_routing(C& config, bool on, unsigned threshold) {
  if constexpr (requires {
                  config.ib_adaptive_routing;
                  config.ib_ar_threshold;
                }) {
    config.ib_adaptive_routing = on ? 1 : 0;
    if constexpr (requires { config.ib_ar_threshold.n; })
      config.ib_ar_threshold.n = threshold;
    else
      config.ib_ar_threshold = static_cast<decltype(config.ib_ar_threshold)>(threshold);
    return true;
  }
  return false;
}

TEST_CASE("Sizes around the threshold of adaptive routing arrive whole and are reported") {
  const Shape shape = GENERATE(from_range(all_shapes()));
  const bool on = GENERATE(true, false);
  const unsigned threshold = GENERATE(8192u, 100u, 0u);
  const bool overtake = GENERATE(false, true);
  INFO(shape << ", adaptive routing " << (on ? "on" : "off") << " from " << threshold
             << (overtake ? ", queues overtake each other" : ""));
  Config config = shaped_config(shape);
  NEEDS(set_adaptive_routing(config, on, threshold), "no adaptive routing");
  config.stripe_min.n = 4096;
  ShapedWorld world(shape, config, overtake ? Shuffle::on : nullptr);
  Link link = world.forth();
  Mix mix;  // half of the receives are larger than what is sent
  mix.groups = 40;
  mix.sizes = {0, 1, 64, 99, 100, 101, 4096, 8191, 8192, 8193, 16384, 70'000};
  mix.optional_one_in = 3;
  Traffic t(*link.send, *link.recv, mix);
  CHECK(drive({&t.sender, &t.receiver}) == "");
}

}  // namespace
}  // namespace twinpath::test
