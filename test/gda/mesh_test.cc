// The Mesh over loopback, ranks as threads: connecting in any order, strangers, exchanges of
// unequal and large data, and ranks that are late, die or leave.
#include "gda/connect/mesh.h"

#include <fcntl.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <functional>
#include <numeric>
#include <thread>

#include "gda/connect/mesh_wire.h"
#include "plugin/base/clock.h"
#include "test/support/catch.h"
#include "test/support/log_capture.h"
#include "test/support/needs.h"
#include "test/support/outage.h"

namespace twinpath::gda {
namespace {

using test::LogCapture;
using Blob = std::vector<std::uint8_t>;
using HandleArray = std::array<std::uint8_t, kHandleBytes>;

Config quick(int timeout_ms) {
  Config config;
  config.socket_ifname = "=lo";
  config.connect_timeout_ms = timeout_ms;
  return config;
}

// Listeners and handles of all ranks, as after NCCL's all-gather.
struct Team {
  explicit Team(std::size_t ranks, int timeout_ms = 20000) : config(quick(timeout_ms)) {
    handles.resize(ranks);
    for (HandleArray& handle : handles) {
      auto made = MeshListener::open(config, handle);
      REQUIRE(made);
      listeners.push_back(std::move(made).take());
    }
  }
  std::unique_ptr<Mesh> connect(std::size_t rank) {
    auto mesh = Mesh::connect(config, *listeners[rank], handles, static_cast<int>(rank));
    listeners[rank].reset();  // as NCCL closes it
    return mesh ? std::move(mesh).take() : nullptr;
  }
  // `body` on a thread per rank; false from any of them is false.
  bool each(const std::function<bool(std::size_t)>& body) const {
    std::vector<char> good(handles.size(), 0);
    std::vector<std::thread> threads;
    for (std::size_t r = 0; r < handles.size(); ++r)
      threads.emplace_back([&, r] { good[r] = body(r) ? 1 : 0; });
    for (std::thread& t : threads) t.join();
    return std::accumulate(good.begin(), good.end(), 0) == static_cast<int>(good.size());
  }
  std::vector<std::unique_ptr<Mesh>> connect_all() {
    std::vector<std::unique_ptr<Mesh>> meshes(handles.size());
    CHECK(each([&](std::size_t r) { return (meshes[r] = connect(r)) != nullptr; }));
    return meshes;
  }

  Config config;
  std::vector<HandleArray> handles;
  std::vector<std::unique_ptr<MeshListener>> listeners;
};

Blob pattern(std::size_t from, std::size_t to, std::size_t bytes) {
  Blob blob(bytes);
  for (std::size_t i = 0; i < bytes; ++i)
    blob[i] = static_cast<std::uint8_t>(from * 31 + to * 7 + i * 13);
  return blob;
}

bool gathers(Mesh& mesh, const std::function<std::size_t(std::size_t)>& bytes_of) {
  const auto me = static_cast<std::size_t>(mesh.rank());
  auto all = mesh.all_gather(pattern(me, 0, bytes_of(me)), "test data");
  if (!all || all->size() != static_cast<std::size_t>(mesh.ranks())) return false;
  for (std::size_t r = 0; r < all->size(); ++r)
    if ((*all)[r] != pattern(r, 0, bytes_of(r))) return false;
  return true;
}

bool crosses(Mesh& mesh, std::size_t bytes) {
  const auto me = static_cast<std::size_t>(mesh.rank());
  std::vector<Blob> to;
  for (std::size_t r = 0; r < static_cast<std::size_t>(mesh.ranks()); ++r)
    to.push_back(pattern(me, r, bytes + r));
  auto from = mesh.all_to_all(to, "test data");
  if (!from) return false;
  for (std::size_t r = 0; r < from->size(); ++r)
    if ((*from)[r] != pattern(r, me, bytes + me)) return false;
  return true;
}

// A plain connection to a rank's listener.
TcpSocket call(const HandleArray& bytes, Handle& handle) {
  std::string why;
  REQUIRE(decode_handle(bytes, handle, why));
  auto socket = TcpSocket::connect(handle.address);
  REQUIRE(socket);
  while (socket->finish_connect(why) == Status::again) (void)poll(nullptr, 0, 1);
  return std::move(socket).take();
}

Blob hello(const Nonce& nonce, std::uint32_t rank, std::uint32_t ranks,
           std::uint32_t magic = mesh::kHelloMagic, std::uint16_t version = mesh::kVersion) {
  Writer w;
  w.integer(magic);
  w.integer(version);
  w.integer(std::uint16_t{0});
  w.raw(nonce.data(), nonce.size());
  w.integer(rank);
  w.integer(ranks);
  return w.take();
}

int seconds_since(std::int64_t start) { return static_cast<int>((now_ns() - start) / kSecond); }

}  // namespace

TEST_CASE("a rank alone connects and exchanges with itself") {
  LogCapture log;
  Team team(1);
  auto mesh = team.connect(0);
  REQUIRE(mesh);
  CHECK(mesh->ranks() == 1);
  CHECK(gathers(*mesh, [](std::size_t) { return 100; }));
  CHECK(crosses(*mesh, 10));
  CHECK(mesh->dead_peer() == -1);
  CHECK(log.warnings() == std::vector<std::string>{});
}

TEST_CASE("2, 3 and 8 ranks gather and cross data of unequal length, over and over") {
  for (const std::size_t ranks : {std::size_t{2}, std::size_t{3}, std::size_t{8}}) {
    LogCapture log;
    Team team(ranks);
    auto meshes = team.connect_all();
    CHECK(team.each([&](std::size_t r) {
      for (std::size_t round = 0; round < 20; ++round) {
        if (!gathers(*meshes[r], [&](std::size_t of) { return of * 100 + round; })) return false;
        if (!crosses(*meshes[r], round)) return false;
      }
      return meshes[r]->dead_peer() == -1;
    }));
    CHECK(log.warnings() == std::vector<std::string>{});
  }
}

TEST_CASE("64 ranks connect and gather") {
  rlimit limit{};
  REQUIRE(getrlimit(RLIMIT_NOFILE, &limit) == 0);
  if (limit.rlim_cur < 8192) {
    limit.rlim_cur = std::min<rlim_t>(limit.rlim_max, 8192);
    REQUIRE(setrlimit(RLIMIT_NOFILE, &limit) == 0);
  }
  LogCapture log;
  Team team(64);
  auto meshes = team.connect_all();
  CHECK(team.each([&](std::size_t r) {
    return gathers(*meshes[r], [](std::size_t of) { return of; }) && crosses(*meshes[r], 64);
  }));
  CHECK(log.warnings() == std::vector<std::string>{});
}

TEST_CASE("4 ranks cross a megabyte each at once without waiting for one another") {
  LogCapture log;
  Team team(4);
  auto meshes = team.connect_all();
  const std::size_t kMany = (std::size_t{1} << 20) - 3;  // plus up to 3
  CHECK(team.each([&](std::size_t r) {
    return crosses(*meshes[r], kMany) && gathers(*meshes[r], [&](std::size_t) { return kMany; });
  }));
}

TEST_CASE("more than a megabyte is refused before anything is sent") {
  LogCapture log;
  Team team(2);
  auto meshes = team.connect_all();
  CHECK(meshes[0]->all_gather(Blob(mesh::kMaxBody + 1), "too much").status() ==
        Status::bad_argument);
  CHECK(log.has(LogLevel::warn, "too much"));
  CHECK(team.each([&](std::size_t r) { return crosses(*meshes[r], 5); }));
}

TEST_CASE("control sockets are closed on exec and notice a dead host") {
  Team team(2);
  Handle handle;
  // The other end of a connection that rank 0 made must look as ours does: seen through a rank 0
  // that is played by hand.
  TcpListener* listener = &team.listeners[0]->socket();
  std::unique_ptr<Mesh> mesh;
  std::thread one([&] { mesh = team.connect(1); });
  auto socket = listener->accept();
  while (!socket) {
    (void)poll(nullptr, 0, 1);
    socket = listener->accept();
  }
  Blob heard(mesh::kHelloBytes);
  std::size_t done = 0;
  while (socket->recv_part(heard, done) == Status::again) (void)poll(nullptr, 0, 1);
  CHECK(heard == hello(team.listeners[0]->nonce(), 1, 2));
  Writer w;
  w.integer(mesh::kWelcomeMagic);
  w.integer(std::uint32_t{0});
  done = 0;
  CHECK(socket->send_part(w.bytes(), done) == Status::ok);
  one.join();
  REQUIRE(mesh);
  // All sockets of this process that are connected to the address of the one we hold.
  int checked = 0;
  for (int fd = 0; fd < 1024; ++fd) {
    SocketAddress local;
    socklen_t length = sizeof(sockaddr_in6);
    if (getsockname(fd, &local.sa, &length) != 0) continue;
    if (local.text() != socket->peer().text()) continue;
    ++checked;
    CHECK((fcntl(fd, F_GETFD) & FD_CLOEXEC) != 0);
    int on = 0;
    length = sizeof on;
    CHECK(getsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, &length) == 0);
    CHECK(on != 0);
    CHECK(getsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, &length) == 0);
    CHECK(on != 0);
  }
  CHECK(checked == 1);
}

TEST_CASE("strangers, wrong nonces and callers that say nothing do not disturb connecting") {
  LogCapture log;
  Team team(2);
  Handle handle;
  TcpSocket silent = call(team.handles[0], handle);
  TcpSocket foreign = call(team.handles[0], handle);
  TcpSocket guess = call(team.handles[0], handle);
  TcpSocket gone = call(team.handles[0], handle);
  std::size_t done = 0;
  CHECK(foreign.send_part(hello(handle.nonce, 1, 2, 0x20544547), done) == Status::ok);
  Nonce wrong = handle.nonce;
  wrong[3] ^= 1;
  done = 0;
  CHECK(guess.send_part(hello(wrong, 1, 2), done) == Status::ok);
  gone.close();
  auto meshes = team.connect_all();
  CHECK(team.each([&](std::size_t r) { return crosses(*meshes[r], 5); }));
  CHECK(log.warnings() == std::vector<std::string>{});
  CHECK(log.has(LogLevel::info, "not a hello"));
  CHECK(log.has(LogLevel::info, "another listener"));
}

TEST_CASE("a rank that has said hello is heard, however many strangers came after it") {
  LogCapture log;
  Team team(2);
  Handle handle;
  // Rank 1 played by hand: it calls before rank 0 listens, and many call after it.
  TcpSocket honest = call(team.handles[0], handle);
  std::size_t done = 0;
  REQUIRE(honest.send_part(hello(handle.nonce, 1, 2), done) == Status::ok);
  std::vector<TcpSocket> silent;
  for (int i = 0; i < 200; ++i) silent.push_back(call(team.handles[0], handle));
  CHECK(team.connect(0) != nullptr);
  CHECK(log.warnings() == std::vector<std::string>{});
}

TEST_CASE("a rank behind many silent strangers is heard") {
  LogCapture log;
  Team team(2);
  Handle handle;
  std::vector<TcpSocket> silent;
  for (int i = 0; i < 300; ++i) silent.push_back(call(team.handles[0], handle));
  auto meshes = team.connect_all();
  CHECK(team.each([&](std::size_t r) { return meshes[r] && crosses(*meshes[r], 5); }));
  CHECK(log.warnings() == std::vector<std::string>{});
}

TEST_CASE("a rank that was dropped before it was heard calls again") {
  LogCapture log;
  Team team(2);
  TcpListener& door = team.listeners[0]->socket();
  std::unique_ptr<Mesh> one, zero;
  std::thread caller([&] { one = team.connect(1); });
  for (int closed = 0; closed < 2;) {
    if (auto dropped = door.accept()) {
      dropped->close();
      ++closed;
    }
    (void)poll(nullptr, 0, 1);
  }
  zero = team.connect(0);
  caller.join();
  REQUIRE(zero);
  REQUIRE(one);
  CHECK(log.warnings() == std::vector<std::string>{});
}

TEST_CASE("another user who calls 300 times keeps no rank out") {
  NEEDS(geteuid() == 0, "only root can play another user");
  LogCapture log;
  Team team(2);
  int called[2], stay[2];
  REQUIRE(pipe2(called, O_CLOEXEC) == 0);
  REQUIRE(pipe2(stay, O_CLOEXEC) == 0);
  const pid_t nobody = fork();
  if (nobody == 0) {
    close(stay[1]);
    constexpr uid_t kNobody = 65534;
    char done =
        setresgid(kNobody, kNobody, kNobody) == 0 && setresuid(kNobody, kNobody, kNobody) == 0
            ? 'y'
            : 'n';
    Handle handle;
    std::vector<TcpSocket> sockets;
    for (std::size_t i = 0; i < 300; ++i) {
      sockets.push_back(call(team.handles[0], handle));
      std::size_t sent = 0;
      if (i % 3 == 1) (void)sockets.back().send_part(Blob(100, 0x5a), sent);
      if (i % 3 == 2) (void)sockets.back().send_part(hello(random_nonce(), 1, 2), sent);
    }
    (void)!write(called[1], &done, 1);
    (void)!read(stay[0], &done, 1);
    _exit(0);
  }
  close(called[1]);
  close(stay[0]);
  char done = 0;
  CHECK(read(called[0], &done, 1) == 1);
  CHECK(done == 'y');
  auto meshes = team.connect_all();
  CHECK(team.each([&](std::size_t r) { return meshes[r] && crosses(*meshes[r], 5); }));
  CHECK(log.warnings() == std::vector<std::string>{});
  close(called[0]);
  close(stay[1]);
  waitpid(nobody, nullptr, 0);
}

TEST_CASE("a member of the team that says nonsense ends connecting with a reason") {
  struct Case {
    std::uint32_t rank, ranks;
    const char* message;
    std::uint16_t version = mesh::kVersion;
  };
  // Of another version both are named: until 4 RMA had one port.
  for (const Case& c : {Case{0, 2, "only higher ranks"}, Case{7, 2, "only higher ranks"},
                        Case{1, 3, "another number of ranks"}, Case{1, 2, "rank 1 (127.0.0.1", 4},
                        Case{1, 2, "version 4, this side 9", 4}}) {
    LogCapture log;
    Team team(2, 5000);
    Handle handle;
    TcpSocket socket = call(team.handles[0], handle);
    std::size_t done = 0;
    CHECK(socket.send_part(hello(handle.nonce, c.rank, c.ranks, mesh::kHelloMagic, c.version),
                           done) == Status::ok);
    CHECK(team.connect(0) == nullptr);
    CHECK(log.has(LogLevel::warn, c.message));
  }
}

TEST_CASE("handles of rubbish, of another listener, and ranks out of range are refused") {
  LogCapture log;
  Team team(2);
  std::vector<HandleArray> handles = team.handles;
  handles[1].fill(0x5C);
  CHECK(Mesh::connect(team.config, *team.listeners[0], handles, 0).status() ==
        Status::bad_argument);
  CHECK(log.has(LogLevel::warn, "handle of rank 1"));
  CHECK(Mesh::connect(team.config, *team.listeners[0], team.handles, 1).status() ==
        Status::bad_argument);
  for (const int rank : {-1, 2}) {
    CHECK(Mesh::connect(team.config, *team.listeners[0], team.handles, rank).status() ==
          Status::bad_argument);
  }
}

TEST_CASE("ranks that do not connect in time are named, whether lower or higher") {
  for (const std::size_t absent : {std::size_t{0}, std::size_t{2}}) {
    LogCapture log;
    Team team(3, 500);
    const std::int64_t start = now_ns();
    CHECK(team.each([&](std::size_t r) { return r == absent || team.connect(r) == nullptr; }));
    CHECK(seconds_since(start) < 5);
    CHECK(log.has(LogLevel::warn, "within 500 ms with rank " + std::to_string(absent) + " (127."));
  }
}

TEST_CASE("a lower rank whose listener is gone fails connecting at once") {
  LogCapture log;
  Team team(2);
  team.listeners[0].reset();
  const std::int64_t start = now_ns();
  CHECK(team.connect(1) == nullptr);
  CHECK(seconds_since(start) < 5);
  CHECK(log.has(LogLevel::warn, "rank 0 (127."));
}

TEST_CASE("a rank that does not come to a step is named after the time limit") {
  LogCapture log;
  Team team(3, 1000);
  auto meshes = team.connect_all();
  const std::int64_t start = now_ns();
  CHECK(team.each([&](std::size_t r) { return r == 1 || !crosses(*meshes[r], 100); }));
  CHECK(seconds_since(start) < 5);
  CHECK(log.has(LogLevel::warn, "test data: no answer within 1000 ms from rank 1 ("));
  CHECK(!log.has(LogLevel::warn, "from rank 0"));
  // And what comes after fails at once.
  const std::int64_t again = now_ns();
  CHECK(!crosses(*meshes[0], 1));
  CHECK(now_ns() - again < kSecond / 2);
}

TEST_CASE("ranks that are at different steps notice") {
  LogCapture log;
  Team team(2);
  auto meshes = team.connect_all();
  CHECK(team.each([&](std::size_t r) {
    return meshes[r]->all_gather(Blob(3), r == 0 ? "keys" : "queues").status() == Status::remote;
  }));
  CHECK(log.has(LogLevel::warn, "same calls in the same order"));
}

namespace {

// Rank 1 of 2 played by hand, so that it can end as no Mesh would.
struct Puppet {
  Puppet() : team(2) {
    socket = call(team.handles[0], handle);
    std::size_t done = 0;
    REQUIRE(socket.send_part(hello(handle.nonce, 1, 2), done) == Status::ok);
    mesh = team.connect(0);
    REQUIRE(mesh);
  }
  Team team;
  Handle handle;
  TcpSocket socket;
  std::unique_ptr<Mesh> mesh;
};

bool dies_within_seconds(const Mesh& mesh, int who) {
  for (int i = 0; i < 200; ++i) {
    if (mesh.dead_peer() == who) return true;
    (void)poll(nullptr, 0, 10);
  }
  return false;
}

}  // namespace

TEST_CASE("a rank that dies is noticed between steps, also when it had sent something") {
  for (const bool had_sent : {false, true}) {
    Puppet p;
    CHECK(p.mesh->dead_peer() == -1);
    std::size_t done = 0;
    const auto frame = mesh::encode({.magic = mesh::kFrameMagic, .step = 0, .tag = 1, .bytes = 9});
    if (had_sent) REQUIRE(p.socket.send_part(frame, done) == Status::ok);
    CHECK(p.mesh->dead_peer() == -1);
    p.socket.close();
    CHECK(dies_within_seconds(*p.mesh, 1));
  }
}

TEST_CASE("a rank of which the network brings nothing is silent, not dead, and can come back") {
  Puppet p;
  {
    test::Outage outage;
    REQUIRE(outage);
    const std::int64_t end = now_ns() + 5500 * kMillisecond;
    while (now_ns() < end) {
      REQUIRE(p.mesh->dead_peer() == -1);
      (void)poll(nullptr, 0, 20);
    }
    CHECK(p.mesh->look(1).silence_ms >= 4000);  // since it was asked
    CHECK(p.mesh->verdict_text(1, Verdict::silent).find("here lo (127.0.0.1:") !=
          std::string::npos);
  }
  for (int i = 0; i < 500 && p.mesh->look(1).silence_ms >= 2000; ++i) (void)poll(nullptr, 0, 10);
  CHECK(p.mesh->look(1).silence_ms < 2000);
  p.socket.close();
  CHECK(dies_within_seconds(*p.mesh, 1));
  // It never read our welcome.
  CHECK(p.mesh->look(1).sign == PeerSign::reset);
}

TEST_CASE("a rank whose host resets the connection is told from one that ended") {
  Puppet p;
  const linger hard{1, 0};
  REQUIRE(setsockopt(p.socket.fd(), SOL_SOCKET, SO_LINGER, &hard, sizeof hard) == 0);
  p.socket.close();
  CHECK(dies_within_seconds(*p.mesh, 1));
  CHECK(p.mesh->look(1).sign == PeerSign::reset);
  CHECK(p.mesh->verdict_text(1, Verdict::reset).find("(Connection reset by peer)") !=
        std::string::npos);
}

TEST_CASE("a rank that dies in the middle of a step ends it at once, by name") {
  LogCapture log;
  Puppet p;
  std::size_t done = 0;
  const auto frame = mesh::encode(
      {.magic = mesh::kFrameMagic, .step = 0, .tag = mesh::tag_of("test data"), .bytes = 1000});
  REQUIRE(p.socket.send_part(frame, done) == Status::ok);
  done = 0;
  REQUIRE(p.socket.send_part(Blob(10), done) == Status::ok);
  std::thread killer([&] {
    (void)poll(nullptr, 0, 100);
    p.socket.close();
  });
  const std::int64_t start = now_ns();
  CHECK(!crosses(*p.mesh, 1000000));  // more than the socket's buffers take
  CHECK(seconds_since(start) < 5);
  killer.join();
  CHECK(log.has(LogLevel::warn, "test data: rank 1 ("));
}

TEST_CASE("a frame that claims too much is refused, not allocated") {
  LogCapture log;
  Puppet p;
  std::size_t done = 0;
  const auto frame = mesh::encode({.magic = mesh::kFrameMagic,
                                   .step = 0,
                                   .tag = mesh::tag_of("test data"),
                                   .bytes = 0x7fffffff});
  REQUIRE(p.socket.send_part(frame, done) == Status::ok);
  CHECK(!crosses(*p.mesh, 10));
  CHECK(log.has(LogLevel::warn, "another step"));
}

TEST_CASE("a rank that has finished and left is not dead, but cannot take part any more") {
  LogCapture log;
  Team team(3);
  auto meshes = team.connect_all();
  CHECK(team.each([&](std::size_t r) { return crosses(*meshes[r], 10); }));
  meshes[1].reset();
  (void)poll(nullptr, 0, 50);
  CHECK(meshes[0]->dead_peer() == -1);
  CHECK(meshes[2]->dead_peer() == -1);
  CHECK(log.warnings() == std::vector<std::string>{});
  CHECK(!crosses(*meshes[0], 10));
  CHECK(log.has(LogLevel::warn, "rank 1 (127.0.0.1:"));
  CHECK(log.has(LogLevel::warn, "has closed its communicator"));
}

}  // namespace twinpath::gda
