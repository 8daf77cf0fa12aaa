// Events of our transport in NCCL's profilers: the built plugin over the soft HCA, and a callback
// that stands for NCCL's.  Two adapters merged, so that long messages go over both.
//
// [slow] and [flapping] need faults in the environment (meson.build).
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <deque>
#include <set>
#include <string>
#include <vector>

#include "plugin/nccl/abi/profiler.h"
#include "test/abi/built_plugin.h"
#include "test/abi/net_loop.h"
#include "test/support/catch.h"
#include "test/support/log_capture.h"

namespace twinpath::test {
namespace {

using Clock = std::chrono::steady_clock;

struct Event {
  void* parent = nullptr;
  std::int64_t kind = 0;
  abi::ncclProfilerNetIbDescr_v1_t what;
  Clock::time_point start, stop;
  int stops = 0;
};

// What NCCL and its profiler would be.
struct Profiler {
  bool wants = true;
  int calls = 0, strange = 0;
  std::deque<Event> events;

  int open() const {
    return static_cast<int>(
        std::count_if(events.begin(), events.end(), [](const Event& e) { return e.stops == 0; }));
  }
  std::vector<Event> below(const void* parent) const {
    std::vector<Event> out;
    for (const Event& e : events)
      if (e.parent == parent) out.push_back(e);
    return out;
  }
};
Profiler* g_profiler = nullptr;

// As NCCL's: where nothing is wanted, the place is not written.
abi::ncclResult_t callback(void** event, int type, void* parent, std::int64_t kind, void* what) {
  Profiler& p = *g_profiler;
  ++p.calls;
  if (type == abi::kNetEventStart) {
    if (event == nullptr || *event != nullptr || parent == nullptr || what == nullptr) ++p.strange;
    if (!p.wants) return abi::ncclSuccess;
    Event& e = p.events.emplace_back();
    e.parent = parent;
    e.kind = kind;
    e.what = *static_cast<const abi::ncclProfilerNetIbDescr_v1_t*>(what);
    e.start = Clock::now();
    *event = &e;
  } else if (type == abi::kNetEventStop && event != nullptr && *event != nullptr) {
    auto* e = static_cast<Event*>(*event);
    e->stop = Clock::now();
    ++e->stops;
  } else {
    ++p.strange;
  }
  return abi::ncclSuccess;
}

class Watched {
 public:
  Watched() { g_profiler = &profiler; }
  ~Watched() { g_profiler = nullptr; }
  Watched(const Watched&) = delete;
  AnyNet& net(int version) {
    for (auto& n : plugin.nets)
      if (n->version() == version) return *n;
    throw Failure("no such version");
  }
  // The table with NCCL's callback; two adapters as one device.
  AnyNet& merged(int version, int& device) {
    AnyNet& n = net(version);
    const Communicator first(n, current_sink());  // before it there are no devices
    n.events = callback;
    must(n.make_vdevice(&device, {0, 1}), "makeVDevice");
    return n;
  }

  LogCapture log;
  BuiltPlugin plugin;
  Profiler profiler;
};

// The same, and a communicator on the merged device.
struct Joined : Watched {
  explicit Joined(int version)
      : table(merged(version, device)), communicator(table, current_sink()) {}
  int device = -1;
  AnyNet& table;
  Communicator communicator;
};

int g_steps[16];  // what NCCL's handles point to

// Sends one message and receives it, under the handles of steps 0 and 1.
void move(AnyNet& net, Loop& loop, std::size_t bytes, unsigned seed) {
  Buffers b(net, loop, std::max<std::size_t>(bytes, 1), seed);
  net.handles = {&g_steps[1]};
  Op receive = loop.irecv({b.in.data()}, {bytes}, {5}, {b.in_mr});
  net.handles = {&g_steps[0]};
  Op send = loop.isend(b.out.data(), bytes, 5, b.out_mr, &receive);
  loop.finish({&send, &receive});
  must(send.sizes[0] == static_cast<int>(bytes) && receive.sizes[0] == static_cast<int>(bytes),
       "sizes");
  must(bytes == 0 || b.in == b.out, "data");
}

}  // namespace

TEST_CASE("each rail of a send and each buffer of a receive has an event, which ends with it",
          "[events]") {
  for (const int version : {11, 12}) {
    INFO("version " << version);
    Joined w(version);
    AnyNet& net = w.table;
    Loop loop(net, w.communicator.ctx, w.device);
    for (const std::size_t bytes : {std::size_t{0}, std::size_t{1}, std::size_t{64},
                                    std::size_t{5000}, std::size_t{3} << 20}) {
      INFO("bytes " << bytes);
      w.profiler.events.clear();
      move(net, loop, bytes, 3);
      const std::vector<Event> sent = w.profiler.below(&g_steps[0]);
      const std::vector<Event> received = w.profiler.below(&g_steps[1]);
      CHECK(w.profiler.open() == 0);
      REQUIRE(sent.size() == (bytes > 100000 ? 2 : 1));
      REQUIRE(received.size() == 1);
      CHECK(received[0].what.qp.length == bytes);
      CHECK(received[0].what.qp.opcode == 129);
      CHECK(received[0].what.qp.qpNum > 0);
      std::size_t sum = 0;
      std::set<int> devices;
      for (const Event& e : sent) {
        sum += e.what.qp.length;
        devices.insert(e.what.qp.device);
        CHECK(e.what.qp.opcode == 1);
        CHECK(e.what.qp.wr_id == sent[0].what.qp.wr_id);
      }
      CHECK(sum == bytes);
      CHECK(devices.size() == sent.size());
      CHECK(*devices.begin() >= 0);
      CHECK(*devices.rbegin() <= 1);
      for (const Event& e : w.profiler.events) {
        CHECK(e.kind == (1 << 16 | 1));
        CHECK(int{e.what.type} == 1);
        CHECK(e.stops == 1);
        CHECK(e.stop >= e.start);
      }
    }
    CHECK(w.profiler.strange == 0);
    CHECK(w.log.warnings() == std::vector<std::string>{});
  }
}

// There an unwatched message takes a shorter way.
TEST_CASE("a send over an adapter's only queue has an event, too", "[events]") {
  Joined w(12);
  Loop loop(w.table, w.communicator.ctx, 0);
  for (const std::size_t bytes : {std::size_t{64}, std::size_t{4096}, std::size_t{64}}) {
    INFO("bytes " << bytes);
    w.profiler.events.clear();
    move(w.table, loop, bytes, 3);
    const std::vector<Event> sent = w.profiler.below(&g_steps[0]);
    REQUIRE(sent.size() == 1);
    CHECK(static_cast<std::size_t>(sent[0].what.qp.length) ==
          bytes);  // of this one, not an earlier one
    CHECK(w.profiler.open() == 0);
  }
}

TEST_CASE("members of a group have their own handles, any of which may be missing", "[events]") {
  Joined w(12);
  AnyNet& net = w.table;
  Loop loop(net, w.communicator.ctx, w.device);
  constexpr std::size_t kEach = 4096;
  Buffers b(net, loop, 3 * kEach, 9);
  std::uint8_t *in = b.in.data(), *out = b.out.data();
  net.handles = {&g_steps[4], nullptr, &g_steps[6]};
  Op receive = loop.irecv({in, in + kEach, in + 2 * kEach}, {kEach, kEach, kEach}, {7, 8, 9},
                          {b.in_mr, b.in_mr, b.in_mr});
  CHECK(w.profiler.open() == 2);
  CHECK(w.profiler.below(&g_steps[4]).size() == 1);
  CHECK(w.profiler.below(&g_steps[6]).size() == 1);
  net.handles = {&g_steps[9]};
  Op third = loop.isend(out + 2 * kEach, 10, 9, b.out_mr, &receive);
  net.handles = {nullptr};
  Op first = loop.isend(out, kEach, 7, b.out_mr, &receive);
  // The group mostly waits for its last; on a busy machine the first member may have arrived.
  CHECK(w.profiler.events.size() == 3);
  CHECK(w.profiler.open() >= 2);
  net.handles.clear();
  Op second = loop.isend(out + kEach, 0, 8, b.out_mr, &receive);
  loop.finish({&first, &second, &third, &receive});
  CHECK(receive.sizes[0] == 4096);
  CHECK(receive.sizes[1] == 0);
  CHECK(receive.sizes[2] == 10);
  CHECK(w.profiler.events.size() == 3);
  CHECK(w.profiler.open() == 0);
  // Without a completion, and a flush, which has no handle.
  net.handles = {&g_steps[2]};
  send_optional(net, loop);
  flush(net, loop);
  CHECK(w.profiler.open() == 0);
  CHECK(w.profiler.strange == 0);
}

TEST_CASE("nobody is asked without a handle or a callback, or by tables before v11", "[events]") {
  Watched w;
  for (const int version : {9, 10, 11, 12}) {
    INFO("version " << version);
    AnyNet& net = w.net(version);
    net.events = version == 12 ? nullptr : callback;
    Communicator communicator(net, current_sink());
    Loop loop(net, communicator.ctx);
    if (version == 11) {
      net.handles = {nullptr};
      send_one(net, loop, 3 << 20, 1);
      net.handles.clear();
      send_one(net, loop, 100, 1);
    } else {
      move(net, loop, 3 << 20, 1);
    }
    CHECK(w.profiler.calls == 0);
  }
}

TEST_CASE("a profiler that wants none of an operation gets none of its ends", "[events]") {
  Joined w(11);
  AnyNet& net = w.table;
  Loop loop(net, w.communicator.ctx, w.device);
  w.profiler.wants = false;
  move(net, loop, 3 << 20, 1);
  CHECK(w.profiler.calls == 3);
  CHECK(w.profiler.events.empty());
  // It may change its mind at any time.
  w.profiler.wants = true;
  move(net, loop, 3 << 20, 1);
  CHECK(w.profiler.events.size() == 3);
  CHECK(w.profiler.open() == 0);
}

TEST_CASE("with our own profiler, which wants no event, nobody is asked", "[events]") {
  Watched w;
  const auto* ours = static_cast<const abi::ncclProfiler_v6_t*>(w.plugin.find("ncclProfiler_v6"));
  REQUIRE(ours != nullptr);
  int device = -1;
  AnyNet& net = w.merged(12, device);
  {
    Communicator communicator(net, current_sink());
    int mask = -1;
    void* context = nullptr;
    REQUIRE(ours->init(&context, 0x1234, &mask, "tp", 1, 2, 0, current_sink()) == abi::ncclSuccess);
    {
      Loop loop(net, communicator.ctx, device);
      move(net, loop, 3 << 20, 1);
      CHECK(w.profiler.calls == 0);
    }
    CHECK(ours->finalize(context) == abi::ncclSuccess);
  }
  // NCCL let it go with the last communicator, and may have loaded another one with the next.
  Communicator communicator(net, current_sink());
  Loop loop(net, communicator.ctx, device);
  move(net, loop, 3 << 20, 1);
  CHECK(w.profiler.events.size() == 3);
}

TEST_CASE("as many messages at once as NCCL may have, and one that never comes", "[events]") {
  Joined w(12);
  AnyNet& net = w.table;
  {
    Loop loop(net, w.communicator.ctx, w.device);
    Buffers b(net, loop, 64 << 10, 5);
    for (int round = 0; round < 20; ++round) {
      std::vector<Op> ops;
      net.handles = {&g_steps[1]};
      for (int i = 0; i < 32; ++i)
        ops.push_back(loop.irecv({b.in.data() + i * 2048}, {2048}, {1}, {b.in_mr}));
      net.handles = {&g_steps[0]};
      for (int i = 0; i < 32; ++i)
        ops.push_back(loop.isend(b.out.data() + i * 2048, 2048, 1, b.out_mr, &ops[0]));
      CHECK(w.profiler.open() >= 32);
      for (Op& op : ops) loop.finish({&op});
      CHECK(w.profiler.open() == 0);
      CHECK(b.in == b.out);
      std::fill(b.in.begin(), b.in.end(), std::uint8_t{0});
    }
    CHECK(w.profiler.events.size() == 20 * 64);
    (void)loop.irecv({b.in.data()}, {2048}, {1}, {b.in_mr});
  }
  // The comm has gone.  Whose event this one is below may have, too: nobody is told.
  CHECK(w.profiler.open() == 1);
  CHECK(w.profiler.strange == 0);
}

TEST_CASE("the event of a slow rail lasts longer than that of its sibling", "[slow]") {
  Joined w(12);
  AnyNet& net = w.table;
  // On a busy machine both may be over by the next look, or be noted late.
  bool apart = false;
  for (int tries = 0; tries < 5 && !apart; ++tries) {
    Loop loop(net, w.communicator.ctx, w.device);
    w.profiler.events.clear();
    // The first message is cut by the ports' speeds: half of it goes over the throttled one.
    move(net, loop, 8 << 20, 1);
    const std::vector<Event> sent = w.profiler.below(&g_steps[0]);
    REQUIRE(sent.size() == 2);
    const Event& fast = sent[sent[0].what.qp.device == 0 ? 0 : 1];
    const Event& slow = sent[sent[0].what.qp.device == 0 ? 1 : 0];
    CHECK(slow.what.qp.device == 1);
    // 4 MiB at 400 Mb/s are 84 ms.
    apart = slow.stop - slow.start > std::chrono::milliseconds(60) &&
            fast.stop < slow.stop - std::chrono::milliseconds(20);
  }
  CHECK(apart);
}

TEST_CASE("events end once each while ports go down and come back", "[flapping]") {
  Joined w(12);
  AnyNet& net = w.table;
  Loop loop(net, w.communicator.ctx, w.device);
  const auto end = Clock::now() + std::chrono::milliseconds(1500);
  unsigned rounds = 0;
  // On a busy machine a round may take a quarter of a second.
  while (Clock::now() < end || rounds <= 10) {
    move(net, loop, rounds % 2 == 0 ? 3 << 20 : 3000, rounds);
    ++rounds;
    REQUIRE(w.profiler.open() == 0);
  }
  std::set<int> devices;
  for (const Event& e : w.profiler.events) {
    CHECK(e.stops == 1);
    if (e.parent == &g_steps[0]) devices.insert(e.what.qp.device);
  }
  CHECK(devices == std::set<int>{0, 1});
  CHECK(w.profiler.strange == 0);
  CHECK(w.log.has("goes on over"));
}

}  // namespace twinpath::test
