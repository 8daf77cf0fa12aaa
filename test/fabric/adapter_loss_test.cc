// An adapter fails, or is unplugged, under connections that have another one.
#include <cerrno>
#include <set>

#include "plugin/fabric/soft/extended.h"
#include "test/fabric/event_feed.h"
#include "test/fabric/failover.h"

namespace twinpath::test {
namespace {

// Adapters that are no longer there, as libibverbs shows it: the event, and EIO for every call;
// with `kernel_too` also for those that the kernel answers by itself, as when it has taken them
// away.
struct Lost {
  static inline std::mutex mutex;
  static inline std::set<ibv_context*> silent, taken;
  static inline Verbs below;

  static bool is(const std::set<ibv_context*>& among, ibv_context* context) {
    const std::lock_guard hold(mutex);
    return among.count(context) != 0;
  }
  static void on(Fabric& fabric) {
    EventFeed::on(fabric);
    below = fabric.verbs;
    fabric.verbs.modify_qp = [](ibv_qp* qp, ibv_qp_attr* attr, int mask) {
      return is(silent, qp->context) ? EIO : below.modify_qp(qp, attr, mask);
    };
    fabric.verbs.query_port = [](ibv_context* c, std::uint8_t port, ibv_port_attr* attr) {
      return is(silent, c) ? EIO : below.query_port(c, port, attr);
    };
    fabric.verbs.create_comp_channel = [](ibv_context* c) -> ibv_comp_channel* {
      if (!is(taken, c)) return below.create_comp_channel(c);
      errno = EIO;
      return nullptr;
    };
  }
  // Nothing comes or goes any more, and nothing is flushed.
  static void lose(const std::string& device, bool kernel_too) {
    ibv_context* const context = Tap::context_of(device);
    (void)soft::set_port_loss(context, 1, soft::PortLoss::all);
    {
      const std::lock_guard hold(mutex);
      silent.insert(context);
      if (kernel_too) taken.insert(context);
    }
    ibv_async_event event{};
    event.event_type = IBV_EVENT_DEVICE_FATAL;
    EventFeed::send(context, event);
  }
  static void take(const std::string& device) {
    const std::lock_guard hold(mutex);
    taken.insert(Tap::context_of(device));
  }
  Lost() { forget(); }
  ~Lost() { forget(); }
  Lost(const Lost&) = delete;
  Lost& operator=(const Lost&) = delete;
  static void forget() {
    const std::lock_guard hold(mutex);
    silent.clear();
    taken.clear();
  }
};

// Its adapters' event files go last.
struct LossyWorld {
  EventFeed feed;
  Lost lost;
  FailoverWorld w;
  Link link;
  Stream stream;
  explicit LossyWorld(const Config& c)
      : w(c, Ports::merged, nullptr, Lost::on), link(w.connect()), stream(link, {}, 7) {}
};

Config with_hold(int ms) {
  Config c = FailoverWorld::config();
  c.failover_hold_ms = ms;
  return c;
}

TEST_CASE("an adapter that is unplugged is left for the other one, at either end") {
  const std::string which = GENERATE("soft0", "soft1", "soft2", "soft3");
  CAPTURE(which);
  LogCapture log;
  LossyWorld w(with_hold(10000));
  CHECK(w.stream.run(50));
  Lost::lose(which, true);
  const std::uint64_t then = w.stream.received();
  CHECK(w.stream.run(then + 200));
  CAPTURE(w.stream.failure, log.warnings());
  CHECK(log.has(LogLevel::warn, which + " failed"));
  CHECK(log.has("goes on over " + std::string(which == "soft0"   ? "soft1"
                                              : which == "soft1" ? "soft0"
                                              : which == "soft2" ? "soft3"
                                                                 : "soft2")));
  CHECK_FALSE(log.has("is lost"));
  // For good: what is plugged in again is another adapter.
  (void)soft::set_port_loss(Tap::context_of(which), 1, soft::PortLoss::none);
  CHECK(w.stream.run_for(300));
  CHECK(w.stream.finish());
}

TEST_CASE(
    "what failed is waited for until the kernel has taken it away, for nothing is sure before") {
  const std::string which = GENERATE("soft1", "soft3");
  CAPTURE(which);
  LogCapture log;
  LossyWorld w(with_hold(20000));
  CHECK(w.stream.run(50));
  Lost::lose(which, false);
  CHECK(w.stream.run_for(1500));
  CHECK_FALSE(log.has("goes on over"));
  Lost::take(which);
  CHECK(w.stream.run(w.stream.received() + 200));
  CAPTURE(w.stream.failure, log.warnings());
  CHECK(log.has("goes on over"));
}

TEST_CASE(
    "a failed adapter that the kernel keeps ends its connections when the hold time is over") {
  const std::string which = GENERATE("soft1", "soft3");
  CAPTURE(which);
  LogCapture log;
  LossyWorld w(with_hold(300));
  CHECK(w.stream.run(50));
  Lost::lose(which, false);
  CHECK_FALSE(w.stream.run_for(10000));
  CAPTURE(w.stream.failure, log.warnings());
  CHECK(log.has("the local device " + which + " failed, and its driver does not take it away"));
  CHECK(log.has("dmesg"));
}

TEST_CASE("what an adapter acknowledged and never told of ends its connection") {
  const std::string which = GENERATE("soft2", "soft3");
  CAPTURE(which);
  LogCapture log;
  LossyWorld w(with_hold(10000));
  CHECK(w.stream.run(50));
  Tap::dumb = Tap::context_of(which);
  CHECK(w.stream.run_for(200));
  Lost::lose(which, true);
  CHECK_FALSE(w.stream.run_for(10000));
  CAPTURE(w.stream.failure, log.warnings());
  CHECK(log.has("between acknowledging a message and telling of it"));
  CHECK(log.has("is lost"));
}

TEST_CASE("memory that a peer's adapter refuses once is no end, and twice is") {
  const bool again = GENERATE(false, true);
  CAPTURE(again);
  LogCapture log;
  LossyWorld w(with_hold(10000));
  CHECK(w.stream.run(50));
  Tap::fail_all = again;
  Tap::fail_completion = WrKind::send_data;  // with a remote access error
  if (again) {
    CHECK_FALSE(w.stream.run_for(10000));
    CHECK(log.has("data write failed with remote access error"));
    CHECK(log.has("is lost"));
  } else {
    CHECK(w.stream.run(w.stream.received() + 200));
    CHECK(log.has("goes on over"));
  }
  CAPTURE(w.stream.failure, log.warnings());
}

TEST_CASE("both adapters of an end fail: its connections end by the name of one") {
  LogCapture log;
  LossyWorld w(with_hold(2000));
  CHECK(w.stream.run(50));
  Lost::lose("soft0", true);
  Lost::lose("soft1", true);
  CHECK_FALSE(w.stream.run_for(10000));
  CAPTURE(w.stream.failure, log.warnings());
  CHECK(log.has("is lost"));
  CHECK(log.has(LogLevel::warn, "soft0 failed"));
}

}  // namespace
}  // namespace twinpath::test
