// A completion queue fails: what hangs on it fails or moves, and its adapter serves all else.
#include <algorithm>
#include <atomic>
#include <map>
#include <mutex>
#include <set>

#include "proxy/queues/completion_engine.h"
#include "test/fabric/event_feed.h"
#include "test/fabric/failover.h"

namespace twinpath::test {
namespace {

// Completion queues that fail: nothing is told there any more, though their queue pairs may go on.
struct CqLoss {
  static inline std::mutex mutex;
  static inline std::vector<ibv_cq*> made;
  static inline std::set<const ibv_cq*> dead;
  static inline std::atomic<int> swallowed = 0;  // receives that were not told of
  static inline std::map<ibv_qp*, const ibv_cq*> pairs;
  static inline bool early = false;  // soft2 or soft3 made a pair while there was one of a dead CQ
  static inline Verbs below;
  static inline decltype(ibv_context_ops::poll_cq) poll_below = nullptr;

  static void on(Fabric& fabric) {
    EventFeed::on(fabric);
    below = fabric.verbs;
    fabric.verbs.create_cq = [](ibv_context* context, int entries, void* user,
                                ibv_comp_channel* channel, int vector) {
      ibv_cq* const cq = below.create_cq(context, entries, user, channel, vector);
      const std::lock_guard hold(mutex);
      made.push_back(cq);
      return cq;
    };
    fabric.verbs.destroy_cq = [](ibv_cq* cq) {
      {
        const std::lock_guard hold(mutex);
        std::erase(made, cq);
        dead.erase(cq);
      }
      return below.destroy_cq(cq);
    };
    fabric.verbs.create_qp = [](ibv_pd* pd, ibv_qp_init_attr* init) {
      ibv_qp* const qp = below.create_qp(pd, init);
      const std::lock_guard hold(mutex);
      if (qp == nullptr) return qp;
      for (const auto& [other, cq] : pairs) early = early || (receives(qp) && dead.count(cq) != 0);
      pairs[qp] = init->recv_cq;
      return qp;
    };
    fabric.verbs.destroy_qp = [](ibv_qp* qp) {
      const int error = below.destroy_qp(qp);
      const std::lock_guard hold(mutex);
      pairs.erase(qp);
      return error;
    };
    // Nobody waits for an event that was made up.
    fabric.verbs.ack_async_event = [](ibv_async_event* event) {
      if (event->event_type != IBV_EVENT_CQ_ERR) below.ack_async_event(event);
    };
    for (const Port& port : fabric.ports) {
      auto& ops = port.context->ops;
      if (ops.poll_cq == poll) continue;  // another port of this context
      poll_below = ops.poll_cq;
      ops.poll_cq = poll;
    }
  }
  static bool receives(const ibv_qp* qp) {
    return qp->context == Tap::context_of(as_called("soft2")) ||
           qp->context == Tap::context_of(as_called("soft3"));
  }
  static int poll(ibv_cq* cq, int most, ibv_wc* wc) {
    const int n = poll_below(cq, most, wc);
    const std::lock_guard hold(mutex);
    if (dead.count(cq) == 0) return n;
    for (int i = 0; i < n; ++i) swallowed += (wc[i].opcode & IBV_WC_RECV) != 0;
    return 0;
  }
  // The one that was made last.
  static ibv_cq* of(const std::string& device) {
    const std::lock_guard hold(mutex);
    const auto found = std::find_if(made.rbegin(), made.rend(), [&](const ibv_cq* cq) {
      return cq->context == Tap::context_of(as_called(device));
    });
    REQUIRE(found != made.rend());
    return *found;
  }
  static void silence(ibv_cq* cq) {
    const std::lock_guard hold(mutex);
    dead.insert(cq);
  }
  static void tell(ibv_cq* cq) {
    ibv_async_event event{};
    event.event_type = IBV_EVENT_CQ_ERR;
    event.element.cq = cq;
    EventFeed::send(cq->context, event);
  }
  static void fail(ibv_cq* cq) {
    silence(cq);
    tell(cq);
  }
  CqLoss() { forget(); }
  ~CqLoss() { forget(); }
  CqLoss(const CqLoss&) = delete;
  CqLoss& operator=(const CqLoss&) = delete;
  static void forget() {
    const std::lock_guard hold(mutex);
    made.clear();
    dead.clear();
    pairs.clear();
    early = false;
    swallowed = 0;
  }
};

// What a receive without a message comes to.
Status wait_in_vain(Link& link, Buffer& to) {
  Request* const receive = start_recv(*link.recv, {to.receive(0)});
  Status s = Status::ok;
  Completion c;
  REQUIRE(eventually([&] { return (s = receive->test(c)) != Status::ok; }));
  CHECK_FALSE(c.done);
  return s;
}

Config one_path() {
  Config c = soft_config();
  c.standby_ports = 0;  // what fails stays failed
  return c;
}

TEST_CASE("A completion queue that fails ends its own connections and no others") {
  LogCapture log;
  EventFeed feed;
  CqLoss loss;
  World world(one_path(), -1, CqLoss::on);
  Link link = world.connect();
  ibv_cq* const failing = CqLoss::of("soft1");
  Buffer to(*link.recv, 100);
  const auto third = world.open(3, -1);
  Link other = connect(*world.a, 0, *third, 1);
  REQUIRE(CqLoss::of("soft1") != failing);
  exchange(link);
  exchange(other);

  CqLoss::fail(failing);
  CHECK(wait_in_vain(link, to) == Status::remote);
  CAPTURE(log.warnings());
  CHECK(log.has(LogLevel::warn, "a completion queue of soft1 failed"));
  CHECK(log.has(LogLevel::warn, "see the kernel log (dmesg)"));
  CHECK_FALSE(log.has("device soft1 failed"));
  // For longer than all look at their adapters.
  const std::int64_t end = now_ns() + 300 * kMillisecond;
  while (now_ns() < end) exchange(other);
  // It is not handed out again.
  Link next = world.connect();
  exchange(next);
}

TEST_CASE("A new completion queue is not taken for one that failed in its place") {
  LogCapture log;
  EventFeed feed;
  CqLoss loss;
  auto fabric = open_fabric(one_path());
  REQUIRE(fabric);
  CqLoss::on(**fabric);
  Devices devices(std::move(fabric).take(), one_path());
  Adapter& adapter = *devices.rails(0).front().adapter;
  std::set<const CompletionEngine*> failed;
  // Nearly always the second has the place of the first, but for allocators of sanitizers.
  for (bool same = false; !same && failed.size() < 100;) {
    CompletionHub hub(devices.verbs());
    const auto engine = hub.reserve(adapter, 1);
    REQUIRE(engine);
    CHECK_FALSE((*engine)->failed());
    CqLoss::tell((*engine)->cq());
    CHECK((*engine)->failed());
    same = !failed.insert(*engine).second;
  }
}

// Its adapters' event files go last.
struct TwoRails {
  EventFeed feed;
  CqLoss loss;
  FailoverWorld w;
  Link link;
  explicit TwoRails(const Config& c = FailoverWorld::config())
      : w(c, Ports::merged, nullptr, CqLoss::on), link(w.connect()) {}
};

TEST_CASE("A sender's completion queue fails under traffic: its rail is left and tried again") {
  const std::string which = GENERATE("soft0", "soft1");
  CAPTURE(which);
  LogCapture log;
  TwoRails t;
  Stream stream(t.link, {}, 7);
  CHECK(stream.run(50));
  CqLoss::fail(CqLoss::of(which));
  CHECK(stream.run(stream.received() + 200));
  CAPTURE(stream.failure, log.warnings());
  CHECK(log.has("stops and goes on: a completion queue of " + which + " failed"));
  CHECK(log.has("goes on over " + std::string(which == "soft0" ? "soft1" : "soft0") + " ("));
  // With a new one in its place.
  CHECK(eventually(
      [&] { return !stream.step(~std::uint64_t{0}) || log.has("goes on over soft0, soft1 ("); }));
  CHECK(stream.run(stream.received() + 200));
  CHECK(stream.finish());
  CHECK_FALSE(log.has("is lost"));
}

TEST_CASE("A receiver's completion queue fails: what comes after it has moved arrives") {
  const std::string which = GENERATE("soft2", "soft3");
  CAPTURE(which);
  LogCapture log;
  TwoRails t;
  exchange(t.link);
  Buffer from(*t.link.send, 300'000, 3), to(*t.link.recv, 300'000);
  Request* const receive = start_recv(*t.link.recv, {to.receive(0)});
  CqLoss::fail(CqLoss::of(which));
  Completion none;
  REQUIRE(eventually([&] {
    REQUIRE(receive->test(none) == Status::ok);
    return log.has("goes on over " + std::string(which == "soft2" ? "soft3" : "soft2") + " (");
  }));
  CHECK(finish(start_send(*t.link.send, from, from.size(), 0, receive)).bytes[0] == from.size());
  CHECK(finish(receive).bytes[0] == from.size());
  CHECK(to.holds(3, to.size()));
  CHECK_FALSE(CqLoss::early);
  Stream stream(t.link, {}, 7);
  CHECK(stream.run(200));
  CAPTURE(stream.failure, log.warnings());
  CHECK_FALSE(log.has("is lost"));
}

TEST_CASE("What a receiver's completion queue did not tell of ends its connection") {
  LogCapture log;
  TwoRails t;
  Stream stream(t.link, {}, 7);
  CHECK(stream.run(50));
  ibv_cq* const failing = CqLoss::of("soft3");
  CqLoss::silence(failing);
  REQUIRE(eventually([&] { return !stream.step(~std::uint64_t{0}) || CqLoss::swallowed > 0; }));
  // Until the sender takes for done what it has sent.
  REQUIRE(eventually([&] { return !stream.step(0) || stream.done(0); }));
  CqLoss::tell(failing);
  CHECK_FALSE(stream.run_for(10'000));
  CAPTURE(stream.failure, log.warnings());
  CHECK(log.has("between acknowledging a message and telling of it"));
}

// What the tests' fabric takes for memory of a GPU.
struct Flushed {
  Link& link;
  std::vector<std::uint8_t> bytes = std::vector<std::uint8_t>(1 << 20);
  RecvBuffer buffer{bytes.data(), bytes.size(), 0, nullptr};
  explicit Flushed(Link& l) : link(l) {
    auto memory = link.recv->register_memory(bytes.data(), bytes.size(), MemoryType::cuda, 0, -1);
    REQUIRE(memory);
    buffer.memory = *memory;
  }
  ~Flushed() { (void)link.recv->deregister_memory(buffer.memory); }
  Flushed(const Flushed&) = delete;
  Flushed& operator=(const Flushed&) = delete;
  Request* offer() {
    Request* request = nullptr;
    REQUIRE(eventually([&] {  // the connection may be moving
      (void)link.recv->irecv({&buffer, 1}, false, &request);
      return request != nullptr;
    }));
    return request;
  }
  // A message over all rails.
  void receive(Request* offered) {
    Buffer from(*link.send, bytes.size(), 1);
    (void)finish(start_send(*link.send, from, from.size(), 0, offered));
    (void)finish(offered);
  }
  Request* flush() {
    Request* request = nullptr;
    REQUIRE(link.recv->iflush({&buffer, 1}, &request) == Status::ok);
    return request;
  }
};

TEST_CASE("A flush whose completion queue fails is done again over another") {
  LogCapture log;
  TwoRails t;
  Flushed gpu(t.link);
  gpu.receive(gpu.offer());
  ibv_cq* const failing = CqLoss::of("soft3");
  CqLoss::silence(failing);
  Request* const flush = gpu.flush();
  REQUIRE(flush != nullptr);
  Completion c;
  const std::int64_t end = now_ns() + 100 * kMillisecond;
  while (now_ns() < end) REQUIRE(flush->test(c) == Status::ok);
  CHECK_FALSE(c.done);
  CqLoss::tell(failing);
  (void)finish(flush);
  // Nor do later ones wait for it, once its rail is back.
  Request* const offered = gpu.offer();
  REQUIRE(eventually([&] {
    REQUIRE(offered->test(c) == Status::ok);
    return log.has("goes on over soft2 (");
  }));
  gpu.receive(offered);
  CHECK(eventually([&] {
    gpu.receive(gpu.offer());
    return log.has("goes on over soft2, soft3 (");
  }));
  gpu.receive(gpu.offer());
  (void)finish(gpu.flush());
  CAPTURE(log.warnings());
  CHECK_FALSE(log.has("is lost"));
}

}  // namespace
}  // namespace twinpath::test
