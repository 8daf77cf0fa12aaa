// The sockets between processes, two ends in one process and served by hand; strangers_test.cc has
// whole adapters.
#include "plugin/fabric/soft/peer_sockets.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstddef>
#include <future>
#include <latch>
#include <optional>
#include <set>
#include <string>

#include "plugin/base/clock.h"
#include "plugin/fabric/soft/qp_table.h"
#include "test/soft/processes.h"
#include "test/support/catch.h"
#include "test/support/log_capture.h"

using namespace twinpath;
using namespace twinpath::soft;
using namespace twinpath::test;

namespace {

// A process as others see it, that does nothing unless it is served.
struct Process : MessageHandler {
  PeerSockets sockets;
  std::unique_ptr<KeyTable> keys = std::move(KeyTable::create()).take();
  EventWait wait{"test"};
  std::vector<MessageKind> requests, replies;
  std::vector<std::shared_ptr<Holder>> holders;
  std::vector<int> counts;
  Status answer = Status::ok;
  std::optional<Message> reply;  // to each request
  Message last{};                // of those

  explicit Process(const std::string& job, bool direct = true) : sockets(job, 1024, direct) {
    std::string why;
    REQUIRE(sockets.start(*keys, why) == Status::ok);
  }
  Status on_request(Caller& caller, Received& r) override {
    CHECK(caller.slot == r.message.slot);
    holders.push_back(caller.holder);
    requests.push_back(r.message.kind);
    last = r.message;
    if (reply) CHECK(caller.wire.send(*reply, {keys->keys_fd(), keys->board_fd()}));
    return answer;
  }
  Status on_reply(Peer& peer, Received& r) override {
    CHECK(peer.slot == r.message.slot);
    replies.push_back(r.message.kind);
    return answer;
  }
  void on_peers(int count) override { counts.push_back(count); }
  // Whatever is there already.
  void serve() {
    for (int i = 0; i < 4; ++i) sockets.serve(wait, 0, *this);
  }
};

std::string new_job() {
  static int last = 0;
  return "sockets" + std::to_string(getpid()) + "-" + std::to_string(++last);
}

Message message(MessageKind kind, std::uint32_t slot) {
  Message m{};
  m.kind = kind;
  m.slot = slot;
  return m;
}

struct Two {
  std::string job = new_job();
  Process a{job}, b{job};

  // a's view of b.
  std::shared_ptr<Peer> greet() {
    auto peer = a.sockets.reach(b.sockets.slot());
    REQUIRE(peer);
    b.serve();
    a.serve();
    return *peer;
  }
};

// A process that connects without knowing the protocol.
struct Rude {
  Wire wire;
  explicit Rude(const Two& two, std::uint32_t slot) : wire(socket_to(two.job, slot), -1) {}
  static UniqueFd socket_to(const std::string& job, std::uint32_t slot) {
    std::string why;
    UniqueFd fd = std::move(Rendezvous(job, 1024).reach(slot, why)).take();
    REQUIRE(fcntl(fd.get(), F_SETFL, O_NONBLOCK) == 0);
    return fd;
  }
  bool send(MessageKind kind, std::uint32_t slot) { return wire.send(message(kind, slot)); }
  bool greet(std::uint32_t slot) {
    auto holds = SharedMemory::create("holds", sizeof(Holds), Writers::creator);
    return wire.send(message(MessageKind::greeting, slot), {(*holds).fd(), -1});
  }
  Status heard() {
    Received r;
    return wire.receive(r);
  }
};

}  // namespace

TEST_CASE("peer sockets: each process of a job has a slot, and reaches another by it", "[soft]") {
  Two two;
  CHECK(two.a.sockets.slot() != two.b.sockets.slot());
  CHECK(two.a.sockets.prefix() == two.b.sockets.prefix());
  CHECK(two.a.sockets.known(two.b.sockets.slot()) == nullptr);

  auto peer = two.a.sockets.reach(two.b.sockets.slot());
  REQUIRE(peer);
  CHECK_FALSE((*peer)->greeted);  // b has not been served yet
  two.b.serve();
  two.a.serve();
  CHECK((*peer)->greeted);
  CHECK((*peer)->slot == two.b.sockets.slot());
  CHECK((*peer)->pid == getpid());
  CHECK((*peer)->board != nullptr);
  CHECK(two.a.counts == std::vector{1});
  CHECK(two.a.sockets.known(two.b.sockets.slot()) == *peer);
  CHECK(*two.a.sockets.reach(two.b.sockets.slot()) == *peer);
  // Greetings are nobody else's; and b has not connected to a.
  CHECK(two.a.replies.empty());
  CHECK(two.b.requests.empty());
  CHECK(two.b.sockets.known(two.a.sockets.slot()) == nullptr);
}

TEST_CASE("peer sockets: what a peer shows of its keys is what it has", "[soft]") {
  Two two;
  const auto peer = two.greet();
  const std::uint32_t key =
      two.b.keys->add(7, 0x1000, 0x1000, 64, IBV_ACCESS_REMOTE_READ, PointerInfo{}, 0);
  const HeldKey held = peer->keys.hold(key, 0x1000, 64, IBV_ACCESS_REMOTE_READ, 7);
  REQUIRE(held);
  // What a holds came with the greeting: b's deregistration waits for it, 2 s at most.
  auto removed = std::async(std::launch::async, [&] { two.b.keys->remove(key); });
  CHECK(removed.wait_for(std::chrono::milliseconds(50)) == std::future_status::timeout);
  KeyView::drop(held);
  removed.get();
  CHECK_FALSE(peer->keys.hold(key, 0x1000, 64, IBV_ACCESS_REMOTE_READ, 7));
}

TEST_CASE("peer sockets: direct access is found out, and may be ruled out", "[soft]") {
  const bool wanted = GENERATE(true, false);
  const std::string job = new_job();
  Process a(job, wanted), b(job);
  auto peer = a.sockets.reach(b.sockets.slot());
  REQUIRE(peer);
  b.serve();
  a.serve();
  REQUIRE((*peer)->greeted);
  CHECK((*peer)->direct == wanted);  // of the own process it is allowed everywhere
}

TEST_CASE("peer sockets: many who reach a process at once make one connection", "[soft]") {
  constexpr int kThreads = 8;
  for (int round = 0; round < 8; ++round) {
    Two two;
    std::latch all_there(kThreads);
    std::vector<std::future<Result<std::shared_ptr<Peer>>>> all;
    for (int i = 0; i < kThreads; ++i) {
      all.push_back(std::async(std::launch::async, [&] {
        all_there.arrive_and_wait();
        return two.a.sockets.reach(two.b.sockets.slot());
      }));
    }
    std::set<std::shared_ptr<Peer>> peers;
    for (auto& one : all) {
      auto peer = one.get();
      REQUIRE(peer);
      peers.insert(*peer);
    }
    CHECK(peers.size() == 1);
  }
}

TEST_CASE("peer sockets: nobody is at a slot that nobody took", "[soft]") {
  Two two;
  std::uint32_t free = 0;
  while (free == two.a.sockets.slot() || free == two.b.sockets.slot()) ++free;
  // Nor where a name is listed and refuses: that of a process which has just ended, or of another
  // kind of socket.
  UniqueFd other;
  if (GENERATE(false, true)) {
    other = UniqueFd(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_un at{};
    at.sun_family = AF_UNIX;
    const std::string name =
        two.a.sockets.prefix() + std::to_string(free) + "-" + std::string(32, '0');
    name.copy(at.sun_path + 1, sizeof at.sun_path - 1);
    const auto length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
    REQUIRE(bind(other.get(), reinterpret_cast<const sockaddr*>(&at), length) == 0);
    REQUIRE(listen(other.get(), 1) == 0);
  }
  const LogCapture log;
  CHECK(two.a.sockets.reach(free).status() == Status::closed);
  CHECK(log.warnings().empty());
}

TEST_CASE("peer sockets: requests and replies go to the handler, who may end it", "[soft]") {
  Two two;
  const auto peer = two.greet();
  const std::uint32_t a = two.a.sockets.slot(), b = two.b.sockets.slot();
  two.a.sockets.tell(message(MessageKind::gone, a));
  two.b.serve();
  CHECK(two.b.requests == std::vector{MessageKind::gone});
  CHECK_FALSE(peer->dead);

  const LogCapture log;
  two.b.answer = GENERATE(Status::closed, Status::bad_argument);
  two.a.sockets.tell(message(MessageKind::offer, a));
  two.b.serve();
  CHECK(log.warnings().size() == (two.b.answer == Status::closed ? 0u : 1u));
  CHECK(two.b.holders.front().use_count() == 2);  // the test's: the table of keys waits for nobody
  CHECK(two.b.holders.front()->gone);
  two.a.serve();
  CHECK(peer->dead);
  CHECK(two.a.sockets.known(b) == nullptr);

  // Who has ended is not counted, and the next connection is another, and whole.
  Process c(two.job);
  REQUIRE(two.a.sockets.reach(c.sockets.slot()));
  c.serve();
  two.a.serve();
  CHECK(two.a.counts == std::vector{1, 1});
  two.b.answer = Status::ok;
  const auto next = two.greet();
  CHECK(next != peer);
  CHECK(next->greeted);
  CHECK(two.a.sockets.known(b) == next);
}

TEST_CASE("peer sockets: who does not greet, or greets again, is not heard", "[soft]") {
  Two two;
  const std::uint32_t b = two.b.sockets.slot();
  Rude rude(two, b);
  const LogCapture log;
  SECTION("a request first") { REQUIRE(rude.send(MessageKind::offer, GENERATE(0u, 5u))); }
  SECTION("as two") {
    REQUIRE(rude.greet(5));
    two.b.serve();
    REQUIRE(rude.heard() == Status::ok);
    REQUIRE(rude.send(MessageKind::offer, 6));
  }
  SECTION("twice") {
    REQUIRE(rude.greet(5));
    two.b.serve();
    REQUIRE(rude.heard() == Status::ok);
    REQUIRE(rude.greet(5));
  }
  SECTION("without its memory") { REQUIRE(rude.send(MessageKind::greeting, 5)); }
  REQUIRE(rude.heard() == Status::again);
  two.b.serve();
  CHECK(rude.heard() == Status::closed);
  CHECK(two.b.requests.empty());
  CHECK_FALSE(log.warnings().empty());
}

TEST_CASE("peer sockets: who replies as another, or welcomes twice, is dropped", "[soft]") {
  Two two;
  const auto peer = two.greet();
  const std::uint32_t b = two.b.sockets.slot();
  bool good = false;
  SECTION("as itself") {
    two.b.reply = message(MessageKind::export_reply, b);
    good = true;
  }
  SECTION("as another") { two.b.reply = message(MessageKind::export_reply, b + 1); }
  SECTION("a welcome") { two.b.reply = message(MessageKind::welcome, b); }
  const LogCapture log;
  two.a.sockets.tell(message(MessageKind::gone, two.a.sockets.slot()));
  two.b.serve();
  two.a.serve();
  CHECK(peer->dead == !good);
  CHECK(two.a.replies.size() == (good ? 1u : 0u));
  CHECK(log.warnings().empty() == good);
}

// It lives, so the retries that an adapter has for whoever is slow would be waited for.
TEST_CASE("peer sockets: who accepts a link without its half is as a dead host", "[soft]") {
  Options o;
  o.timeout = 20;
  o.retry_cnt = 7;  // 34 s
  Side s(o);
  Process p("");
  const std::uint32_t own = s.qp->qp_num, far = p.sockets.slot() << kSlotShift | 5;
  if (far < own) return;  // the lower number offers, and slots go round
  s.connect(far, s.gid);
  const auto serve_until = [&](auto done) {
    for (const std::int64_t end = now_ns() + 20 * kSecond; !done() && now_ns() < end;) p.serve();
    REQUIRE(done());
  };
  serve_until([&] { return p.last.kind == MessageKind::offer; });
  const auto peer = p.sockets.reach(own >> kSlotShift);
  REQUIRE(peer);
  serve_until([&] { return (*peer)->greeted.load(); });
  Message m = message(MessageKind::acceptance, p.sockets.slot());
  m.a = far;
  m.b = own;
  m.link = p.last.link;
  const LogCapture log;
  auto none = SharedMemory::create("none", 64, Writers::creator);
  REQUIRE((*peer)->wire.send(m, {none->fd(), -1}));
  auto w = s.request(IBV_WR_RDMA_WRITE, 0, 8, 0, 0);
  REQUIRE(s.post(w) == 0);
  CHECK(wait(s, 10).status == IBV_WC_RETRY_EXC_ERR);
  CHECK(log.has(LogLevel::warn, "accepts a connection, but"));
}

TEST_CASE("peer sockets: a wait ends when it is woken", "[soft]") {
  Process p(new_job());
  p.sockets.wake();
  const std::int64_t begin = now_ns();
  p.sockets.serve(p.wait, 10'000'000, p);
  CHECK(now_ns() - begin < 5 * kSecond);
  // That wake is used up.
  const std::int64_t second = now_ns();
  p.sockets.serve(p.wait, 20'000, p);
  CHECK(now_ns() - second >= 20 * kMillisecond);
}

TEST_CASE("peer sockets: a forked child has none of them", "[soft]") {
  Two two;
  const auto peer = two.greet();
  const int fd = peer->wire.fd();
  two.a.sockets.before_fork();
  const pid_t child = fork();
  if (child == 0) {
    two.a.sockets.after_fork(true);
    _exit(fcntl(fd, F_GETFD) == -1 ? 0 : 1);
  }
  two.a.sockets.after_fork(false);
  REQUIRE(child > 0);
  int status = -1;
  REQUIRE(waitpid(child, &status, 0) == child);
  CHECK(status == 0);
  CHECK(fcntl(fd, F_GETFD) != -1);
  // And it goes on where it was.
  two.a.sockets.tell(message(MessageKind::gone, two.a.sockets.slot()));
  two.b.serve();
  CHECK(two.b.requests.size() == 1);
}
