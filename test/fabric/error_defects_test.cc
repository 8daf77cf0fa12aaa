// Errors that other transports of this kind lose, blame on somebody else or take for success; the
// numbers are those of the list in proxy/README.md.
#include <atomic>
#include <cerrno>

#include "test/fabric/event_feed.h"
#include "test/fabric/world.h"

namespace twinpath::test {
namespace {

// A connection on which both ends wait: the receiver for data, the sender for a tag that never
// comes.
struct Waiting {
  Link link;
  std::vector<std::uint32_t> qpns;
  std::unique_ptr<Buffer> to;
  Request* receive = nullptr;
  Status sent = Status::again, received = Status::ok;

  Waiting(World& world, int device) {
    Tap::raised.clear();
    link = world.connect(device, device);
    for (const Tap::Raised& q : Tap::raised) qpns.push_back(q.qpn);
    to = std::make_unique<Buffer>(*link.recv, 100);
    receive = start_recv(*link.recv, {to->receive(0)});
  }
  void turn() {
    Request* none = nullptr;
    Completion c;
    if (sent == Status::again) sent = link.send->isend(nullptr, 0, 99, nullptr, &none);
    if (received == Status::ok) received = receive->test(c);
    REQUIRE(none == nullptr);
    REQUIRE_FALSE(c.done);
  }
  bool alive() const { return sent == Status::again && received == Status::ok; }
  bool dead() const { return sent == Status::remote && received == Status::remote; }
};

TEST_CASE("D16: an event concerns the adapter, port and queue it names and no other") {
  LogCapture log;
  EventFeed feed;
  Config config = soft_config("soft0,soft1,ports=2");
  config.standby_ports = 0;  // what fails stays failed
  World world(config, -1, EventFeed::on);
  REQUIRE(world.transport->device_count() == 3);
  REQUIRE(EventFeed::write_ends.size() == 2);
  // Sessions of no communicator: one connection's failure does not end its siblings.
  world.a = world.open(0, -1);
  world.b = world.open(0, -1);
  Waiting first(world, 0), port1(world, 1), port2(world, 2);
  ibv_qp reached{};
  REQUIRE(port2.qpns.size() == 2);
  ibv_context* soft1 = Tap::context_of("soft1");
  REQUIRE(soft1 != nullptr);
  auto turn_until = [&](auto&& done) {
    return eventually([&] {
      first.turn();
      port1.turn();
      port2.turn();
      return done();
    });
  };

  ibv_async_event event{};
  event.event_type = IBV_EVENT_PORT_ERR;
  event.element.port_num = 2;
  EventFeed::send(soft1, event);
  REQUIRE(turn_until([&] { return !log.warnings().empty(); }));
  const std::int64_t end = now_ns() + 250 * kMillisecond;
  turn_until([&] { return now_ns() > end; });
  REQUIRE(log.warnings().size() == 1);  // both ports' connections read one event file
  CHECK(log.has(LogLevel::warn, "soft1 port 2 went down"));
  CHECK(first.alive());
  CHECK(port1.alive());
  CHECK(port2.alive());

  event = {};
  event.event_type = IBV_EVENT_QP_FATAL;
  event.element.qp = &reached;
  for (std::uint32_t qpn : port2.qpns) {
    reached.qp_num = qpn;
    EventFeed::send(soft1, event);
    const std::string text = "soft1: QP " + std::to_string(qpn) + " failed";
    REQUIRE(turn_until([&] { return log.has(LogLevel::warn, text); }));
  }
  REQUIRE(turn_until([&] { return port2.dead(); }));
  CHECK(first.alive());
  CHECK(port1.alive());

  event = {};
  event.event_type = IBV_EVENT_DEVICE_FATAL;
  EventFeed::send(soft1, event);
  REQUIRE(turn_until([&] { return port1.dead(); }));
  CHECK(log.has(LogLevel::warn, "the local device soft1 failed"));
  CHECK_FALSE(log.has(LogLevel::warn, "soft0 failed"));
  CHECK(first.alive());
}

// Exchanges messages until one end reports an error; what each end said last.
struct Outcome {
  Status send = Status::ok, receive = Status::ok;
  int messages = 0;
};

Outcome exchange_until_error(Link& link, Buffer& from, Buffer& to) {
  Outcome out;
  for (; out.messages < 100; ++out.messages) {
    const RecvBuffer b = to.receive(0);
    Request *receive = nullptr, *send = nullptr;
    Completion received, sent;
    REQUIRE(eventually([&] {
      if (receive == nullptr)
        out.receive = link.recv->irecv({&b, 1}, false, &receive);
      else if (!received.done)
        out.receive = receive->test(received);
      if (send == nullptr)
        out.send = link.send->isend(from.data(), from.size(), 0, from.memory, &send);
      else if (!sent.done)
        out.send = send->test(sent);
      // A call that fails gives no request, and a test that fails no completion.
      if (out.send != Status::ok) REQUIRE_FALSE(sent.done);
      if (out.receive != Status::ok) REQUIRE_FALSE(received.done);
      if (out.send == Status::again) out.send = Status::ok;
      if (out.receive == Status::again) out.receive = Status::ok;
      return out.send != Status::ok || out.receive != Status::ok || (received.done && sent.done);
    }));
    if (out.send != Status::ok || out.receive != Status::ok) break;
  }
  return out;
}

TEST_CASE("D17 and D22: a failed completion of any kind is an error, once reported and for good") {
  struct Case {
    WrKind kind;
    const char* text;
    bool at_sender;
  };
  for (const Case& c : {Case{WrKind::send_data, "data write failed with", true},
                        {WrKind::receive, "receive failed with", false},
                        {WrKind::cts, "clear-to-send write failed with", false}}) {
    INFO(c.text);
    LogCapture log;
    World world(soft_config("4"), -1, Tap::on);
    Link link = world.connect(world.merge({0, 1}), world.merge({2, 3}));
    Buffer from(*link.send, 100000, 1), to(*link.recv, 100000);
    Tap::fail_completion = c.kind;
    Tap::fail_status = IBV_WC_REM_INV_REQ_ERR;  // no path is to blame
    const Outcome out = exchange_until_error(link, from, to);
    CHECK((c.at_sender ? out.send : out.receive) == Status::remote);
    CHECK(Tap::fail_completion == WrKind::none);
    CHECK(log.has(LogLevel::warn, c.text));
    CHECK(log.has(LogLevel::warn, "QP " + std::to_string(Tap::failed_qpn)));
    CHECK(log.has(LogLevel::warn, "vendor error 0x5a"));
    CAPTURE(log.warnings());
    CHECK(log.warnings().size() == 1);
    Request* none = nullptr;
    const RecvBuffer b = to.receive(0);
    if (c.at_sender)
      CHECK(link.send->isend(from.data(), 1, 0, from.memory, &none) == Status::remote);
    else
      CHECK(link.recv->irecv({&b, 1}, false, &none) == Status::remote);
    CHECK(none == nullptr);
  }
}

// An adapter that has been unplugged: the kernel answers no question about it.
struct Unplugged {
  static inline std::atomic<bool> now;
  static void on(Fabric& fabric) {
    Tap::on(fabric);
    now = false;
    real_ = fabric.verbs.query_port;
    fabric.verbs.query_port = [](ibv_context* c, std::uint8_t port, ibv_port_attr* attr) {
      return now ? EIO : real_(c, port, attr);
    };
  }

 private:
  static inline decltype(Verbs::query_port) real_;
};

TEST_CASE("An adapter that has gone is named as such, whatever its work ended with") {
  for (const WrKind kind : {WrKind::send_data, WrKind::receive}) {
    LogCapture log;
    World world(soft_config("2"), -1, Unplugged::on);
    Link link = world.connect(0, 1);
    Buffer from(*link.send, 100000, 1), to(*link.recv, 100000);
    Tap::fail_completion = kind;
    Tap::fail_status = IBV_WC_LOC_PROT_ERR;  // its memory goes first
    Unplugged::now = true;
    const Outcome out = exchange_until_error(link, from, to);
    CHECK((kind == WrKind::send_data ? out.send : out.receive) == Status::remote);
    CAPTURE(log.warnings());
    CHECK(log.has(LogLevel::warn, kind == WrKind::send_data
                                      ? "the local device soft0 does not answer any more"
                                      : "the local device soft1 does not answer any more"));
    CHECK(log.has(LogLevel::warn, "unplugged or taken away; see the kernel log"));
  }
}

// A receive comm with "GPU" memory (the tests' fabric takes host memory for it) on two rails, to
// which a striped message has come.
struct Flushing {
  World world{soft_config("4"), -1, Unplugged::on};
  Link link;
  std::vector<std::uint8_t> bytes = std::vector<std::uint8_t>(1 << 20);
  Memory* memory = nullptr;
  RecvBuffer buffer;

  Flushing() {
    link = world.connect(world.merge({0, 1}), world.merge({2, 3}));
    auto m = link.recv->register_memory(bytes.data(), bytes.size(), MemoryType::cuda, 0, -1);
    REQUIRE(m);
    memory = *m;
    buffer = {bytes.data(), bytes.size(), 0, memory};
    Buffer from(*link.send, bytes.size(), 1);
    Request* receive = start_recv(*link.recv, {buffer});
    finish(start_send(*link.send, from, from.size(), 0, receive));
    CHECK(finish(receive).bytes[0] == bytes.size());
    Tap::posted.clear();
  }
  ~Flushing() { (void)link.recv->deregister_memory(memory); }
};

TEST_CASE("D22: a failed flush is an error that names its own queue and adapter") {
  LogCapture log;
  Flushing f;
  Request* flush = nullptr;
  REQUIRE(f.link.recv->iflush({&f.buffer, 1}, &flush) == Status::ok);
  REQUIRE(flush != nullptr);
  REQUIRE(Tap::posted.size() == 2);  // both rails have carried data
  Tap::fail_completion = WrKind::flush;
  Status s = Status::ok;
  Completion c;
  REQUIRE(eventually([&] { return c.done || (s = flush->test(c)) != Status::ok; }));
  CHECK_FALSE(c.done);
  CHECK(s == Status::remote);
  REQUIRE(log.warnings().size() == 1);
  CHECK(log.has(LogLevel::warn, "flush read failed with"));
  const bool first_rail = Tap::failed_qpn == Tap::posted[0].qpn;
  REQUIRE((first_rail || Tap::failed_qpn == Tap::posted[1].qpn));
  const std::string rail = first_rail ? "soft2" : "soft3";
  CHECK(log.has(LogLevel::warn, "on " + rail + " GID index"));
  CHECK(log.has(LogLevel::warn, "QP " + std::to_string(Tap::failed_qpn)));
}

TEST_CASE("A flush on an adapter that has gone names it, too") {
  LogCapture log;
  Flushing f;
  Request* flush = nullptr;
  REQUIRE(f.link.recv->iflush({&f.buffer, 1}, &flush) == Status::ok);
  Tap::fail_completion = WrKind::flush;
  Unplugged::now = true;
  Completion c;
  REQUIRE(eventually([&] { return flush->test(c) != Status::ok; }));
  CHECK(log.has(LogLevel::warn, "does not answer any more"));
}

TEST_CASE("D22: a queue that cannot be polled any more is an error, not silence") {
  for (bool flushing : {false, true}) {
    LogCapture log;
    Flushing f;
    Request* request = nullptr;
    if (flushing) {
      REQUIRE(f.link.recv->iflush({&f.buffer, 1}, &request) == Status::ok);
    } else {
      request = start_recv(*f.link.recv, {f.buffer});
    }
    Tap::poll_result = -2;
    Status s = Status::ok;
    Completion c;
    REQUIRE(eventually([&] { return c.done || (s = request->test(c)) != Status::ok; }));
    CHECK_FALSE(c.done);
    CHECK(s == Status::remote);
    CHECK(log.warnings().size() == 1);
    CHECK(log.has(LogLevel::warn, "completion queue of soft"));
  }
}

TEST_CASE("D17: work that cannot be posted is an error and never a request that completes") {
  for (WrKind kind : {WrKind::send_data, WrKind::cts}) {
    LogCapture log;
    World world(soft_config(), -1, Tap::on);
    Link link = world.connect();
    Buffer from(*link.send, 1000, 1), to(*link.recv, 1000);
    Tap::fail_post = kind;
    const Outcome out = exchange_until_error(link, from, to);
    CHECK(out.messages == 0);
    CHECK((kind == WrKind::send_data ? out.send : out.receive) != Status::ok);
    CHECK(log.warnings().size() == 1);
    CHECK(log.has(LogLevel::warn, "cannot post a "));
    Tap::fail_post = WrKind::none;
    Request* none = nullptr;
    const RecvBuffer b = to.receive(0);
    if (kind == WrKind::send_data)
      CHECK(link.send->isend(from.data(), 1, 0, from.memory, &none) == Status::remote);
    else
      CHECK(link.recv->irecv({&b, 1}, false, &none) == Status::remote);
    CHECK(none == nullptr);
  }
  LogCapture log;
  Flushing f;
  Tap::fail_post = WrKind::flush;
  Request* flush = nullptr;
  CHECK(f.link.recv->iflush({&f.buffer, 1}, &flush) == Status::system);
  CHECK(flush == nullptr);
  CHECK(f.link.recv->iflush({&f.buffer, 1}, &flush) == Status::remote);
  CHECK(flush == nullptr);
}

// With one queue isend looks by its short way, with two by the other.
TEST_CASE("A cell that no receiver of ours writes ends the connection, and says why") {
  struct Spoilt {
    std::uint32_t bits;
    const char* text;
  };
  const Spoilt kinds[] = {{0x50u << 22, "it read parcels that were not sent"},
                          {1u << 30, "a clear-to-send cell that makes no sense"}};
  for (const int queues : {1, 2}) {
    for (const Spoilt& kind : kinds) {
      INFO(queues << " queues: " << kind.text);
      LogCapture log;
      Config config = soft_config();
      config.ib_qps_per_connection = queues;
      World world(config, -1, Tap::on);
      Link link = world.connect();
      Buffer from(*link.send, 64, 1), to(*link.recv, 64);
      Tap::spoil_cell = kind.bits;
      (void)start_recv(*link.recv, {to.receive(0)});
      Request* send = nullptr;
      Status status = Status::again;
      REQUIRE(eventually([&] {
        status = link.send->isend(from.data(), 64, 0, from.memory, &send);
        return status != Status::again;
      }));
      CHECK(status == Status::remote);
      CHECK(send == nullptr);
      CHECK(log.has(LogLevel::warn, kind.text));
    }
  }
}

}  // namespace
}  // namespace twinpath::test
