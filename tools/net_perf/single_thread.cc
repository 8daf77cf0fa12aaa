// Both ends in one thread: solo (messages per second without a scheduler between the ends) and
// callgrind (one size, once, for counting instructions).
//
// NCCL's proxy works like this too: one thread drives the sends and receives of all its peers.
#include <time.h>

#include <cstdio>

#include "plugin/base/clock.h"
#include "tools/common/circumstances.h"
#include "tools/common/failure.h"
#include "tools/common/statistics.h"
#include "tools/common/table.h"
#include "tools/common/units.h"
#include "tools/net_perf/pair_loop.h"
#include "tools/net_perf/plots.h"
#include "tools/net_perf/stream.h"
#include "tools/net_perf/tests.h"

namespace twinpath::tools {
namespace {

// What this thread has computed: beside the time on the clock, as a busy machine disturbs it less.
double thread_seconds() {
  timespec t{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_nsec) / 1e9;
}

// One connection, from the first device of --dev to the second.
class Connection {
 public:
  Connection(Endpoint& e, const Shape& shape)
      : e_(e),
        out_(shape.buffer_bytes(), nullptr, false),
        in_(shape.buffer_bytes(), nullptr, false),
        out_memory_(e.register_on(e.sends, out_)),
        in_memory_(e.register_on(e.receives, in_)),
        sender_(e, shape, out_, out_memory_),
        receiver_(e, shape, in_, in_memory_),
        loop_(e, shape, out_, in_, out_memory_[0], in_memory_[0]) {}
  ~Connection() {
    e_.deregister(e_.sends, out_memory_);
    e_.deregister(e_.receives, in_memory_);
  }
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  // Seconds that it took.
  double measure(std::uint64_t groups, Check check) {
    if (e_.options.loop == LoopKind::window) return stream(groups, check);
    const std::int64_t begin = now_ns();
    loop_.move(groups, check == Check::stamp);
    return static_cast<double>(now_ns() - begin) / 1e9;
  }
  double stream(std::uint64_t groups, Check check) {
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
  const Calls& calls() const { return loop_.calls(); }
  void refuse_wrong_data() const {
    if (receiver_.wrong() != 0) throw Failure(receiver_.first_wrong());
    if (loop_.wrong() != 0) throw Failure(loop_.first_wrong());
  }

 private:
  Endpoint& e_;
  Buffer out_, in_;
  std::vector<void*> out_memory_, in_memory_;
  SendStream sender_;
  RecvStream receiver_;
  PairLoop loop_;
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
  Connection c(e, shape);
  if (o.verify) (void)c.stream(8, Check::full);
  std::vector<double> seconds, computed;
  if (o.test == Test::callgrind) {
    seconds.push_back(c.measure(groups, Check::none));
  } else {
    const bool stamps = o.verify && !o.optional_recv && shape.size >= 8;
    (void)c.measure(groups / 10 + 1, Check::none);
    for (int i = 0; i < o.repeats; ++i) {
      const double before = thread_seconds();
      seconds.push_back(c.measure(groups, stamps ? Check::stamp : Check::none));
      computed.push_back(thread_seconds() - before);
    }
  }
  c.refuse_wrong_data();
  const Statistics s = summarize(std::move(seconds));
  const auto messages = static_cast<double>(groups * per_group);
  nlohmann::json row{{"size", shape.size},
                     {"loop", loop_name(o.loop)},
                     {"group", o.group},
                     {"window", shape.window},
                     {"messages", groups * per_group},
                     {"median_messages_per_s", messages / s.median},
                     {"p99_slowest_messages_per_s", messages / s.p99},
                     {"best_messages_per_s", messages / s.min}};
  if (!computed.empty())
    row["median_cpu_ns_per_message"] = summarize(std::move(computed)).median * 1e9 / messages;
  if (o.loop != LoopKind::window) {  // of the last repetition
    const Calls& calls = c.calls();
    row["calls_per_message"] = {{"irecv", static_cast<double>(calls.irecv) / messages},
                                {"isend", static_cast<double>(calls.isend) / messages},
                                {"test", static_cast<double>(calls.test) / messages},
                                {"in_vain", static_cast<double>(calls.in_vain) / messages}};
  }
  return row;
}

void print_moved(const Options& o, const nlohmann::json& row) {
  std::printf("moved %llu messages of %zu bytes in one thread\n",
              row["messages"].get<unsigned long long>(), o.sizes[0]);
  if (!row.contains("calls_per_message")) return;
  const auto& calls = row["calls_per_message"];
  const auto each = [&](const char* key) { return fixed(calls[key].get<double>(), 3); };
  std::printf("calls a message: irecv %s, isend %s, test %s; in vain %s\n", each("irecv").c_str(),
              each("isend").c_str(), each("test").c_str(), each("in_vain").c_str());
}

// A row when it is known; what stands above the table with the first.
void print_row(const Endpoint& e, const nlohmann::json& r, bool first) {
  const Options& o = e.options;
  const Table t({{"size", "bytes", 8},
                 {"group"},
                 {"window"},
                 {"median", "msg/s", 9},
                 {"p99 slow", "msg/s"},
                 {"best", "msg/s", 9},
                 {"CPU/message", "ns"}});
  if (first) {
    std::printf(
        "%s# plugin %s (%s, net v%d), device %s\n"
        "# solo, one thread, loop '%s', %d repetitions\n",
        describe(circumstances()).c_str(), o.plugin.c_str(), e.plugin->name(), e.plugin->abi(),
        e.props.name.c_str(), loop_name(o.loop), o.repeats);
    t.header(stdout);
  }
  const auto cell = [&](const char* key) { return fixed(r[key].get<double>(), 0); };
  t.row(stdout, {format_bytes(r["size"].get<std::size_t>()), cell("group"), cell("window"),
                 cell("median_messages_per_s"), cell("p99_slowest_messages_per_s"),
                 cell("best_messages_per_s"), cell("median_cpu_ns_per_message")});
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
      shape.window = options.window;
      rows.push_back(measure(e, shape));
      if (options.test == Test::callgrind) break;
      if (!options.json) print_row(e, rows.back(), rows.size() == 1);
    }
    if (options.test == Test::callgrind)
      print_moved(options, rows[0]);
    else if (options.json)
      std::printf("%s\n",
                  json_envelope("net_perf", options_json(options), rows, kSchema).dump(2).c_str());
    if (!options.plot.empty())
      write_plots(options.plot, plot_heading(options, {}), plots_of(options, rows));
  } catch (const std::exception& e) {
    std::fprintf(stderr, "net_perf: %s\n", e.what());
    return 1;
  }
  return 0;
}

}  // namespace twinpath::tools
