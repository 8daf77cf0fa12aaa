// bw, bibw, rate, group and step: a window of messages, timed from the first post to the last
// receive over both ends of the pair.
#include <algorithm>
#include <cstring>

#include "plugin/base/clock.h"
#include "tools/common/units.h"
#include "tools/net_perf/stream.h"
#include "tools/net_perf/tests.h"

namespace twinpath::tools {
namespace {

struct Times {
  std::int64_t begin = 0, end = 0, cpu = 0;
};

// One size in one worker.
class SizeRun {
 public:
  SizeRun(Endpoint& e, std::size_t size)
      : e_(e),
        shape_(make_shape(e.options, size)),
        out_(e.buffer(e.sends.empty() ? 0 : shape_.buffer_bytes())),
        in_(e.buffer(e.receives.empty() ? 0 : shape_.buffer_bytes())),
        out_memory_(e.register_on(e.sends, out_)),
        in_memory_(e.register_on(e.receives, in_)),
        sender_(e, shape_, out_, out_memory_),
        receiver_(e, shape_, in_, in_memory_) {}
  ~SizeRun() {
    for (std::size_t i = 0; i < out_memory_.size(); ++i)
      (void)e_.plugin->dereg_mr(e_.sends[i], out_memory_[i]);
    for (std::size_t i = 0; i < in_memory_.size(); ++i)
      (void)e_.plugin->dereg_mr(e_.receives[i], in_memory_[i]);
  }

  void run() {
    const Options& o = e_.options;
    const std::string label = std::string(test_name(o.test)) + " " + format_bytes(shape_.size);
    const double memcpy = measure_memcpy();
    if (o.verify) {
      e_.reporter.phase(label + ": verify");
      (void)move(std::max<std::uint64_t>(2 * static_cast<std::uint64_t>(shape_.window), 16),
                 Check::full);
    }
    const std::size_t per_group =
        static_cast<std::size_t>(shape_.group) * static_cast<std::size_t>(shape_.connections);
    const std::uint64_t groups = std::max<std::uint64_t>(1, iterations(o, shape_.size) / per_group);
    const std::uint64_t warmup = o.warmup_given ? o.warmup / per_group : groups / 10;
    const bool stamps = o.verify && !o.optional_recv && shape_.size >= 8 && !e_.gpu;
    const Check check = stamps ? Check::stamp : Check::none;
    e_.reporter.phase(label + ": warm up");
    if (warmup != 0) (void)move(warmup, check);
    if (o.verify) prepare_slots();
    e_.reporter.phase(label + ": measure");
    nlohmann::json reps = nlohmann::json::array();
    for (int i = 0; i < o.repeats; ++i) {
      if (o.workers > 2) e_.reporter.barrier(e_.deadline_ns);
      const Times t = move(groups, check);
      reps.push_back({t.begin, t.end, t.cpu});
    }
    if (o.verify) check_slots(groups, stamps ? 8 : 0);
    const auto wrong = receiver_.wrong() + e_.exchange(receiver_.wrong());
    if (receiver_.wrong() != 0)
      e_.reporter.result({{"wrong_detail", label + ": " + receiver_.first_wrong()}});
    if (e_.rank % 2 != 0) return;
    const std::uint64_t directions = o.test == Test::bibw ? 2 : 1;
    const std::uint64_t messages = groups * per_group * directions;
    e_.reporter.result({{"size", shape_.size},
                        {"window", shape_.window},
                        {"messages", messages},
                        {"steps", groups * directions},
                        {"bytes", messages * shape_.size},
                        {"reps", std::move(reps)},
                        {"memcpy", memcpy},
                        {"wrong", wrong}});
  }

 private:
  static Shape make_shape(const Options& o, std::size_t size) {
    Shape s;
    s.size = size;
    s.group = o.group;
    s.connections = o.connections[0];
    s.one_post = o.loop == LoopKind::poll;
    s.salt = size + 1;
    constexpr std::size_t kMostBytes = std::size_t{256} << 20;
    const std::size_t one = s.slot_bytes() * static_cast<std::size_t>(s.connections);
    s.window = static_cast<int>(
        std::clamp<std::size_t>(kMostBytes / one, 1, static_cast<std::size_t>(o.window)));
    return s;
  }

  double measure_memcpy() {
    double rate = 0;
    e_.pair_barrier();
    if (e_.rank == 0 && shape_.size != 0) {
      e_.reporter.phase("memcpy " + format_bytes(shape_.size) + std::string(kOwnWork));
      rate =
          memcpy_rate(shape_.size, shape_.slot_bytes() * static_cast<std::size_t>(shape_.window));
    }
    if (e_.options.workers > 2) e_.reporter.barrier(e_.deadline_ns);
    e_.pair_barrier();
    return rate;
  }

  // Moves `groups` per connection; the result covers both workers of the pair.
  Times move(std::uint64_t groups, Check check) {
    if (!e_.sends.empty()) sender_.start(groups, check);
    if (!e_.receives.empty()) receiver_.start(groups, check);
    const std::int64_t ahead = e_.peer_clock_ahead();
    e_.pair_barrier();
    Times mine;
    const std::int64_t cpu_before = cpu_ns();
    mine.begin = now_ns();
    while (!sender_.done() || !receiver_.done()) {
      bool moved = receiver_.step();
      moved = sender_.step() || moved;
      if (moved) continue;
      e_.idle([this] { return stuck(); });
    }
    mine.end = now_ns();
    mine.cpu = cpu_ns() - cpu_before;
    Times theirs = e_.exchange(mine);
    theirs.begin -= ahead;
    theirs.end -= ahead;
    // Threads share one process, whose CPU time both have counted.
    const std::int64_t cpu =
        e_.options.threads ? std::max(mine.cpu, theirs.cpu) : mine.cpu + theirs.cpu;
    const std::int64_t begin = std::min(mine.begin, theirs.begin);
    // Between hosts, pairs have no clock in common: each counts from its own first post.
    const std::int64_t zero = e_.options.one_clock() ? 0 : begin;
    return {begin - zero, std::max(mine.end, theirs.end) - zero, cpu};
  }
  std::string stuck() const {
    std::string text;
    if (!e_.sends.empty()) text = sender_.progress();
    if (!e_.receives.empty()) text += (text.empty() ? "" : ", ") + receiver_.progress();
    return text;
  }

  template <class F>
  void for_each_slot(F f) {
    for (int c = 0; c < shape_.connections; ++c)
      for (int g = 0; g < shape_.window; ++g)
        for (int i = 0; i < shape_.group; ++i)
          f(c, static_cast<std::uint64_t>(g), i, shape_.offset(c, static_cast<std::uint64_t>(g), i),
            shape_.seed(c, 1000000 + static_cast<std::uint64_t>(g * shape_.group + i)));
  }
  // While timing, each send slot keeps a pattern of its own, which must stand in the receive
  // slot afterwards.
  void prepare_slots() {
    if (!e_.sends.empty())
      for_each_slot([&](int, std::uint64_t, int, std::size_t offset, std::uint64_t seed) {
        out_.write_pattern(offset, shape_.size, seed);
      });
    if (!e_.receives.empty())
      for_each_slot([&](int, std::uint64_t, int, std::size_t offset, std::uint64_t) {
        in_.write_pattern(offset, shape_.size, 0);
      });
  }
  void check_slots(std::uint64_t groups, std::size_t from) {
    if (e_.receives.empty()) return;
    for_each_slot([&](int c, std::uint64_t g, int i, std::size_t offset, std::uint64_t seed) {
      if (g >= groups) return;
      if (const auto at = in_.check_pattern(offset, shape_.size, seed, from); at >= 0)
        receiver_.count_wrong(
            c, g * static_cast<std::uint64_t>(shape_.group) + static_cast<std::uint64_t>(i),
            "(timed) differs from byte " + std::to_string(at));
    });
  }

  Endpoint& e_;
  Shape shape_;
  Buffer out_, in_;
  std::vector<void*> out_memory_, in_memory_;
  SendStream sender_;
  RecvStream receiver_;
};

}  // namespace

double memcpy_rate(std::size_t size, std::size_t working_set) {
  const std::size_t slots = std::max<std::size_t>(1, working_set / size);
  Buffer from(slots * size, nullptr, false), to(slots * size, nullptr, false);
  from.write_pattern(0, slots * size, 1);
  std::size_t copies = 0;
  std::int64_t spent = 0;
  // The volatile read keeps the compiler from dropping copies nobody looks at.
  volatile std::uint8_t sink = 0;
  for (std::size_t pass = 0; spent < 50 * kMillisecond; ++pass) {
    const std::int64_t begin = now_ns();
    for (std::size_t i = 0; i < slots; ++i)
      std::memcpy(to.data() + i * size, from.data() + i * size, size);
    sink = to.data()[pass % size];
    const std::int64_t end = now_ns();
    if (pass == 0) continue;  // first touch
    spent += end - begin;
    copies += slots;
  }
  (void)sink;
  return static_cast<double>(copies * size) * 1e9 / static_cast<double>(spent);
}

void run_streams(Endpoint& e) {
  const bool both = e.options.test == Test::bibw;
  const bool sender = e.rank % 2 == 0;
  const int n = e.options.connections[0];
  e.reporter.phase("connect");
  e.connect(both || sender ? n : 0, both || !sender ? n : 0);
  const std::vector<std::size_t>& sizes = e.options.sizes;
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    e.reporter.fraction(static_cast<double>(i) / static_cast<double>(sizes.size()));
    SizeRun(e, sizes[i]).run();
  }
}

}  // namespace twinpath::tools
