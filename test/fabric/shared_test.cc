// Connections of one session to one peer session that share queue pairs (TWINPATH_QPS_PER_PEER).
#include <memory>
#include <mutex>
#include <random>
#include <vector>

#include "proxy/receive/recv_comm.h"
#include "test/fabric/failover.h"

namespace twinpath::test {
namespace {

Config sharing(int pairs, const std::string& hcas = "soft0,soft1") {
  Config c = soft_config(hcas);
  c.qps_per_peer = pairs;
  return c;
}

// Both ends' queue pairs raised so far; a session's thread may be at it.
std::size_t pairs_raised() {
  const std::lock_guard hold(Tap::mutex);
  return Tap::raised.size();
}
// How many this end's connections have made since the tap was opened.
std::size_t pairs_made() { return pairs_raised() / 2; }

std::vector<Link> connect_many(World& world, int count) {
  std::vector<Link> links;
  for (int i = 0; i < count; ++i) links.push_back(world.connect());
  return links;
}

TEST_CASE("Connections to one process share queue pairs, 64 of them each set") {
  for (const int pairs : {1, 2, 3}) {
    INFO(pairs << " pairs");
    World world(sharing(pairs), -1, Tap::on);
    std::vector<Link> links = connect_many(world, 64);
    CHECK(pairs_made() == static_cast<std::size_t>(pairs));
    for (std::size_t i = 0; i < links.size(); ++i) exchange(links[i], 100 + i, 1);
    // The next one is a member of the next set, the first of whose numbers may be anybody's.
    Link more = world.connect();
    CHECK(pairs_made() == 2 * static_cast<std::size_t>(pairs));
    exchange(more);
    exchange(links[0]);
    // Another session of the same process shares nothing with this one.
    const auto third = world.open(3, -1);
    Link other = connect(*world.a, 0, *third, 1);
    CHECK(pairs_made() == 3 * static_cast<std::size_t>(pairs));
    exchange(other);
  }
}

TEST_CASE("Ends that do not both share, and callers without a communicator, have their own") {
  Config plain = sharing(0);
  World shares(sharing(2), -1, Tap::on), other(plain);
  const auto count = [](World& from, World& to) {
    Tap::raised.clear();
    std::vector<Link> links;
    for (int i = 0; i < 3; ++i) {
      Link link = connect(*from.a, 0, *to.b, 1);
      exchange(link);
      links.push_back(std::move(link));
    }
    return pairs_raised();
  };
  // The tap sees one end only.
  CHECK(count(shares, other) == 3);
  CHECK(count(other, shares) == 3);
  const auto nobody = shares.open(0, -1);
  Tap::raised.clear();
  Link first = connect(*nobody, 0, *shares.b, 1), second = connect(*nobody, 0, *shares.b, 1);
  CHECK(pairs_raised() == 4);
  exchange(first);
  exchange(second);
}

// Which are to use different paths.
TEST_CASE("Queues of one connection each share with the others' of their number") {
  Config c = sharing(2);
  c.ib_qps_per_connection = 3;
  World world(c, -1, Tap::on);
  std::vector<Link> links = connect_many(world, 4);
  CHECK(pairs_made() == 3 * 2);
  for (Link& link : links)
    for (int i = 0; i < 6; ++i) exchange(link, 100'000);
}

// The callee makes its half with whichever member it is asked for first.
TEST_CASE("Connections that share are accepted in any order") {
  World world(sharing(2));
  constexpr int kCount = 4;
  std::array<HandleArray, kCount> handles;
  std::array<std::unique_ptr<Listener>, kCount> listeners;
  std::array<Link, kCount> links;
  for (std::size_t i = 0; i < kCount; ++i)
    REQUIRE(world.b->listen(1, handles[i], listeners[i]) == Status::ok);
  // All begin; the last one alone is accepted until it is there.
  const auto begin = [&](std::size_t i) {
    if (links[i].send) return;
    const Status s = world.a->connect(0, handles[i], links[i].send);
    REQUIRE(s == (links[i].send ? Status::ok : Status::again));
  };
  for (std::size_t i = kCount; i-- > 0;) {
    REQUIRE(eventually([&] {
      for (std::size_t all = 0; all < kCount; ++all) begin(all);
      if (!links[i].recv) {
        const Status s = listeners[i]->accept(links[i].recv);
        REQUIRE(s == (links[i].recv ? Status::ok : Status::again));
      }
      return links[i].send && links[i].recv;
    }));
    exchange(links[i]);
  }
}

// Every byte of many comms at once, of all sizes, while some close and others are made.
TEST_CASE("Messages of many comms over the same queue pairs find their own") {
  const int pairs = GENERATE(1, 2, 4);
  INFO(pairs << " pairs");
  World world(sharing(pairs));
  std::vector<Link> links = connect_many(world, 12);
  std::mt19937 random(static_cast<unsigned>(pairs));
  for (int round = 0; round < 20; ++round) {
    struct Message {
      std::unique_ptr<Buffer> from, to;
      Request *send = nullptr, *receive = nullptr;
      std::size_t bytes = 0;
      unsigned seed = 0;
    };
    std::vector<Message> all;
    for (std::size_t i = 0; i < links.size(); ++i) {
      for (int k = 0; k < 6; ++k) {
        Message m;
        constexpr std::size_t kSizes[] = {0, 1, 64, 65, 4000, 8192, 8193, 100'000, 1 << 20};
        m.bytes = kSizes[random() % std::size(kSizes)];
        m.seed = static_cast<unsigned>(random());
        m.from = std::make_unique<Buffer>(*links[i].send, m.bytes, m.seed);
        m.to = std::make_unique<Buffer>(*links[i].recv, m.bytes + 8);
        m.to->clear();
        m.receive = start_recv(*links[i].recv, {m.to->receive(k)});
        m.send = start_send(*links[i].send, *m.from, m.bytes, k, nullptr);
        all.push_back(std::move(m));
      }
    }
    for (Message& m : all) {
      CHECK(finish(m.receive).bytes[0] == m.bytes);
      (void)finish(m.send);
      CHECK(m.to->holds(m.seed, m.bytes));
    }
    all.clear();
    const std::size_t goes = random() % links.size();
    links[goes] = Link();
    links[goes] = world.connect();
  }
}

// Of cells few are signalled by their comm: the set must see to it that the queue gets free.
TEST_CASE("More than shared queues take waits, and all arrives") {
  World world(sharing(1));
  std::vector<Link> links = connect_many(world, 64);
  constexpr std::size_t kEach = 30, kBytes = 1000, kCapacity = 5000;  // whose cells go at once
  static_assert(64 * kEach > SharedPairs::kDepth && kCapacity > kPatientReceive);
  std::vector<std::unique_ptr<Buffer>> from, to;
  std::vector<Request*> receives, sends(links.size() * kEach, nullptr);
  for (std::size_t i = 0; i < links.size(); ++i) {
    from.push_back(std::make_unique<Buffer>(*links[i].send, kBytes, static_cast<unsigned>(i)));
    to.push_back(std::make_unique<Buffer>(*links[i].recv, kEach * kCapacity));
    for (std::size_t k = 0; k < kEach; ++k)
      receives.push_back(start_recv(
          *links[i].recv, {to[i]->receive(static_cast<int>(k), k * kCapacity, kCapacity)}));
  }
  // Nobody tests sends before all were accepted, which needs polls of the calls themselves.
  std::size_t again = 0;
  REQUIRE(eventually([&] {
    Completion c;
    REQUIRE(receives[0]->test(c) == Status::ok);  // cells that wait go on
    bool all = true;
    for (std::size_t at = 1; at < sends.size(); ++at) {
      if (sends[at] != nullptr) continue;
      const std::size_t i = at / kEach;
      const Status s = links[i].send->isend(from[i]->data(), kBytes, static_cast<int>(at % kEach),
                                            from[i]->memory, &sends[at]);
      REQUIRE((s == Status::ok || s == Status::again));
      all = all && sends[at] != nullptr;
      again += sends[at] == nullptr;
    }
    return all;
  }));
  CHECK(again > 0);
  sends[0] = start_send(*links[0].send, *from[0], kBytes, 0, nullptr);
  for (Request* r : receives) CHECK(finish(r).bytes[0] == kBytes);
  for (Request* r : sends) (void)finish(r);
  for (std::size_t i = 0; i < links.size(); ++i)
    for (std::size_t k = 0; k < kEach; ++k)
      CHECK(to[i]->holds(static_cast<unsigned>(i), kBytes, k * kCapacity));
}

// A member that closes leaves the others as they are, whatever its peer still writes.
TEST_CASE("A member that closes ends none of the others") {
  LogCapture log;
  World world(sharing(2));
  std::vector<Link> links = connect_many(world, 3);
  for (Link& link : links) exchange(link);
  Buffer to(*links[0].recv, 100);
  Request* receive = nullptr;
  links[0].send.reset();
  // Its cells go to a ring that nobody looks at any more.
  for (int i = 0; i < 40; ++i) {
    const RecvBuffer b = to.receive(i);
    if (links[0].recv->irecv({&b, 1}, false, &receive) != Status::ok) break;
  }
  for (int i = 0; i < 20; ++i) exchange(links[1]);
  links[1].recv.reset();
  Buffer from(*links[1].send, 100, 1);
  Request* send = nullptr;
  (void)links[1].send->isend(from.data(), 100, 0, from.memory, &send);
  for (int i = 0; i < 20; ++i) exchange(links[2]);
  Link more = world.connect();
  exchange(more);
  CAPTURE(log.warnings());
  CHECK_FALSE(log.has("soft0 is lost: data write"));
}

TEST_CASE("A shared queue pair in error ends all its members, and says which it was") {
  const int pairs = GENERATE(1, 2);
  const std::size_t bytes = pairs == 1 ? 100 : 100'000;  // the last pair's
  INFO(pairs << " pairs");
  LogCapture log;
  World world(sharing(pairs), -1, Tap::on);
  std::vector<Link> links = connect_many(world, 3);
  for (Link& link : links) exchange(link);
  const auto third = world.open(3, -1);
  Link other = connect(*world.a, 0, *third, 1);
  Buffer from(*links[0].send, bytes, 1), to(*links[0].recv, bytes);
  Tap::fail_completion = WrKind::send_data;
  Tap::fail_status = IBV_WC_REM_INV_REQ_ERR;
  Request* receive = start_recv(*links[0].recv, {to.receive(0)});
  Request* send = start_send(*links[0].send, from, bytes, 0, nullptr);
  Completion c;
  REQUIRE(eventually([&] { return send->test(c) == Status::remote; }));
  (void)receive;
  CHECK(log.has(LogLevel::warn, "QP " + std::to_string(Tap::failed_qpn)));
  // Those who wait for nothing learn of it, too.
  for (std::size_t i = 1; i < links.size(); ++i) {
    Buffer mine(*links[i].send, 100, 1), theirs(*links[i].recv, 100);
    const RecvBuffer b = theirs.receive(0);
    Request* none = nullptr;
    CHECK(links[i].send->isend(mine.data(), 100, 0, mine.memory, &none) == Status::remote);
    REQUIRE(eventually([&] {
      return links[i].recv->irecv({&b, 1}, false, &none) == Status::remote;
    }));
  }
  exchange(other);
}

// The connector knows nothing of it, as it has sent nothing since; or it has, and its write failed.
TEST_CASE("Who would join shared queue pairs that have failed at the acceptor gets others") {
  const int pairs = GENERATE(1, 2);
  const bool writes = GENERATE(false, true);
  INFO(pairs << " pairs, the connector " << (writes ? "writes" : "does not write"));
  LogCapture log;
  World world(sharing(pairs), -1, Tap::on);
  std::vector<Link> links = connect_many(world, 2);
  for (Link& link : links) exchange(link);
  const std::size_t before = pairs_made();
  // The cells of as many receives as there may be bring one completion at least, as none waits for
  // company.  The acceptor has halted its half in the poll that made irecv say so.
  static_assert(kMaxRequests >= kCtsSignalPeriod);
  constexpr std::size_t kBytes = kPatientReceive + 1;
  Buffer from(*links[0].send, kBytes, 1), to(*links[0].recv, kBytes);
  const RecvBuffer b = to.receive(0);
  Tap::fail_status = IBV_WC_REM_INV_REQ_ERR;
  Tap::fail_completion = WrKind::cts;
  REQUIRE(eventually([&] {
    Request* receive = nullptr;
    const Status s = links[0].recv->irecv({&b, 1}, false, &receive);
    REQUIRE((s == Status::ok || s == Status::again || s == Status::remote));
    return s == Status::remote;
  }));
  Request* send = nullptr;
  const auto write = [&] {
    Completion c;
    return send != nullptr ? send->test(c)
                           : links[0].send->isend(from.data(), kBytes, 0, from.memory, &send);
  };
  if (writes) REQUIRE(eventually([&] { return write() == Status::remote; }));
  // A failed set is left once; those who come later join what took its place.
  std::vector<Link> later = connect_many(world, 3);
  for (Link& link : later) exchange(link);
  CHECK(pairs_made() == before + static_cast<std::size_t>(pairs));
  CHECK_FALSE(log.has("no connection from"));
}

// Streams over connections that share, until each has received so many.
class Streams {
 public:
  Streams(FailoverWorld& world, int count) {
    for (int i = 0; i < count; ++i) links_.push_back(world.connect());
    for (std::size_t i = 0; i < links_.size(); ++i)
      streams_.push_back(
          std::make_unique<Stream>(links_[i], Stream::Shape{}, static_cast<unsigned>(i + 1)));
  }
  void run(std::uint64_t groups) {
    REQUIRE(eventually([&] {
      bool all = true;
      for (auto& stream : streams_) {
        INFO(stream->failure);
        REQUIRE(stream->step(groups));
        all = all && stream->done(groups);
      }
      return all;
    }));
  }
  // The first one alone.
  template <class F>
  void first_until(F so) {
    REQUIRE(eventually([&] {
      REQUIRE(streams_[0]->step(received() + 10));
      return so();
    }));
  }
  std::uint64_t received() const { return streams_[0]->received(); }

 private:
  std::vector<Link> links_;
  std::vector<std::unique_ptr<Stream>> streams_;
};

Config failing(int pairs) {
  Config c = FailoverWorld::config();
  c.qps_per_peer = pairs;
  return c;
}

// Who learns first that one port is down halts what is shared on the other one, too.
TEST_CASE("Members that are halted by another one's failover blame no port for it") {
  const int pairs = GENERATE(1, 1, 1, 1, 2, 2, 2, 2);  // some may have looked at the port before
  INFO(pairs << " pairs");
  LogCapture log;
  FailoverWorld w(failing(pairs));
  Streams streams(w, 4);
  streams.run(50);
  FailoverWorld::port("soft1", false);
  streams.first_until([&log] { return log.has("stops and goes on"); });
  streams.run(200);
  CHECK_FALSE(log.has("work request flushed"));
  CHECK(log.has("soft2+soft3 goes on over soft0 (1 of 4 queues)"));
  // In reserve, as if both had failed.
  CHECK_FALSE(log.has("soft2+soft3 goes on over soft2"));
  CHECK_FALSE(log.has("soft0+soft1 goes on over soft0"));
  FailoverWorld::port("soft1", true);
}

// Over pairs of their own, once all that the shared ones had brought is taken.
TEST_CASE("Members that share fail over, each by itself, and lose nothing") {
  const int pairs = GENERATE(1, 2);
  INFO(pairs << " pairs");
  LogCapture log;
  FailoverWorld w(failing(pairs));
  constexpr std::size_t kLinks = 4;
  Streams streams(w, kLinks);
  const std::size_t shared = pairs_raised();
  CHECK(shared == static_cast<std::size_t>(4 * pairs));  // two ports, both ends
  streams.run(100);
  FailoverWorld::port("soft1", false);
  streams.run(300);
  const std::size_t raised = pairs_raised();
  FailoverWorld::port("soft1", true);
  REQUIRE(eventually([&] {
    streams.run(streams.received() + 10);
    return pairs_raised() == raised + 4 * kLinks;
  }));
  CAPTURE(log.warnings());
  CHECK_FALSE(log.has("is lost"));
  CHECK(log.has("goes on over soft0 ("));
  // Each member had one queue pair then at each end, of its own, and has two now.
  CHECK(raised == shared + 2 * kLinks);
}

// Nothing but a completion tells of it, and of one pair only.
TEST_CASE("An error of a shared pair makes all its members fail over") {
  const int pairs = GENERATE(1, 2);
  const WrKind failing_kind = GENERATE(WrKind::send_data, WrKind::cts);
  INFO(pairs << " pairs, " << work_name(static_cast<int>(failing_kind)));
  LogCapture log;
  FailoverWorld w(failing(pairs));
  Streams streams(w, 3);
  streams.run(50);
  const std::size_t before = pairs_raised();
  Tap::fail_status = IBV_WC_RETRY_EXC_ERR;
  Tap::fail_completion = failing_kind;
  streams.run(200);
  CAPTURE(log.warnings());
  CHECK_FALSE(log.has("is lost"));
  CHECK(pairs_raised() >= before + 2 * 3);
}

}  // namespace
}  // namespace twinpath::test
