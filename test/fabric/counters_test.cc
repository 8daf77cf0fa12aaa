// What readers of the counters learn of connections: bytes and messages to the last one, what the
// caller waits for, how long messages take, and what failed.
#include "plugin/base/counter_page.h"
#include "test/fabric/failover.h"

namespace twinpath::test {
namespace {

using counters::Wait;

struct Counted {
  std::shared_ptr<CounterPage> page = CounterPage::create("here", "test", {});
  World world;
  explicit Counted(const Config& config = soft_config()) : world(config, -1, nullptr, page) {}
  const counters::Connection& of(counters::Role role) const {
    for (std::uint32_t i = 0; i < page->process().used.load(); ++i)
      if (page->at(i).identity.role == role &&
          page->at(i).state.get() != static_cast<std::uint32_t>(counters::State::closed))
        return page->at(i);
    throw std::runtime_error("no such connection");
  }
  const counters::Connection& sender() const { return of(counters::Role::sender); }
  const counters::Connection& receiver() const { return of(counters::Role::receiver); }
};

std::uint64_t bytes_of(const counters::Connection& c) {
  std::uint64_t n = 0;
  for (const counters::Rail& r : c.rails) n += r.bytes.get();
  return n;
}

std::uint64_t timed_of(const counters::Connection& c) {
  std::uint64_t n = 0;
  for (const counters::Rail& r : c.rails)
    for (const auto& b : r.buckets) n += b.get();
  return n;
}

// The cause that has the most of a stretch of waiting.
Wait most(const counters::Connection& c) {
  std::size_t at = 0;
  for (std::size_t w = 1; w < counters::kWaits; ++w)
    if (c.waited_ns[w].get() > c.waited_ns[at].get()) at = w;
  return static_cast<Wait>(at);
}

std::uint64_t waited(const counters::Connection& c) {
  std::uint64_t n = 0;
  for (const auto& w : c.waited_ns) n += w.get();
  return n;
}

// Asks in vain for as long, and once at its end: a wait is counted from one call to the next, so
// what the scheduler takes from this thread behind the last call would be missing.
template <class F>
void ask(std::int64_t ms, F&& f) {
  f();
  const std::int64_t end = coarse_now_ns() + ms * kMillisecond;
  while (coarse_now_ns() < end) f();
  f();
}

void carry(Link& link, std::size_t bytes, std::size_t count, std::size_t group = 1) {
  Buffer from(*link.send, bytes * count, 1), to(*link.recv, bytes * count);
  std::vector<Request*> receives, sends;
  for (std::size_t i = 0; i < count; i += group) {
    std::vector<RecvBuffer> buffers;
    for (std::size_t k = i; k < i + group; ++k)
      buffers.push_back(to.receive(static_cast<int>(k - i), k * bytes, bytes));
    receives.push_back(start_recv(*link.recv, buffers));
  }
  for (std::size_t i = 0; i < count; ++i)
    sends.push_back(start_send(*link.send, from, bytes, static_cast<int>(i % group),
                               i == 0 ? receives[0] : nullptr, i * bytes));
  for (Request* s : sends) finish(s);
  for (Request* r : receives) finish(r);
}

}  // namespace

TEST_CASE("Bytes and messages are counted to the last one, whatever way they go") {
  struct Way {
    const char* name;
    std::size_t bytes, count, group;
  };
  for (const Way& way : {Way{"one", 8, 1, 1},
                         {"parcels", 8, 48, 1},
                         {"groups", 512, 48, 8},
                         {"small groups", 8, 48, 8},
                         {"whole", 100'000, 3, 1},
                         {"empty", 0, 2, 1}}) {
    CAPTURE(way.name);
    Counted c;
    Link link = c.world.connect();
    carry(link, way.bytes, way.count, way.group);
    CHECK(c.sender().messages() == way.count);
    CHECK(c.receiver().messages() == way.count);
    CHECK(bytes_of(c.sender()) == way.count * way.bytes);
    CHECK(bytes_of(c.receiver()) == way.count * way.bytes);
    carry(link, way.bytes, way.count, way.group);
    CHECK(c.sender().messages() == 2 * way.count);
    CHECK(bytes_of(c.receiver()) == 2 * way.count * way.bytes);
  }
}

TEST_CASE("A long message's bytes are counted on the rails that carry them") {
  for (const int adaptive : {0, 1}) {
    CAPTURE(adaptive);
    Config config = soft_config("soft0,speed=400,soft1,speed=100,soft2,speed=400,soft3,speed=100");
    config.ib_adaptive_routing = adaptive;
    Counted c(config);
    const int left = c.world.merge({0, 1}), right = c.world.merge({2, 3});
    Link link = c.world.connect(left, right);
    carry(link, 1 << 20, 1);
    CHECK(bytes_of(c.sender()) == 1 << 20);
    CHECK(bytes_of(c.receiver()) == 1 << 20);
    CHECK(c.sender().rails[0].bytes.get() > 3 * c.sender().rails[1].bytes.get());
    CHECK(c.sender().rails[1].bytes.get() > 0);
    CHECK(timed_of(c.sender()) == 2);  // its first message, once a rail
    const counters::Identity& id = c.sender().identity;
    CHECK(id.rails - id.standby == 2);
    CHECK(std::string(c.page->process().ports[id.ports[1]].name.data()) == "soft1");
  }
}

TEST_CASE("A rail that was left has no share of messages any more, and the other one none") {
  LogCapture log;
  auto page = CounterPage::create("here", "test", {});
  FailoverWorld w(FailoverWorld::config(), Ports::merged, page);
  Link link = w.connect();
  Stream stream(link, {}, 1);
  CHECK(stream.run(50));
  const auto sender = [&]() -> const counters::Connection& {
    for (std::uint32_t i = 0;; ++i)
      if (page->at(i).identity.role == counters::Role::sender) return page->at(i);
  };
  // Each is rounded by itself.
  const auto shares = sender().rails[0].permille.get() + sender().rails[1].permille.get();
  CHECK((shares >= 998 && shares <= 1001));
  const std::uint64_t messages = sender().messages();
  FailoverWorld::port("soft1", false);
  CHECK(stream.run(200));
  CAPTURE(stream.failure, log.warnings());
  CHECK(sender().failovers.get() > 0);
  CHECK(sender().rails[0].permille.get() == 0);
  CHECK(sender().rails[1].permille.get() == 0);
  CHECK(sender().messages() > messages);
  CHECK(sender().rails[1].messages.get() < sender().messages());
}

TEST_CASE("Some of many messages are timed") {
  Counted c;
  Link link = c.world.connect();
  carry(link, 65536, 1);
  CHECK(timed_of(c.sender()) == 1);
  for (int i = 0; i < 8; ++i) carry(link, 65536, 16);
  CHECK(timed_of(c.sender()) >= 4);
  CHECK(timed_of(c.sender()) <= 6);
  CHECK(c.sender().rails[0].timed_ns.get() > 0);
  CHECK(timed_of(c.receiver()) == 0);
}

TEST_CASE("Who waits says for what: a late peer, the network, or its own slots") {
  const std::int64_t stretch = 100;
  const auto enough = static_cast<std::uint64_t>(stretch * kMillisecond / 2);
  SECTION("the peer offers nothing") {
    Counted c;
    Link link = c.world.connect();
    Buffer from(*link.send, 100);
    Request* request = nullptr;
    ask(stretch, [&] {
      REQUIRE(link.send->isend(from.data(), 100, 0, from.memory, &request) == Status::again);
    });
    CHECK(most(c.sender()) == Wait::peer_cts);
    CHECK(waited(c.sender()) > enough);
    CHECK(waited(c.receiver()) == 0);
    CHECK(c.sender().looked_at.get() - c.sender().since.get() > stretch / 2 * kMillisecond);
  }
  SECTION("the peer sends nothing") {
    Counted c;
    Link link = c.world.connect();
    Buffer to(*link.recv, 100);
    Request* request = start_recv(*link.recv, {to.receive(0)});
    Completion done;
    ask(stretch, [&] { REQUIRE(request->test(done) == Status::ok); });
    CHECK(most(c.receiver()) == Wait::peer_data);
    CHECK(waited(c.receiver()) > enough);
    CHECK(c.receiver().in_flight.get() == 1);
  }
  SECTION("more receives than there are requests") {
    Counted c;
    Link link = c.world.connect();
    Buffer to(*link.recv, 100);
    Request* request = nullptr;
    const std::vector<RecvBuffer> one{to.receive(0)};
    while (link.recv->irecv(one, false, &request) == Status::ok) {
    }
    ask(stretch, [&] { REQUIRE(link.recv->irecv(one, false, &request) == Status::again); });
    CHECK(most(c.receiver()) == Wait::slots);
    CHECK(waited(c.receiver()) > enough);
  }
}

TEST_CASE("What a program does between its messages is no waiting") {
  Counted c;
  Link link = c.world.connect();
  std::int64_t carrying = 0;
  for (int i = 0; i < 5; ++i) {
    const std::int64_t begin = coarse_now_ns();
    carry(link, 1000, 1);
    carrying += coarse_now_ns() - begin;
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
  }
  CHECK(waited(c.sender()) <= static_cast<std::uint64_t>(carrying));
  CHECK(waited(c.receiver()) <= static_cast<std::uint64_t>(carrying));
}

TEST_CASE("Registrations, ports and both ends' names are there") {
  Counted c;
  Link link = c.world.connect(0, 1);
  const counters::Process& p = c.page->process();
  const std::uint64_t before = p.memory.registrations.load();
  {
    Buffer from(*link.send, 100'000), to(*link.send, 100'000);
    auto twice = link.send->register_memory(from.data(), 50'000, MemoryType::host, 0, -1);
    REQUIRE(twice);
    CHECK(p.memory.registrations.load() == before + 2);
    CHECK(p.memory.hits.load() == 1);
    CHECK(link.send->deregister_memory(*twice) == Status::ok);
  }
  CHECK(p.ports_used.get() == 2);
  CHECK(std::string(p.ports[1].name.data()) == "soft1");
  const counters::Identity& id = c.sender().identity;
  CHECK(std::string(id.device.data()) == "soft0");
  CHECK(std::string(id.peer_device.data()) == "soft1");
  CHECK(id.peer_pid == p.pid);
  CHECK(std::string(id.path.data()) == "HOST");
}

TEST_CASE("A connection that is lost is marked, with the status of what failed") {
  LogCapture log;
  Counted c;
  Link link = c.world.connect();
  auto from = std::make_unique<Buffer>(*link.send, 100);
  Request* receive = nullptr;
  {
    Buffer to(*link.recv, 1 << 20);
    receive = start_recv(*link.recv, {to.receive(0)});
    Completion done;
    REQUIRE(receive->test(done) == Status::ok);
  }  // its registration goes: the write is refused
  Request* request = start_send(*link.send, *from, 100, 0, nullptr);
  Completion done;
  REQUIRE(eventually([&] { return request->test(done) == Status::remote; }));
  CHECK(c.sender().state.get() == static_cast<std::uint32_t>(counters::State::lost));
  std::uint64_t errors = 0;
  for (const auto& e : c.sender().errors) errors += e.get();
  CHECK(errors == 1);
  CHECK(c.sender().errors[IBV_WC_REM_ACCESS_ERR].get() == 1);
}

TEST_CASE("The message of a lost connection says what was waited for") {
  LogCapture log;
  Counted c;
  Link link = c.world.connect();
  carry(link, 1000, 3);
  Buffer to(*link.recv, 100);
  Request* receive = start_recv(*link.recv, {to.receive(0)});
  Completion done;
  ask(400, [&] { REQUIRE(receive->test(done) == Status::ok); });
  link.send.reset();
  REQUIRE(eventually([&] { return receive->test(done) == Status::remote; }));
  REQUIRE(log.warnings().size() == 1);
  CAPTURE(log.warnings()[0]);
  CHECK(
      log.warnings()[0].find(" ms while 1 requests waited for the peer's data, after 3 messages") !=
      std::string::npos);
  CHECK(log.warnings()[0].find("; it had waited ") != std::string::npos);
  CHECK(log.warnings()[0].find(" s for the peer's data in all") != std::string::npos);
  CHECK(log.warnings()[0].find(" bytes over ") == std::string::npos);  // there is one rail
}

TEST_CASE("The message of a lost connection says what each rail carried") {
  LogCapture log;
  Counted c(soft_config("soft0,speed=400,soft1,speed=100,soft2,speed=400,soft3,speed=100"));
  const int left = c.world.merge({0, 1}), right = c.world.merge({2, 3});
  Link link = c.world.connect(left, right);
  carry(link, 1 << 20, 1);
  Buffer to(*link.recv, 100);
  Request* receive = start_recv(*link.recv, {to.receive(0)});
  Completion done;
  ask(400, [&] { REQUIRE(receive->test(done) == Status::ok); });
  link.send.reset();
  REQUIRE(eventually([&] { return receive->test(done) == Status::remote; }));
  REQUIRE(log.warnings().size() == 1);
  CAPTURE(log.warnings()[0]);
  CHECK(log.warnings()[0].find(", after 1 messages (") != std::string::npos);
  CHECK(log.warnings()[0].find(" bytes over soft2, ") != std::string::npos);
  CHECK(log.warnings()[0].find(" over soft3)") != std::string::npos);
}

}  // namespace twinpath::test
