// Who is none of the job gets nothing of it and stops nobody: other users' processes, and processes
// of ours that keep to no protocol.
#include "test/soft/strangers.h"

#include <dirent.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <functional>
#include <random>
#include <thread>

#include "plugin/fabric/soft/hca.h"
#include "test/soft/processes.h"
#include "test/support/log_capture.h"
#include "test/support/needs.h"

using namespace twinpath;
using namespace twinpath::test;

namespace {

bool eventually(const std::function<bool()>& done, int seconds = 20) {
  for (const std::int64_t end = now_ns() + seconds * kSecond; now_ns() < end;) {
    if (done()) return true;
    (void)poll(nullptr, 0, 5);
  }
  return done();
}

std::vector<std::string> fds_of(pid_t pid) {
  std::vector<std::string> found;
  const std::string folder = "/proc/" + std::to_string(pid) + "/fd";
  DIR* fds = opendir(folder.c_str());
  REQUIRE(fds != nullptr);
  while (const dirent* d = readdir(fds)) {
    if (d->d_name[0] != '.') found.push_back(folder + "/" + d->d_name);
  }
  closedir(fds);
  return found;
}

// One name: that of the soft HCA of a process.
std::string name_of(pid_t pid) {
  const auto names = listens_at(pid);
  REQUIRE(names.size() == 1);
  return names.front();
}

// A message as its header has it, with descriptors that are closed here in no case.
bool say(int socket, soft::Message m, const std::vector<int>& fds, int flags = 0) {
  m.magic = soft::kMessageMagic;
  iovec iov{&m, sizeof m};
  alignas(cmsghdr) char control[CMSG_SPACE(64 * sizeof(int))] = {};
  msghdr h{};
  h.msg_iov = &iov;
  h.msg_iovlen = 1;
  if (!fds.empty()) {
    h.msg_control = control;
    h.msg_controllen = CMSG_SPACE(fds.size() * sizeof(int));
    cmsghdr* c = CMSG_FIRSTHDR(&h);
    c->cmsg_level = SOL_SOCKET;
    c->cmsg_type = SCM_RIGHTS;
    c->cmsg_len = CMSG_LEN(fds.size() * sizeof(int));
    std::memcpy(CMSG_DATA(c), fds.data(), fds.size() * sizeof(int));
  }
  return sendmsg(socket, &h, MSG_NOSIGNAL | flags) == static_cast<ssize_t>(sizeof m);
}

soft::Message header(soft::MessageKind kind, std::uint32_t slot = 1) {
  soft::Message m{};
  m.kind = kind;
  m.slot = slot;
  m.pid = getpid();
  return m;
}

// The child executes a write of this side, by its engine: it is as good as ever.
void check_serves(Side& s, const Child& child) {
  auto w = s.request(IBV_WR_RDMA_WRITE, 0, 8, child.theirs.address, child.theirs.rkey);
  REQUIRE(s.post(w) == 0);
  CHECK(wait(s).status == IBV_WC_SUCCESS);
}

}  // namespace

TEST_CASE("another user who takes a dead peer's name is given nothing", "[soft]") {
  NEEDS(geteuid() == 0, "only root can play another user");
  LogCapture log;
  Options o;
  Side s(o);
  std::string name;
  Address dead{};
  {
    Child child("direct");
    name = name_of(child.pid);
    dead = child.theirs;
    child.kill_and_wait();
  }
  ChildProcess nobody("squat " + name);
  char ready = 0;
  REQUIRE(hear(nobody.fd, ready));
  s.connect(dead.qpn, dead.gid);
  auto w = s.request(IBV_WR_RDMA_WRITE, 0, 8, dead.address, dead.rkey);
  REQUIRE(s.post(w) == 0);
  CHECK(wait(s).status == IBV_WC_RETRY_EXC_ERR);
  int descriptors = -1;
  REQUIRE(tell(nobody.fd, char{1}));
  REQUIRE(hear(nobody.fd, descriptors));
  CHECK(descriptors == 0);
  // And says so.
  CHECK(log.has(LogLevel::warn, "user id 65534"));
  // Our key table is there: he could not cut it short.
  if (descriptors == 0) {
    ibv_mr* mr = s.verbs.reg_mr_iova2(s.pd, s.buffer.data(), 64, s.address(), s.options.access);
    REQUIRE(mr != nullptr);
    CHECK(s.verbs.dereg_mr(mr) == 0);
  }
  CHECK(nobody.finish() == 0);
}

TEST_CASE("another user who takes a job's names does not keep its processes apart", "[soft]") {
  NEEDS(geteuid() == 0, "only root can play another user");
  const std::string job = "crowded-" + std::to_string(getpid());
  ChildProcess nobody("crowd " + job);
  int taken = 0;
  REQUIRE(hear(nobody.fd, taken));
  REQUIRE(taken == 2048);
  Child one("writes@" + job), two("direct@" + job);
  one.meet(two);
  CHECK(one.finish() == 0);
  CHECK(two.finish() == 0);
  CHECK(nobody.finish() == 0);
}

TEST_CASE("memory that processes share cannot be cut short, nor written by who only reads",
          "[soft]") {
  Child child("direct");
  Options o;
  Side s(o);
  child.connect(s);
  check_serves(s, child);
  int seen = 0, read_only = 0;
  for (const std::string& path : fds_of(child.pid)) {
    char link[256] = "";
    if (readlink(path.c_str(), link, sizeof link - 1) < 0) continue;
    if (std::string_view(link).find("memfd:twinpath") == std::string_view::npos) continue;
    ++seen;
    INFO(link);
    const int fd = open(path.c_str(), O_RDWR | O_CLOEXEC);
    REQUIRE(fd >= 0);
    CHECK(ftruncate(fd, 0) != 0);
    CHECK(ftruncate(fd, 1 << 30) != 0);
    void* p = mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (p == MAP_FAILED) {
      ++read_only;
    } else {
      munmap(p, 4096);
    }
    close(fd);
  }
  CHECK(seen >= 1);
  CHECK(read_only >= 1);  // the keys
  check_serves(s, child);
  CHECK(child.finish() == 0);
}

TEST_CASE("descriptors that nobody asked for are closed", "[soft]") {
  Child child("direct");
  Options o;
  Side s(o);
  child.connect(s);
  check_serves(s, child);
  const std::string name = name_of(child.pid);
  const auto before = fds_of(child.pid).size();
  const int file = open("/dev/null", O_RDONLY | O_CLOEXEC);
  REQUIRE(file >= 0);
  for (const std::size_t count : {1, 2, 3, 5, 17, 60}) {
    for (const auto kind : {soft::MessageKind::wake, soft::MessageKind::export_request,
                            static_cast<soft::MessageKind>(99)}) {
      const int socket = connect_to(name);
      REQUIRE(socket >= 0);
      CHECK(say(socket, header(kind), std::vector<int>(count, file)));
      close(socket);
    }
  }
  close(file);
  CHECK(eventually([&] { return fds_of(child.pid).size() <= before; }));
  CHECK(fds_of(child.pid).size() <= before);
  check_serves(s, child);
  CHECK(child.finish() == 0);
}

TEST_CASE("who asks and reads no answers holds up nobody", "[soft]") {
  Child child("direct");
  Options o;
  Side s(o);
  const std::string name = name_of(child.pid);
  const int greedy = connect_to(name);
  REQUIRE(greedy >= 0);
  // A greeting as it should be, so that what follows is listened to.
  auto holds = SharedMemory::create("holds", sizeof(soft::Holds), Writers::creator);
  REQUIRE(holds);
  REQUIRE(say(greedy, header(soft::MessageKind::greeting), {holds->fd()}));
  int asked = 0;
  for (int tries = 0; asked < 10000 && tries < 2000;) {
    if (say(greedy, header(soft::MessageKind::export_request), {}, MSG_DONTWAIT)) {
      ++asked;
    } else {
      ++tries;
      (void)poll(nullptr, 0, 1);
    }
  }
  INFO(asked << " asked");
  child.connect(s);
  check_serves(s, child);
  close(greedy);
  CHECK(child.finish() == 0);
}

TEST_CASE("rubbish in a ring harms nobody but its queue pair", "[soft]") {
  const auto seed = GENERATE(1u, 2u, 3u, 4u, 5u, 6u, 7u, 8u);
  Child child("direct");
  Options o;
  Side s(o);
  child.connect(s);
  check_serves(s, child);
  soft::SoftQp& qp = *soft::soft(s.qp);
  {
    const std::lock_guard hold(qp.lock);
    // Headers of every kind, many of them nearly right, and a counter that runs ahead.
    std::mt19937 engine(seed);
    const auto random = [&] { return static_cast<std::uint32_t>(engine()); };
    std::uint64_t at = qp.link.mine->produced.load();
    for (int i = 0; i < 500; ++i) {
      const std::uint32_t room =
          soft::kRingBytes - static_cast<std::uint32_t>(at % soft::kRingBytes);
      soft::PacketHeader h{};
      h.bytes = random() % 16 == 0 ? random() : std::min(room, 16 * (2 + random() % 40));
      h.op = static_cast<soft::PacketOp>(random() % 12);
      h.flags = static_cast<std::uint8_t>(random());
      h.rkey = random() % 4 == 0 ? random() : child.theirs.rkey;
      h.length = random() % 4 == 0 ? random() : random() % 64;
      h.address = random() % 4 == 0 ? ~std::uint64_t{0} - random() % 64 : child.theirs.address;
      h.total = random();
      std::memcpy(qp.link.out_ring + at % soft::kRingBytes, &h,
                  std::min<std::size_t>(room, sizeof h));
      if (h.bytes % 16 != 0 || h.bytes > room) break;
      at += h.bytes;
    }
    qp.link.mine->produced.store(at + 64, std::memory_order_release);
    qp.link.out_claim->next.store(~std::uint64_t{0});
    qp.link.mine->consumed.store(random());
    soft::ring_far_bell(qp);
  }
  qp.link.peer->wire.send_wake(qp.hca->slot());
  // It may also stand still, before an answer for which we leave no room.
  const auto ended = static_cast<std::uint32_t>(soft::EndState::error);
  (void)eventually(
      [&] { return qp.link.theirs == nullptr || qp.link.theirs->state.load() == ended; }, 1);
  CHECK(child.finish() == 0);
}

TEST_CASE("a process without descriptors left waits for some, and lets its core be", "[soft]") {
  Child child("direct");
  Options o;
  Side s(o);
  const std::string name = name_of(child.pid);
  rlimit before{};
  const auto open_now = static_cast<rlim_t>(fds_of(child.pid).size());
  REQUIRE(prlimit(child.pid, RLIMIT_NOFILE, nullptr, &before) == 0);
  const rlimit none{open_now, before.rlim_max};
  REQUIRE(prlimit(child.pid, RLIMIT_NOFILE, &none, nullptr) == 0);
  std::vector<int> waiting;
  for (int i = 0; i < 20; ++i) waiting.push_back(connect_to(name));
  const auto ran = [&] {
    unsigned long long ns = 0;
    std::int64_t sum = 0;
    DIR* tasks = opendir(("/proc/" + std::to_string(child.pid) + "/task").c_str());
    REQUIRE(tasks != nullptr);
    while (const dirent* d = readdir(tasks)) {
      const std::string path =
          "/proc/" + std::to_string(child.pid) + "/task/" + d->d_name + "/schedstat";
      if (FILE* f = std::fopen(path.c_str(), "re")) {
        if (std::fscanf(f, "%llu", &ns) == 1) sum += static_cast<std::int64_t>(ns);
        std::fclose(f);
      }
    }
    closedir(tasks);
    return sum;
  };
  (void)poll(nullptr, 0, 100);
  const std::int64_t begin = ran();
  (void)poll(nullptr, 0, 1000);
  // A look each 100 ms, and the engine's own each millisecond at most.
  CHECK(ran() - begin < 250 * kMillisecond);
  REQUIRE(prlimit(child.pid, RLIMIT_NOFILE, &before, nullptr) == 0);
  for (const int fd : waiting) close(fd);
  child.connect(s);
  check_serves(s, child);
  CHECK(child.finish() == 0);
}

TEST_CASE("a forked child has none of the adapter's sockets", "[soft]") {
  NEEDS(!kSanitizesThreads, "the thread sanitizer does not follow forks of many threads");
  Options o;
  Side s(o);
  const std::string name = name_of(getpid());
  std::atomic<bool> stop{false};
  // Sockets come and go all the time.
  std::thread caller([&] {
    while (!stop) {
      const int fd = connect_to(name);
      if (fd >= 0) close(fd);
    }
  });
  int kept = 0;
  constexpr int kForks = TWINPATH_SANITIZES_ADDRESSES ? 100 : 500;  // there a fork takes long
  for (int i = 0; i < kForks; ++i) {
    const pid_t pid = fork();
    if (pid == 0) {
      int found = 0;
      for (int fd = 3; fd < 256; ++fd) {
        sockaddr_un at{};
        socklen_t length = sizeof at;
        if (getsockname(fd, reinterpret_cast<sockaddr*>(&at), &length) == 0 &&
            at.sun_family == AF_UNIX && std::memcmp(at.sun_path + 1, "twinpath-", 9) == 0)
          found = 1;
      }
      _exit(found);
    }
    int status = 0;
    waitpid(pid, &status, 0);
    kept += WIFEXITED(status) && WEXITSTATUS(status) == 0 ? 0 : 1;
  }
  stop = true;
  caller.join();
  CHECK(kept == 0);
}
