// Parts of a connection in the making, each alone: its frames, what both hellos come to, and how
// long it waits for, and calls, who says nothing.
#include <algorithm>

#include "plugin/base/clock.h"
#include "proxy/connect/frame_exchange.h"
#include "proxy/connect/making_clock.h"
#include "proxy/connect/unheard_calls.h"
#include "proxy/wire/failover.h"
#include "proxy/wire/hello_pair.h"
#include "proxy/wire/stripe.h"
#include "test/support/catch.h"
#include "test/support/far_end.h"

namespace twinpath {
namespace {

using Octets = FarEnd::Bytes;

constexpr Nonce kOurs{1, 2, 3};

// Little room on the way out, so that a long frame does not go at once.
struct Narrow : FarEnd {
  TcpSocket socket = near_end();
  Narrow() {
    const int bytes = 1;  // the system takes its least
    REQUIRE(::setsockopt(fds[0], SOL_SOCKET, SO_SNDBUF, &bytes, sizeof bytes) == 0);
  }
};

TEST_CASE("A frame comes in as many pieces as it likes, and the next one after it") {
  FarEnd far;
  TcpSocket socket = far.near_end();
  FrameExchange frames(kOurs);
  const Octets body{7, 8, 9};
  Octets bytes = make_frame(FrameType::hello, kOurs, body);
  for (std::size_t i = 0; i + 1 < bytes.size(); ++i) {
    CHECK(frames.receiving() == (i > 0));
    CHECK(frames.heard() == (i >= kFrameHeaderBytes));
    far.say(&bytes[i], 1);
    REQUIRE(frames.receive(socket) == Status::again);
  }
  const Octets longer{1, 2, 3, 4};
  const Octets next = make_frame(FrameType::queues, kOurs, longer);
  bytes.insert(bytes.end(), next.begin(), next.end());
  far.say(&bytes[kFrameHeaderBytes + 2], 1 + next.size());
  REQUIRE(frames.receive(socket) == Status::ok);
  CHECK(frames.header().type == FrameType::hello);
  CHECK(Octets(frames.body().begin(), frames.body().end()) == body);
  CHECK_FALSE(frames.receiving());
  REQUIRE(frames.receive(socket) == Status::ok);
  CHECK(frames.header().type == FrameType::queues);
  CHECK(Octets(frames.body().begin(), frames.body().end()) == longer);
  CHECK(frames.receive(socket) == Status::again);
}

TEST_CASE("Bytes that are not of this listener's handle make nobody a peer") {
  const auto received = [](Octets bytes) {
    FarEnd far;
    TcpSocket socket = far.near_end();
    FrameExchange frames(kOurs);
    far.say(bytes);
    const Status s = frames.receive(socket);
    CHECK(frames.heard() == (s == Status::ok));
    return s;
  };
  const Octets good = make_frame(FrameType::hello, kOurs, Octets(kMaxFrameBody));
  CHECK(received(good) == Status::ok);
  Octets magic = good;
  magic[0] ^= 1;
  CHECK(received(magic) == Status::bad_argument);
  CHECK(received(make_frame(FrameType::hello, Nonce{1, 2, 4}, {})) == Status::bad_argument);
  CHECK(received(make_frame(FrameType::hello, kOurs, Octets(kMaxFrameBody + 1))) ==
        Status::bad_argument);
}

TEST_CASE("A frame of another version is handed out: its refusal can be read") {
  FarEnd far;
  TcpSocket socket = far.near_end();
  FrameExchange frames(kOurs);
  Octets bytes = make_frame(FrameType::refuse, kOurs, encode_refusal("too old"));
  ++bytes[4];  // the version
  far.say(bytes);
  REQUIRE(frames.receive(socket) == Status::ok);
  CHECK(frames.header().version == kProtocolVersion + 1);
  CHECK(decode_refusal(frames.body()) == "too old");
}

TEST_CASE("A frame goes out in parts, and no refusal gets into it") {
  Narrow far;
  FrameExchange frames(kOurs);
  const Octets body(kMaxFrameBody, 5);
  Octets heard;
  const auto hear = [&] {
    const Octets more = far.hear();
    heard.insert(heard.end(), more.begin(), more.end());
  };
  int calls = 1;
  for (; frames.send(far.socket, FrameType::queues, body) == Status::again; ++calls) {
    REQUIRE(calls < 100);
    hear();
    frames.refuse(far.socket, "no");
  }
  REQUIRE(calls > 1);
  hear();
  CHECK(heard == make_frame(FrameType::queues, kOurs, body));
  frames.refuse(far.socket, "no");
  CHECK(far.hear() == make_frame(FrameType::refuse, kOurs, encode_refusal("no")));
}

TEST_CASE("A frame that was cut off by the socket's end is not gone on with on another") {
  const bool ended = GENERATE(true, false);
  FrameExchange frames(kOurs);
  {
    Narrow far;
    REQUIRE(frames.send(far.socket, FrameType::hello, Octets(kMaxFrameBody)) == Status::again);
    if (ended) {
      REQUIRE(::shutdown(far.fds[1], SHUT_RDWR) == 0);
      const Status s = frames.send(far.socket, FrameType::hello, Octets(kMaxFrameBody));
      CHECK(s != Status::ok);
      CHECK(s != Status::again);
    } else {
      frames.start_over();
    }
  }
  FarEnd far;
  TcpSocket socket = far.near_end();
  REQUIRE(frames.send(socket, FrameType::ready, {}) == Status::ok);
  CHECK(far.hear() == make_frame(FrameType::ready, kOurs, {}));
}

TEST_CASE("The end of the socket inside a frame is told, and that the frame had begun") {
  FarEnd far;
  TcpSocket socket = far.near_end();
  FrameExchange frames(kOurs);
  far.say(make_frame(FrameType::hello, kOurs, Octets(3)).data(), kFrameHeaderBytes + 1);
  REQUIRE(::shutdown(far.fds[1], SHUT_RDWR) == 0);
  CHECK(frames.receive(socket) == Status::closed);
  CHECK(frames.receiving());
}

TEST_CASE("A hello is waited for until its limit, by time in which somebody looked") {
  HelloClock looked(1000), away(1000);
  for (std::int64_t at = 1; at < 1000; ++at) REQUIRE_FALSE(looked.over(at));
  CHECK(looked.over(1000));
  // A pause counts as one step, a quarter of the limit.
  CHECK_FALSE(away.over(1));
  CHECK_FALSE(away.over(1'000'000));
  CHECK_FALSE(away.over(2'000'000));
  CHECK_FALSE(away.over(3'000'000));
  CHECK(away.over(4'000'000));
}

TEST_CASE("Calls that are not heard go on for the limit after the first of them") {
  UnheardCalls calls;
  CHECK(calls.text().empty());
  CHECK(calls.again(5000, 1000));
  CHECK(calls.again(5999, 1000));
  CHECK(calls.text().find("closed 2 calls without a word") != std::string::npos);
  CHECK_FALSE(calls.again(6000, 1000));
}

// Each end with that many RoCE rails, of different addresses, all regular.
HelloPair hellos(int mine, int theirs) {
  HelloPair p;
  const auto fill = [](Hello& h, const char* host, int rails, std::uint8_t network) {
    h.host = host;
    h.pid = 42;
    for (int i = 0; i < rails; ++i) {
      HelloRail r;
      r.port = "mlx5_" + std::to_string(i);
      r.roce = true;
      r.gid.raw[0] = network;
      r.gid.raw[15] = static_cast<std::uint8_t>(i + 1);
      h.rails.push_back(r);
    }
  };
  fill(p.mine, "alpha", mine, 1);
  fill(p.theirs, "beta", theirs, 2);
  return p;
}

TEST_CASE("Rails of two kinds of network do not reach each other; those in reserve do not matter") {
  HelloPair p = hellos(1, 2);
  p.theirs.rails[1].roce = false;
  std::string why;
  CHECK(p.check_rails(true, why) == Status::unsupported);
  CHECK(why ==
        "mlx5_0 of alpha is Ethernet but mlx5_1 of beta is InfiniBand; choose ports of one kind "
        "with NCCL_IB_HCA");
  p.theirs.standby = 1;
  CHECK(p.check_rails(true, why) == Status::ok);
}

TEST_CASE("Two hosts with one address are refused; one host has it at both ends") {
  HelloPair p = hellos(1, 1);
  p.theirs.rails[0].gid = p.mine.rails[0].gid;
  std::string why;
  CHECK(p.check_rails(false, why) == Status::ok);
  CHECK(p.check_rails(true, why) == Status::system);
  CHECK(why.find("mlx5_0 of alpha and mlx5_0 of beta have the same address") == 0);
  p.mine.rails[0].roce = p.theirs.rails[0].roce = false;  // a LID tells them apart
  CHECK(p.check_rails(true, why) == Status::ok);
}

TEST_CASE("Queues are as many as both ends want, those in reserve where both can fail over") {
  HelloPair p = hellos(2, 3);
  p.mine.standby = p.theirs.standby = 1;
  p.theirs.qps_per_connection = 2;
  CHECK(p.regular_queues() == queues_for(1, 2, 1, 2));
  CHECK(static_cast<int>(p.paths().queues.size()) == p.regular_queues());
  p.mine.capabilities = kCanFailOver;
  CHECK_FALSE(p.both_can_fail_over());
  CHECK_FALSE(p.can_fail_over());
  p.theirs.capabilities = kCanFailOver | 4;
  CHECK(p.both_can_fail_over());
  CHECK(p.can_fail_over());
  const QueuePaths paths = p.paths();
  CHECK(paths.regular == p.regular_queues());
  CHECK(static_cast<int>(paths.queues.size()) > paths.regular);
  CHECK(p.peer_process() == "beta pid 42");

  // Nothing is shared with who does not; else the fewer pairs of both.
  CHECK(p.shared_pairs() == 0);
  p.mine.shared_pairs = 4;
  CHECK(p.shared_pairs() == 0);
  p.theirs.shared_pairs = 2;
  CHECK(p.shared_pairs() == 2);

  HelloPair single = hellos(1, 1);
  single.mine.capabilities = single.theirs.capabilities = kCanFailOver;
  CHECK_FALSE(single.can_fail_over());
}

TEST_CASE("A path in reserve joins ports that can talk to each other") {
  HelloPair p = hellos(2, 2);
  p.mine.standby = p.theirs.standby = 1;
  p.mine.capabilities = p.theirs.capabilities = kCanFailOver;
  const auto in_reserve = [&p](int local, int remote) {
    const QueuePaths paths = p.paths();
    return std::find(paths.queues.begin() + paths.regular, paths.queues.end(),
                     QueuePath{local, remote}) != paths.queues.end();
  };
  CHECK(in_reserve(1, 1));
  p.theirs.rails[1].gid = p.mine.rails[1].gid;
  CHECK_FALSE(in_reserve(1, 1));
  p.theirs.rails[1].gid = p.mine.rails[1].gid = {};  // it may have an address later
  CHECK(in_reserve(1, 1));
  p.theirs.rails[1].gid = p.mine.rails[1].gid = p.mine.rails[0].gid;
  CHECK_FALSE(in_reserve(1, 1));
  p.theirs.host = p.mine.host;
  CHECK(in_reserve(1, 1));
  p.theirs.rails[1].roce = false;
  CHECK_FALSE(in_reserve(1, 1));
}

}  // namespace
}  // namespace twinpath
