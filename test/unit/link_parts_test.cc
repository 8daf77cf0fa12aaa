// Parts of a link, each alone: what it says of itself, when it looks at its peer, which errors it
// blames the path for, and what it asks the peer's adapter.
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <vector>

#include "plugin/base/clock.h"
#include "proxy/connect/link_text.h"
#include "proxy/connect/path_errors.h"
#include "proxy/connect/peer_probes.h"
#include "proxy/connect/watch_clock.h"
#include "test/support/catch.h"
#include "test/support/log_capture.h"

namespace twinpath {
namespace {

struct TwoRails {
  std::array<Port, 2> ports;
  std::vector<Rail> rails{2};
  PeerName peer;
  TwoRails() {
    for (std::size_t i = 0; i < 2; ++i) {
      ports[i].name = ports[i].device = "mlx5_" + std::to_string(i);
      rails[i].port.port = &ports[i];
      rails[i].gid.index = 3;
    }
    peer.rails.resize(3);
    peer.rails[0].port = "mlx5_7:1";
    peer.rails[0].gid_index = 5;
  }
};

TEST_CASE("A link names the ends of its first rail, and counts the others") {
  TwoRails here;
  CHECK(ends_text(here.rails, 0b01, here.peer) ==
        "from mlx5_0 GID index 3 :: (port 1) to mlx5_7:1 GID index 5 ::");
  CHECK(ends_text(here.rails, 0b11, here.peer).ends_with(":: and 1 more rail"));
  here.peer.regular = 3;  // of the end that has more
  CHECK(ends_text(here.rails, 0b11, here.peer).ends_with(":: and 2 more rails"));
}

TEST_CASE("A link says what it carried and waited for before it broke, if it had stood still") {
  const TwoRails here;
  counters::Connection counts{};
  const std::int64_t now = 100 * kSecond;
  const auto text = [&] { return last_text(counts, here.rails, 0b11, now); };
  CHECK(text().empty());  // nobody has waited
  counts.looked_at.set(now - 10 * kMillisecond);
  counts.since.set(counts.looked_at.get() - 99 * kMillisecond);
  CHECK(text().empty());
  counts.since.set(counts.looked_at.get() - 400 * kMillisecond);
  counts.in_flight.set(2);
  counts.waits_for.set(static_cast<std::uint32_t>(counters::Wait::network));
  counts.rails[0].bytes.add(3000);
  CHECK(
      text() ==
      "; before that nothing had moved for 400 ms while 2 requests waited for the network, after " +
          std::to_string(counts.messages()) + " messages (3000 bytes over mlx5_0, 0 over mlx5_1)");
  counts.waited_ns[static_cast<std::size_t>(counters::Wait::peer_cts)].add(1'250'000'000);
  counts.waited_ns[static_cast<std::size_t>(counters::Wait::flush)].add(99'000'000);
  counts.waited_ns[static_cast<std::size_t>(counters::Wait::network)].add(400'000'000);
  CHECK(text().ends_with(
      "; it had waited 1.2 s for the peer's clear-to-send, 0.4 s for the network in all"));
  // A rail in reserve that carried nothing is not told of, and one rail alone needs no sum.
  CHECK(last_text(counts, here.rails, 0b01, now).find("mlx5_") == std::string::npos);
  CHECK(last_text(counts, here.rails, 0b11, now + kSecond).empty());  // it has moved since
}

TEST_CASE("A link tells a process that ended from a host that knows nothing of it") {
  for (const bool unread : {false, true}) {
    CAPTURE(unread);
    std::array<int, 2> fds{};
    REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, fds.data()) == 0);
    const TcpSocket socket(UnsharedFd::make([&] { return fds[0]; }), SocketAddress());
    CHECK(death_text(socket).empty());
    CHECK(silence_text(socket).starts_with("the peer's host does not answer: no sign of life"));
    CHECK(silence_text(socket).find("NCCL_SOCKET_IFNAME") != std::string::npos);
    // What an end leaves unread is a reset to the other.
    if (unread) REQUIRE(::send(fds[0], "x", 1, MSG_NOSIGNAL) == 1);
    ::close(fds[1]);
    CHECK(death_text(socket).starts_with(unread ? "the peer's host reset the control connection ("
                                                : "the peer's process ended without closing"));
    CHECK(death_text(socket).ends_with("(dmesg) if that tells nothing"));
  }
}

TEST_CASE("A link says of a completion what failed and how, and of a rail how much it gets") {
  ibv_wc wc{};
  wc.status = IBV_WC_RETRY_EXC_ERR;
  wc.vendor_err = 0x81;
  WrId id;
  id.kind = WrKind::send_data;
  CHECK(completion_text(id, wc, "retries exceeded") ==
        "data write failed with retries exceeded (status 12, vendor error 0x81)");
  const TwoRails here;
  CHECK(pace_text(here.rails[1], here.peer.rails[0], true, 124)
            .starts_with(
                "finds rail mlx5_1 (to mlx5_7:1) slow beside the others: it now gets 12 % "));
  CHECK(pace_text(here.rails[1], here.peer.rails[0], false, 495) ==
        "finds rail mlx5_1 (to mlx5_7:1) as fast as its port again: it gets 50 % of each message");
  CHECK(not_registered_text(here.rails[1]).starts_with("mlx5_1, in reserve (TWINPATH_STANDBY)"));
}

TEST_CASE("A link looks when its period is over, and reads the clock for few calls") {
  WatchClock clock(100);
  int read = 0;
  for (unsigned i = 0; i < 3 * WatchClock::kCallsPerClock; ++i) read += clock.call() ? 1 : 0;
  CHECK(read == 3);
  CHECK_FALSE(clock.due(1000));  // the first period begins
  CHECK_FALSE(clock.due(1099));
  CHECK(clock.due(1100));
  CHECK_FALSE(clock.due(1199));
  CHECK(clock.due(5000));
  CHECK_FALSE(clock.due(5099));  // what was missed is not made up for
  CHECK(clock.due(5100));
}

TEST_CASE("The path is blamed for its own errors, and once for what may be a mistake") {
  PathErrors errors;
  for (const ibv_wc_status status :
       {IBV_WC_RETRY_EXC_ERR, IBV_WC_WR_FLUSH_ERR, IBV_WC_RESP_TIMEOUT_ERR, IBV_WC_REM_ABORT_ERR,
        IBV_WC_GENERAL_ERR}) {
    CHECK(errors.blamed(status, 1));
    CHECK(errors.blamed(status, 2));
  }
  for (const ibv_wc_status status :
       {IBV_WC_LOC_PROT_ERR, IBV_WC_REM_INV_REQ_ERR, IBV_WC_LOC_LEN_ERR})
    CHECK_FALSE(errors.blamed(status, 3));
  const std::int64_t first = kSecond, again = 500 * kMillisecond;
  for (const ibv_wc_status status : {IBV_WC_LOC_QP_OP_ERR, IBV_WC_REM_ACCESS_ERR}) {
    PathErrors doubtful;
    CHECK(doubtful.blamed(status, first));
    CHECK_FALSE(doubtful.blamed(status, first + again));
    CHECK_FALSE(doubtful.blamed(status, first + 2 * again));  // since the last
    CHECK(doubtful.blamed(status, first + 3 * again + 1));
  }
}

// A queue whose adapter keeps what is posted.
struct KeptPosts {
  static inline std::vector<ibv_send_wr> posted;
  ibv_context context{};
  ibv_qp qp{};
  Queue queue;
  explicit KeptPosts(int remote_rail) {
    posted.clear();
    qp.context = &context;
    context.ops.post_send = [](ibv_qp*, ibv_send_wr* wr, ibv_send_wr**) {
      posted.push_back(*wr);
      return 0;
    };
    queue.qp.reset(&qp);
    queue.remote_rail = remote_rail;
  }
  ~KeptPosts() { (void)queue.qp.release(); }  // no adapter made it
  KeptPosts(const KeptPosts&) = delete;
  KeptPosts& operator=(const KeptPosts&) = delete;
};

TEST_CASE("A link's questions name their queue, and the key of the rail that it leads to") {
  KeptPosts adapter(1);
  PeerMemory memory;
  memory.address = 0x1000;
  memory.rkeys = {70, 71};
  PeerProbes probes({4, 9}, memory);
  CHECK(probes.rkey(adapter.queue) == 71);
  CHECK(probes.post(adapter.queue, 3));
  CHECK(probes.post(adapter.queue, 3));  // who counts them asks as often as he will
  probes.ask(adapter.queue, 0);
  probes.ask(adapter.queue, 0);  // one at a time
  REQUIRE(KeptPosts::posted.size() == 3);
  const ibv_send_wr& wr = KeptPosts::posted[0];
  CHECK(wr.wr.rdma.remote_addr == 0x1000);
  CHECK(wr.wr.rdma.rkey == 71);
  CHECK(decode_wr_id(wr.wr_id) == WrId{4, 9, WrKind::probe, 3, 0});

  ibv_wc wc{};
  wc.wr_id = wr.wr_id;
  CHECK(probes.answered(wc, "host") == 3);
  CHECK(probes.answers() == 1);
  // Queues that were replaced answer for nobody, and say nothing of the new ones.
  probes.renew();
  const test::LogCapture log;
  wc.status = IBV_WC_WR_FLUSH_ERR;
  CHECK_FALSE(probes.answered(wc, "host"));
  CHECK(probes.answers() == 1);
  CHECK(log.lines().empty());
  CHECK(probes.post(adapter.queue, 2));
  wc.wr_id = KeptPosts::posted.back().wr_id;
  wc.status = IBV_WC_SUCCESS;
  CHECK(probes.answered(wc, "host") == 2);
  CHECK(probes.answers() == 2);
}

}  // namespace
}  // namespace twinpath
