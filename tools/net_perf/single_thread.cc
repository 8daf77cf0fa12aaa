// Both ends in one thread: solo (messages per second without a scheduler between the ends) and
// callgrind (one size, once, for counting instructions).
//
// NCCL's proxy works like this too: one thread drives the sends and receives of all its peers.
#include <cstdio>

#include "plugin/base/clock.h"
#include "tools/common/circumstances.h"
#include "tools/common/failure.h"
#include "tools/common/statistics.h"
#include "tools/common/table.h"
#include "tools/common/units.h"
#include "tools/net_perf/stream.h"
#include "tools/net_perf/tests.h"

namespace twinpath::tools {
namespace {

// One connection, from the first device of --dev to the second.
class Loop {
 public:
  Loop(Endpoint& e, const Shape& shape)
      : e_(e),
        out_(shape.buffer_bytes(), nullptr, false),
        in_(shape.buffer_bytes(), nullptr, false),
        out_memory_(e.register_on(e.sends, out_)),
        in_memory_(e.register_on(e.receives, in_)),
        sender_(e, shape, out_, out_memory_),
        receiver_(e, shape, in_, in_memory_) {}
  ~Loop() {
    e_.deregister(e_.sends, out_memory_);
    e_.deregister(e_.receives, in_memory_);
  }
  Loop(const Loop&) = delete;
  Loop& operator=(const Loop&) = delete;

  // Seconds that it took.
  double move(std::uint64_t groups, Check check) {
    sender_.start(groups, check);
    receiver_.start(groups, check);
    const std::int64_t begin = now_ns();
    while (!sender_.done() || !receiver_.done()) {
      bool moved = receiver_.step();
      moved = sender_.step() || moved;
      if (!moved) e_.idle();
    }
    return static_cast<double>(now_ns() - begin) / 1e9;
  }
  const RecvStream& receiver() const { return receiver_; }

 private:
  Endpoint& e_;
  Buffer out_, in_;
  std::vector<void*> out_memory_, in_memory_;
  SendStream sender_;
  RecvStream receiver_;
};

void connect_to_itself(Endpoint& e) {
  const Options& o = e.options;
  const int to = e.find_device(o.devices[1 % o.devices.size()]);
  NetHandle handle{};
  void *listener = nullptr, *send = nullptr, *recv = nullptr;
  e.check(e.plugin->listen(to, handle, &listener), "listen");
  while (send == nullptr || recv == nullptr) {
    if (send == nullptr) e.check(e.plugin->connect(e.device, handle, &send), "connect");
    if (recv == nullptr) e.check(e.plugin->accept(listener, &recv), "accept");
    e.idle();
  }
  e.check(e.plugin->close_listen(listener), "closeListen");
  e.sends = {send};
  e.receives = {recv};
}

nlohmann::json measure(Endpoint& e, const Shape& shape) {
  const Options& o = e.options;
  const auto per_group = static_cast<std::size_t>(o.group);
  const std::uint64_t groups = std::max<std::uint64_t>(1, iterations(o, shape.size) / per_group);
  Loop loop(e, shape);
  if (o.verify) (void)loop.move(8, Check::full);
  std::vector<double> seconds;
  if (o.test == Test::callgrind) {
    seconds.push_back(loop.move(groups, Check::none));
  } else {
    const bool stamps = o.verify && !o.optional_recv && shape.size >= 8;
    (void)loop.move(groups / 10 + 1, Check::none);
    for (int i = 0; i < o.repeats; ++i)
      seconds.push_back(loop.move(groups, stamps ? Check::stamp : Check::none));
  }
  if (loop.receiver().wrong() != 0) throw Failure(loop.receiver().first_wrong());
  const Summary s = summarize(std::move(seconds));
  const auto messages = static_cast<double>(groups * per_group);
  return {{"size", shape.size},
          {"group", o.group},
          {"window", shape.window},
          {"messages", groups * per_group},
          {"median_messages_per_s", messages / s.median},
          {"p99_slowest_messages_per_s", messages / s.p99},
          {"best_messages_per_s", messages / s.min}};
}

void print(const Endpoint& e, const nlohmann::json& rows) {
  const Options& o = e.options;
  if (o.test == Test::callgrind) {
    std::printf("moved %llu messages of %zu bytes in one thread\n",
                rows[0]["messages"].get<unsigned long long>(), o.sizes[0]);
    return;
  }
  if (o.json) {
    std::printf("%s\n", json_envelope("net_perf", options_json(o), rows).dump(2).c_str());
    return;
  }
  std::printf("%s# plugin %s (%s, net v%d), device %s\n# solo, one thread, %d repetitions\n",
              describe(circumstances()).c_str(), o.plugin.c_str(), e.plugin->name(),
              e.plugin->abi(), e.props.name.c_str(), o.repeats);
  Table t({{"size", "bytes", 8},
           {"group"},
           {"window"},
           {"median", "msg/s", 9},
           {"p99 slow", "msg/s"},
           {"best", "msg/s"}});
  const auto cell = [](const nlohmann::json& r, const char* key) {
    return fixed(r[key].get<double>(), 0);
  };
  for (const auto& r : rows)
    t.add({format_bytes(r["size"].get<std::size_t>()), cell(r, "group"), cell(r, "window"),
           cell(r, "median_messages_per_s"), cell(r, "p99_slowest_messages_per_s"),
           cell(r, "best_messages_per_s")});
  t.print(stdout);
}

}  // namespace

int run_single_thread(const Options& options) {
  auto [control_mine, control_parent] = Channel::pair();
  auto [a, b] = Channel::pair();
  Reporter reporter(std::move(control_mine));
  try {
    // Both ends in one endpoint: what it sends on one channel it receives on the other.
    Endpoint e(options, 0, reporter, a);
    reporter.phase("connect");
    connect_to_itself(e);
    reporter.phase("move");
    nlohmann::json rows = nlohmann::json::array();
    for (const std::size_t size : options.sizes) {
      Shape shape;
      shape.size = size;
      shape.group = options.group;
      shape.window = options.window_given || options.test == Test::solo ? options.window : 1;
      rows.push_back(measure(e, shape));
      if (options.test == Test::callgrind) break;
    }
    print(e, rows);
  } catch (const std::exception& e) {
    std::fprintf(stderr, "net_perf: %s\n", e.what());
    return 1;
  }
  return 0;
}

}  // namespace twinpath::tools
