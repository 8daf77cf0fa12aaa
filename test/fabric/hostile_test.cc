// Handshakes that go wrong on purpose, with the handle's nonce and without it, while honest peers
// connect through the same listener.  TWINPATH_LONG=1: 1500 of each; TWINPATH_TEST_SEED: other
// ones.
#include <sys/socket.h>

#include <cstring>
#include <list>
#include <random>

#include "plugin/base/host.h"
#include "proxy/wire/handshake.h"
#include "test/fabric/world.h"
#include "test/support/descriptors.h"
#include "test/support/numbers.h"

namespace twinpath::test {
namespace {

using Bytes = std::vector<std::uint8_t>;

// What an honest connector says: of a connect to a listener that is played here, which answers with
// the connector's own hello.
class Recording {
 public:
  Bytes hello, queues;  // bodies
  explicit Recording(World& world) : session_(world.open(77, -1)) {
    auto socket = TcpListener::open(control_interface(world.config).take());
    REQUIRE(socket);
    listener_ = std::move(socket).take();
    Handle handle;
    handle.nonce = nonce_ = random_nonce();
    handle.address = listener_.address();
    handle.host_hash = host_hash();
    encode_handle(handle, bytes_);
    hello = next();
    say(FrameType::hello, hello);
    queues = next();
  }
  // The body of the connector's next frame.
  Bytes next() {
    Bytes header(kFrameHeaderBytes), body;
    std::size_t got = 0, body_got = 0;
    REQUIRE(eventually([&] {
      REQUIRE(connect() == Status::again);
      if (!caller_.is_open()) {
        if (auto accepted = listener_.accept()) caller_ = std::move(accepted).take();
        return false;
      }
      if (got < header.size()) {
        if (caller_.recv_part(header, got) != Status::ok) return false;
        body.resize(decode_header(std::span<const std::uint8_t, kFrameHeaderBytes>(header.data(),
                                                                                   header.size()))
                        .body_bytes);
      }
      return caller_.recv_part(body, body_got) == Status::ok;
    }));
    return body;
  }
  void say(FrameType type, const Bytes& body) {
    std::size_t sent = 0;
    REQUIRE(caller_.send_part(make_frame(type, nonce_, body), sent) == Status::ok);
  }
  Status connect() { return session_->connect(0, bytes_, comm_); }

 private:
  std::unique_ptr<Session> session_;
  TcpListener listener_;
  Nonce nonce_{};
  HandleArray bytes_{};
  std::unique_ptr<SendComm> comm_;
  TcpSocket caller_;
};

class Dice {
 public:
  explicit Dice(std::uint64_t seed) : engine_(seed) {}
  std::size_t below(std::size_t n) { return static_cast<std::size_t>(engine_() % n); }
  Bytes rubbish(std::size_t n) {
    Bytes b(n);
    for (auto& byte : b) byte = static_cast<std::uint8_t>(engine_());
    return b;
  }
  // Some bytes become others.
  Bytes spoiled(Bytes b) {
    for (std::size_t i = 0, n = 1 + below(8); i < n && !b.empty(); ++i)
      b[below(b.size())] = static_cast<std::uint8_t>(engine_());
    return b;
  }

 private:
  std::mt19937_64 engine_;
};

void add(Bytes& to, const Bytes& more) { to.insert(to.end(), more.begin(), more.end()); }

// One caller: says what it has to say, in pieces, waits, and goes.  It never gets to the end of a
// handshake: no "ready" of it is right.
class Hostile {
 public:
  Hostile(const Handle& handle, const Recording& honest, bool knows_nonce, Dice& dice)
      : bytes_(words(honest, knows_nonce ? handle.nonce : random_nonce(), dice)) {
    if (dice.below(4) == 0) bytes_.resize(dice.below(bytes_.size() + 1));
    piece_ = dice.below(3) == 0 ? 1 + dice.below(40) : bytes_.size() + 1;
    rest_ = static_cast<std::int64_t>(dice.below(30)) * kMillisecond;
    resets_ = dice.below(3) == 0;
    if (auto s = TcpSocket::connect(handle.address)) socket_ = std::move(s).take();
  }
  // True when it has gone.
  bool step() {
    std::string why;
    if (!connected_) {
      const Status s = socket_.finish_connect(why);
      connected_ = s == Status::ok;
      return s != Status::ok && s != Status::again;
    }
    while (sent_ < bytes_.size()) {
      const std::size_t end = std::min(sent_ + piece_, bytes_.size());
      const Status s = socket_.send_part({bytes_.data(), end}, sent_);
      if (s != Status::ok && s != Status::again) return true;  // dropped, as it should be
      if (sent_ < bytes_.size()) return false;                 // the next piece in the next turn
    }
    if (leaves_ == 0) leaves_ = now_ns() + rest_;
    if (now_ns() < leaves_) return false;
    if (resets_) {
      const linger hard{1, 0};
      (void)setsockopt(socket_.fd(), SOL_SOCKET, SO_LINGER, &hard, sizeof hard);
    }
    socket_.close();
    return true;
  }

 private:
  static Bytes words(const Recording& honest, const Nonce& nonce, Dice& dice) {
    const auto frame = [&](FrameType type, const Bytes& body) {
      return make_frame(type, nonce, body);
    };
    const auto odd_type = [&] { return static_cast<FrameType>(4 + dice.below(100)); };
    Bytes b;
    switch (dice.below(10)) {
      case 0:
        return dice.rubbish(dice.below(200));
      case 1:
        return frame(FrameType::hello, dice.spoiled(honest.hello));
      case 2:
        return frame(odd_type(), dice.rubbish(dice.below(300)));
      case 3: {  // a length that is not that of the body
        b = frame(FrameType::hello, honest.hello);
        const auto length =
            static_cast<std::uint32_t>(dice.below(2) == 0 ? dice.below(10000) : ~0u);
        std::memcpy(b.data() + 8, &length, sizeof length);
        return b;
      }
      case 4:
        b = frame(FrameType::hello, honest.hello);
        b[4] = static_cast<std::uint8_t>(5 + dice.below(200));  // the version
        return b;
      case 5:
        return frame(FrameType::ready, {});
      case 6:
        b = frame(FrameType::hello, honest.hello);
        add(b, frame(FrameType::queues, dice.spoiled(honest.queues)));
        return b;
      case 7:
        b = frame(FrameType::hello, honest.hello);
        add(b, frame(FrameType::queues, honest.queues));
        add(b, frame(odd_type(), dice.rubbish(dice.below(50))));
        return b;
      case 8:
        b = frame(FrameType::hello, honest.hello);
        add(b, frame(FrameType::refuse, dice.rubbish(dice.below(2000))));
        return b;
      default:
        b = frame(FrameType::hello, honest.hello);
        add(b, dice.rubbish(kFrameHeaderBytes + dice.below(100)));
        return b;
    }
  }

  Bytes bytes_;
  TcpSocket socket_;
  std::size_t sent_ = 0, piece_ = 0;
  std::int64_t rest_ = 0, leaves_ = 0;
  bool connected_ = false, resets_ = false;
};

// Stands before a listener, closes the first calls without a word and passes the others on.
class Doorkeeper {
 public:
  Doorkeeper(const Config& config, HandleArray& handle, int closes) : closes_(closes) {
    auto door = TcpListener::open(control_interface(config).take());
    REQUIRE(door);
    door_ = std::make_unique<TcpListener>(std::move(door).take());
    Handle h;
    std::string why;
    REQUIRE(decode_handle(handle, h, why));
    behind_ = h.address;
    h.address = door_->address();
    encode_handle(h, handle);
  }
  void turn() {
    if (auto caller = door_->accept(); caller && closes_ > 0) {
      --closes_;
      caller->close();
    } else if (caller) {
      passed_.push_back({std::move(caller).take(), TcpSocket::connect(behind_).take()});
    }
    for (auto& [from, to] : passed_) {
      pass(from.fd(), to.fd());
      pass(to.fd(), from.fd());
    }
  }
  int left() const { return closes_; }

 private:
  static void pass(int from, int to) {
    std::array<char, 4096> bytes;
    const ssize_t n = recv(from, bytes.data(), bytes.size(), MSG_DONTWAIT);
    if (n > 0) REQUIRE(send(to, bytes.data(), static_cast<std::size_t>(n), MSG_NOSIGNAL) == n);
  }
  int closes_;
  std::unique_ptr<TcpListener> door_;
  SocketAddress behind_;
  std::vector<std::pair<TcpSocket, TcpSocket>> passed_;
};

TEST_CASE("Who was dropped before it was heard calls again") {
  LogCapture log;
  World world;
  HandleArray handle{};
  std::unique_ptr<Listener> listener;
  REQUIRE(world.b->listen(1, handle, listener) == Status::ok);
  Link link;
  SECTION("until it is") {
    Doorkeeper door(world.config, handle, 3);
    REQUIRE(eventually(
        [&] {
          door.turn();
          if (!link.send) {
            const Status s = world.a->connect(0, handle, link.send);
            REQUIRE((s == Status::ok || s == Status::again));
          }
          if (!link.recv) (void)listener->accept(link.recv);
          return link.send && link.recv;
        },
        20000));
    CHECK(door.left() == 0);
    CHECK(log.warnings().empty());
  }
  SECTION("and says at its limit what it met") {
    world.config.connect_timeout_ms = 1500;
    World brief(world.config);
    Doorkeeper door(world.config, handle, 1000);
    Status s = Status::again;
    REQUIRE(eventually(
        [&] {
          door.turn();
          s = brief.a->connect(0, handle, link.send);
          return s != Status::again;
        },
        20000));
    CHECK(s == Status::remote);
    CHECK(log.has(LogLevel::warn, "calls without a word: it is crowded by strangers"));
  }
}

TEST_CASE("An acceptor that always finds shared queue pairs failed is believed once") {
  const int pairs = GENERATE(0, 1);
  INFO(pairs << " pairs");
  LogCapture log;
  Config config = soft_config();
  config.qps_per_peer = pairs;
  World world(config);
  Recording connector(world);
  Queues first, then;
  std::string why;
  REQUIRE(decode_queues(connector.queues, first, why));
  connector.say(FrameType::other_sets, {});
  if (pairs > 0) {
    REQUIRE(decode_queues(connector.next(), then, why));
    REQUIRE(then.shares.size() == first.shares.size());
    CHECK(then.shares[0].set != first.shares[0].set);
    connector.say(FrameType::other_sets, {});
  }
  Status s = Status::again;
  REQUIRE(eventually([&] { return (s = connector.connect()) != Status::again; }));
  CHECK(s == Status::remote);
  CHECK(log.has(LogLevel::warn, "the queue pairs that it would share have failed there"));
}

TEST_CASE("Honest peers connect and exchange while hostile ones call, with the nonce and without") {
  const std::uint64_t seed = number_from("TWINPATH_TEST_SEED", 1);
  const bool long_run = number_from("TWINPATH_LONG", 0) != 0;
  const std::size_t kCallers = long_run ? 3000 : 600;
  CAPTURE(seed);
  Config config = soft_config();
  config.connect_timeout_ms = 60000;
  World world(config);
  const Recording honest(world);
  HandleArray handle{};
  std::unique_ptr<Listener> listener;
  REQUIRE(world.b->listen(1, handle, listener) == Status::ok);
  Handle known;
  std::string why;
  REQUIRE(decode_handle(handle, known, why));
  Dice dice(seed);
  (void)world.connect();  // sessions keep what their first connection needs
  const std::size_t descriptors = open_descriptors();
  const std::int64_t started = now_ns();
  std::size_t called = 0, refused = 0, links = 0;
  std::int64_t slowest = 0;
  {
    LogCapture log;
    std::list<Hostile> callers;
    const auto turn = [&] {
      // Fewer than a listener takes at a time: with the nonce each holds its place.
      for (; callers.size() < 30 && called < kCallers; ++called)
        callers.emplace_back(known, honest, called % 2 == 0, dice);
      std::erase_if(callers, [](Hostile& h) { return h.step(); });
    };
    while (called < kCallers || !callers.empty()) {
      Link link;
      HandleArray copy = handle;
      const std::int64_t begin = now_ns();
      REQUIRE(eventually(
          [&] {
            turn();
            if (!link.send) {
              const Status s = world.a->connect(0, copy, link.send);
              REQUIRE((s == Status::ok || s == Status::again));
            }
            if (!link.recv && listener->accept(link.recv) != Status::ok) ++refused;
            return link.send && link.recv;
          },
          60000));
      slowest = std::max(slowest, now_ns() - begin);
      Buffer from(*link.send, 5000, static_cast<unsigned>(links)), to(*link.recv, 5000);
      to.clear();
      Request* receive = start_recv(*link.recv, {to.receive(0)});
      finish(start_send(*link.send, from, 5000, 0, receive));
      CHECK(finish(receive).bytes[0] == 5000);
      CHECK(to.holds(static_cast<unsigned>(links), 5000));
      ++links;
    }
    // Who knew the nonce is told of by name, strangers in one line a minute.
    std::size_t strangers = 0;
    for (const std::string& line : log.warnings())
      if (line.find("belong to no connection") != std::string::npos ||
          line.find("said nothing") != std::string::npos)
        ++strangers;
    CHECK(strangers >= 1);
    CHECK(strangers <= 1 + static_cast<std::size_t>((now_ns() - started) / (60 * kSecond)));
    CHECK(log.warnings().size() <= kCallers / 2 + strangers);
    std::unique_ptr<RecvComm> nobody;
    CHECK(eventually(
        [&] {
          (void)listener->accept(nobody);
          return open_descriptors() <= descriptors;
        },
        10000));
  }
  if (long_run)
    WARN(called << " hostile callers, " << links << " honest connections, the slowest after "
                << slowest / kMillisecond << " ms");
}

}  // namespace
}  // namespace twinpath::test
