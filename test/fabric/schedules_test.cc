// Schedules of faults at random: whatever happens to the ports, no byte is lost, doubled, misplaced
// or written after its buffer was given back, and all of it ends.
//
// TWINPATH_SCHEDULES says how many, TWINPATH_SCHEDULE_SEED the first one's seed; a schedule is
// there again for its seed (fault_plan.h).  10 000 of them take about a quarter of an hour.
#include <cstdio>
#include <cstdlib>
#include <map>
#include <optional>
#include <stdexcept>
#include <thread>

#include "plugin/fabric/soft/extended.h"
#include "test/fabric/staged_world.h"
#include "test/fabric/tap.h"
#include "test/fabric/watched_ends.h"
#include "test/support/needs.h"

namespace twinpath::test {
namespace {

using Fault = FaultPlan::Fault;
using Memory_ = FaultPlan::Memory;

constexpr const char* kHcas = "soft0,soft1,soft2,soft3";
// Of one schedule; the thread sanitizer takes ten times as long.
constexpr int kPatienceMs = kSanitizes ? 120'000 : 40'000;

unsigned number_of(const char* variable, unsigned otherwise) {
  const char* text = std::getenv(variable);
  return text != nullptr ? static_cast<unsigned>(std::atoi(text)) : otherwise;
}

Config config_of(const FaultPlan& p, const char* faults) {
  Config c = gpu_config(kHcas);
  c.soft_faults = faults;
  c.soft_copy_threads = 0;
  c.failover_hold_ms = 600'000;
  c.ib_qps_per_connection = p.queues;
  c.ib_split_data_on_qps = p.split;
  c.ib_adaptive_routing = p.adaptive ? 1 : 0;
  c.ib_ar_threshold = 1000;
  c.stripe_min = Bytes{p.stripe_min};
  c.measure_rails = p.measured;
  c.ib_timeout = p.ib_timeout;
  c.stall_ms = p.stall_ms;
  if (p.hasty) c.failover_pace = {20, 200, 3, 20};
  return c;
}

Use use_of(FaultPlan::Memory m) {
  return m == Memory_::staged      ? Use::staged
         : m == Memory_::up_to_64k ? Use::up_to_64k
                                   : Use::direct;
}

// The four adapters, and what the schedule does to their ports.
class Ports {
 public:
  explicit Ports(const Config& c) : fabric_(std::move(open_fabric(c)).take()) {
    for (const Port& p : fabric_->ports) contexts_[p.device] = p.context;
    REQUIRE(contexts_.size() == 4);
    mend();
  }
  ~Ports() { mend(); }
  Ports(const Ports&) = delete;
  Ports& operator=(const Ports&) = delete;
  void mend() {
    calm();
    for (int i = 0; i < 4; ++i) mend(i);
  }
  void apply(const FaultPlan::Event& e) {
    ibv_context* const c = of(e.port);
    switch (e.fault) {
      case Fault::down:
        return (void)soft::set_port_state(c, 1, false);
      case Fault::up:
        return mend(e.port);
      case Fault::silent:
        return (void)soft::set_port_loss(c, 1, soft::PortLoss::all);
      case Fault::deaf:
        return (void)soft::set_port_loss(c, 1, soft::PortLoss::incoming);
      case Fault::unheard:
        return (void)soft::set_port_loss(c, 1, soft::PortLoss::answers);
      case Fault::slow:
        return (void)soft::set_port_rate(c, 1, e.mbps);
      case Fault::all_down:
        for (int i : {e.port / 2 * 2, e.port / 2 * 2 + 1})
          (void)soft::set_port_state(of(i), 1, false);
        return;
      case Fault::mended:
        return mend();
      case Fault::error: {
        const std::lock_guard hold(Tap::mutex);
        Tap::fail_status = IBV_WC_RETRY_EXC_ERR;  // a local one twice in a row is our mistake
        Tap::fail_completion = WrKind::send_data;
        return;
      }
      case Fault::stubborn: {
        const std::lock_guard hold(Tap::mutex);
        Tap::failing_moves[e.port % 2 == 0 ? IBV_QPS_RTR : IBV_QPS_RTS] = 1 + e.port;
        return;
      }
      case Fault::sluggish:
        Tap::destroy_ms = 20;
        return;
    }
  }

 private:
  ibv_context* of(int port) { return contexts_.at("soft" + std::to_string(port)); }
  void mend(int port) {
    (void)soft::set_port_state(of(port), 1, true);
    (void)soft::set_port_loss(of(port), 1, soft::PortLoss::none);
    (void)soft::set_port_rate(of(port), 1, 0);
  }
  static void calm() {
    const std::lock_guard hold(Tap::mutex);
    Tap::fail_completion = WrKind::none;
    Tap::failing_moves.clear();
    Tap::destroy_ms = 0;
  }
  std::unique_ptr<Fabric> fabric_;
  std::map<std::string, ibv_context*> contexts_;
};

// What went wrong; empty: nothing.
std::string run_traffic(const FaultPlan& plan, Link& link, Ports& ports, FakeGpu* fake) {
  const auto memory = [&](FaultPlan::Memory m) {
    WatchedMemory w;
    if (m == Memory_::host) return w;
    w.type = MemoryType::cuda;
    w.own = [fake](void* at, std::size_t n) { fake->own(at, n); };
    w.disown = [fake](void* at, std::size_t) { fake->disown(at); };
    return w;
  };
  Course course(plan);
  WatchedSender sender(*link.send, course, memory(plan.source));
  WatchedReceiver receiver(*link.recv, course, memory(plan.landing));
  const std::int64_t begin = now_ns(), limit = begin + kPatienceMs * kMillisecond;
  std::atomic<bool> leave{false};
  std::thread other;
  if (plan.two_threads)
    other = std::thread([&] {
      while (!leave.load(std::memory_order_acquire) && !receiver.done()) {
        receiver.step();
        std::this_thread::yield();
      }
    });
  std::size_t event = 0;
  std::int64_t next = begin + 2 * kMillisecond;
  bool late = false;
  for (;;) {
    sender.step();
    if (!plan.two_threads) receiver.step();
    if (plan.two_threads) std::this_thread::yield();
    const std::int64_t now = now_ns();
    if (event < plan.events.size() && now >= next) {
      ports.apply(plan.events[event]);
      if (++event < plan.events.size())
        next = now + plan.events[event].after_us * std::int64_t{1000};
      if (event == plan.events.size()) {
        // Some more, with all of it as it was, and then the end: beyond what either has begun.
        ports.mend();
        course.groups.store(course.offered.load(std::memory_order_acquire) + 16,
                            std::memory_order_release);
      }
    }
    // The receiver's own text is its thread's until that has ended.
    if (!sender.failure.empty() || (!plan.two_threads && !receiver.failure.empty())) break;
    late = now > limit;
    if (late || (sender.done() && course.received.load(std::memory_order_acquire) >=
                                      course.groups.load(std::memory_order_acquire)))
      break;
  }
  leave.store(true, std::memory_order_release);
  if (other.joinable()) other.join();
  if (!late) receiver.look_at_rest();
  std::string wrong = sender.failure + receiver.failure;
  if (wrong.empty() && late)
    wrong = "nothing more came: " + sender.state() + ", " + receiver.state() + ", " +
            std::to_string(course.groups.load()) + " to go";
  // The comms go first: they may still write to what lies below.
  link.send.reset();
  link.recv.reset();
  return wrong;
}

std::string misfortune(const FaultPlan& plan, const char* faults) {
  std::optional<FakeGpu> fake;
  if (plan.gpu()) fake.emplace();
  Config config = config_of(plan, faults);
  // What a lost port had brought is waited for by time alone, in which the sanitizer sees no order:
  // other locks that are taken meanwhile make one.
  if (kSanitizesThreads) config.gone_rail_ms = 200;
  Ports ports(config);
  Config own = config;
  std::optional<Ends> ends;
  if (plan.merged)
    ends.emplace(use_of(plan.source), use_of(plan.landing), config, 2, Tap::on);
  else
    ends.emplace(use_of(plan.source), use_of(plan.landing), config, "soft0,soft1", "soft2,soft3",
                 Tap::on);
  Link link = ends->connect();
  std::string wrong = run_traffic(plan, link, ports, fake ? &*fake : nullptr);
  ports.mend();
  return wrong;
}

void run_schedules(unsigned count, const char* faults, bool late) {
  const unsigned first = number_of("TWINPATH_SCHEDULE_SEED", 1);
  count = number_of("TWINPATH_SCHEDULES", count);
  const std::int64_t begin = now_ns();
  for (unsigned seed = first; seed < first + count; ++seed) {
    LogCapture log;
    FaultPlan plan = plan_faults(seed);
    if (late) {  // to memory of a GPU, and nothing without a completion: it has no flush
      plan.landing = seed % 2 == 0 ? Memory_::direct : Memory_::up_to_64k;
      plan.optional_one_in = 0;
    }
    const std::string schedule = text_of(plan);
    std::string wrong;
    try {
      wrong = misfortune(plan, faults);
    } catch (const std::runtime_error& e) {
      wrong = e.what();
    }
    if (!wrong.empty()) std::printf("TWINPATH_SCHEDULE_SEED=%u TWINPATH_SCHEDULES=1\n", seed);
    std::string told;
    for (const LogLine& l : log.lines()) told += l.text.substr(0, 200) + "\n";
    CAPTURE(schedule, wrong, told);
    CHECK(wrong.empty());
    if (count >= 1000 && (seed - first + 1) % 500 == 0) {
      std::printf("%u schedules, %.0f s\n", seed - first + 1,
                  static_cast<double>(now_ns() - begin) / 1e9);
      (void)std::fflush(stdout);
    }
  }
}

TEST_CASE("whatever happens to ports, no byte is lost, doubled or written after its hand-over") {
  run_schedules(kSanitizesThreads ? 12 : kSanitizes ? 30 : 100, "", false);
}

// As behind PCIe; a program has the faults that it first opened the soft HCA with.
TEST_CASE("and when data reach the GPU late", "[.late]") {
  run_schedules(kSanitizesThreads ? 6 : kSanitizes ? 10 : 30, "late_us=300", true);
}

}  // namespace
}  // namespace twinpath::test
