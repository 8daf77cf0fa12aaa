// The soft HCA between processes: the other half is this program again, started with a role.
#include <sys/syscall.h>

#include <cstdlib>
#include <memory>
#include <optional>
#include <set>

#include "test/soft/pair.h"
#include "test/soft/processes.h"
#include "test/soft/strangers.h"
#include "test/support/refuse.h"

using namespace twinpath;
using namespace twinpath::test;

namespace {

// One end of a ping-pong that never polls without having been woken: arms, waits, polls, answers.
// False when no event came within two seconds.  `naps`: pauses before each answer, so that queue
// pairs fall asleep, or are just about to.
bool bounce(Side& s, int rounds, bool first, bool naps = false) {
  int sent = 0;
  const auto send = [&] {
    if (naps) usleep(4000 + static_cast<unsigned>(sent) * 2654435761u % 4096);
    auto w = s.request(IBV_WR_SEND, 0, 8, 0, 0);
    w.wr.send_flags = IBV_SEND_SOLICITED;
    if (++sent % 16 == 0) w.wr.send_flags |= IBV_SEND_SIGNALED;  // sets queue space free
    return s.post(w) == 0;
  };
  if (first && !send()) return false;
  for (int got = 0; got < rounds;) {
    if (!s.channel_event(2000) || ibv_req_notify_cq(s.cq, 1) != 0) return false;
    for (ibv_wc wc{}; ibv_poll_cq(s.cq, 1, &wc) == 1;) {
      if (wc.status != IBV_WC_SUCCESS) return false;
      if (wc.opcode != IBV_WC_RECV) continue;
      ++got;
      if (s.post_receive(64, 64) != 0) return false;
      if ((!first || got < rounds) && !send()) return false;
    }
  }
  return true;
}
constexpr int kRounds = 200, kNaps = 100;

// A small and a large write, each read back; true when that is so, and a write beyond the other's
// memory is refused.
bool writes(Side& s, const Address& to, int fd) {
  char go = 0;  // the other process is ready
  if (!hear(fd, go)) return false;
  constexpr std::uint32_t kLarge = 1 << 20;
  for (std::uint32_t i = 0; i < kLarge; ++i) s.buffer[i] = static_cast<std::uint8_t>(i * 31 + 7);
  for (std::uint32_t bytes : {8u, kLarge}) {
    auto w = s.request(IBV_WR_RDMA_WRITE, 0, bytes, to.address, to.rkey);
    if (s.post(w) != 0 || wait(s).status != IBV_WC_SUCCESS) return false;
    auto r = s.request(IBV_WR_RDMA_READ, kLarge, bytes, to.address, to.rkey);
    if (s.post(r) != 0 || wait(s).status != IBV_WC_SUCCESS) return false;
    if (std::memcmp(&s.buffer[0], &s.buffer[kLarge], bytes) != 0) return false;
  }
  auto w = s.request(IBV_WR_RDMA_WRITE, 0, 8, to.address + s.buffer.size() - 4, to.rkey);
  return s.post(w) == 0 && wait(s).status == IBV_WC_REM_ACCESS_ERR;
}

// Another queue pair of a process that the other one knows already.
bool second_pair(Side& s, int fd) {
  Address theirs{};
  char go = 1;
  return tell(fd, address_of(s)) && hear(fd, theirs) && s.to_init() == 0 &&
         s.to_rtr(theirs.qpn, theirs.gid) == 0 && s.to_rts() == 0 && tell(fd, go) && hear(fd, go);
}

// What the child process does with its end of the socket pair.
int child_main(const std::string& role, int fd) {
  Config config;
  config.soft_direct = role.find("packets") == std::string::npos;
  if (role.find("otherjob") != std::string::npos) config.soft_job = "another";
  if (const auto at = role.find('@'); at != std::string::npos)
    config.soft_job = role.substr(at + 1);
  if (role == "helped") config.soft_copy_threads = 2;
  Options o;
  o.bytes = 8 << 20;
  o.timeout = 18;
  o.channel = role == "waits" || role == "naps";
  Side s(o, config);
  Address mine = address_of(s), theirs{};
  if (!tell(fd, mine)) return 2;
  if (!hear(fd, theirs)) return 3;
  if (s.to_init() != 0) return 4;
  if (int rc = s.to_rtr(theirs.qpn, theirs.gid); rc != 0) return rc == EHOSTUNREACH ? 40 : 5;
  if (s.to_rts() != 0) return 6;
  char go = 1;
  if (o.channel) {
    if (s.post_receive(64, 64) != 0 || ibv_req_notify_cq(s.cq, 0) != 0) return 9;
    if (!tell(fd, go)) return 7;
    return bounce(s, role == "naps" ? kNaps : kRounds, false, role == "naps") ? 0 : 10;
  }
  if (!tell(fd, go)) return 7;
  if (role.starts_with("writes@")) return writes(s, theirs, fd) ? 0 : 11;
  if (role == "twice") {
    Side second(o, config);
    return second_pair(second, fd) ? 0 : 12;
  }
  // Sleeps here: whatever is asked of its memory now, its engine thread must answer.
  if (!hear(fd, go)) return 8;
  return 0;
}

// Whether the soft HCA says what is refused to it, as long as this call is.
int told_of(unsigned call) {
  if (!refuse({call}, EPERM)) return 1;
  Verbs verbs;
  std::string why;
  if (load_soft_hca(verbs, {}, why)) return 2;
  return why.find("seccomp") != std::string::npos ? 0 : 3;
}

}  // namespace

// Not a test: what the child processes of the tests below run.
TEST_CASE("child role", "[.child]") {
  const Role role = own_role();
  const std::string refused = "refused@";
  if (role.name.starts_with(refused))
    _exit(told_of(static_cast<unsigned>(std::stoul(role.name.substr(refused.size())))));
  _exit(is_stranger(role.name) ? stranger_main(role.name, role.fd)
                               : child_main(role.name, role.fd));
}

TEST_CASE("writes, reads and atomics reach a process that sleeps", "[soft]") {
  Child child("direct");
  Options o;
  o.bytes = 8 << 20;
  Side s(o);
  child.connect(s);
  for (std::uint32_t bytes : {8u, 4096u, 5000u, 3u << 20}) {
    for (std::uint32_t i = 0; i < bytes; ++i)
      s.buffer[i] = static_cast<std::uint8_t>(i * 31 + bytes);
    auto w = s.request(IBV_WR_RDMA_WRITE, 0, bytes, child.theirs.address + 64, child.theirs.rkey);
    REQUIRE(s.post(w) == 0);
    CHECK(wait(s).status == IBV_WC_SUCCESS);
    auto r =
        s.request(IBV_WR_RDMA_READ, 4 << 20, bytes, child.theirs.address + 64, child.theirs.rkey);
    REQUIRE(s.post(r) == 0);
    CHECK(wait(s).status == IBV_WC_SUCCESS);
    CHECK(std::memcmp(s.buffer.data(), s.buffer.data() + (4 << 20), bytes) == 0);
  }
  auto* old = reinterpret_cast<std::uint64_t*>(s.buffer.data());
  for (std::uint64_t i = 0; i < 10; ++i) {
    auto w = s.request(IBV_WR_ATOMIC_FETCH_AND_ADD, 0, 8, child.theirs.address, child.theirs.rkey);
    w.wr.wr.atomic.compare_add = 3;
    REQUIRE(s.post(w) == 0);
    CHECK(wait(s).status == IBV_WC_SUCCESS);
    CHECK(*old == 3 * i);
  }
  CHECK(child.finish() == 0);
}

// NCCL's LL protocol has no completion at the receiver, whose kernels watch the memory: nothing
// polls there, and a small message must not wait for that.
TEST_CASE("what brings no notice is in place though nothing of the other process runs", "[soft]") {
  Child child("direct");
  Options o;
  o.bytes = 2 << 20;
  Side s(o);
  child.connect(s);
  constexpr std::uint32_t kSizes[] = {8, 16, 20, 64, 200, 4000, 4096};
  constexpr std::uint32_t kApart = 8192;
  const auto go = [&](ibv_wr_opcode opcode, std::size_t at, std::uint32_t bytes,
                      std::uint32_t far) {
    auto w = s.request(opcode, at, bytes, child.theirs.address + far, child.theirs.rkey);
    REQUIRE(s.post(w) == 0);
    return wait(s).status;
  };
  REQUIRE(go(IBV_WR_RDMA_WRITE, 0, 8, 0) == IBV_WC_SUCCESS);  // the processes have met
  for (std::uint32_t i = 0; i < std::size(kSizes) * kApart; ++i)
    s.buffer[i] = static_cast<std::uint8_t>(i * 31 + i / kApart);
  REQUIRE(::kill(child.pid, SIGSTOP) == 0);
  siginfo_t stopped{};
  REQUIRE(::waitid(P_PID, static_cast<id_t>(child.pid), &stopped, WSTOPPED | WNOWAIT) == 0);
  for (std::uint32_t i = 0; i < std::size(kSizes); ++i) {
    INFO(kSizes[i] << " bytes");
    CHECK(go(IBV_WR_RDMA_WRITE, i * kApart, kSizes[i], 64 + i * kApart) == IBV_WC_SUCCESS);
  }
  REQUIRE(::kill(child.pid, SIGCONT) == 0);
  for (std::uint32_t i = 0; i < std::size(kSizes); ++i) {
    INFO(kSizes[i] << " bytes");
    CHECK(go(IBV_WR_RDMA_READ, 1 << 20, kSizes[i], 64 + i * kApart) == IBV_WC_SUCCESS);
    CHECK(std::memcmp(&s.buffer[1 << 20], &s.buffer[i * kApart], kSizes[i]) == 0);
  }
  CHECK(child.finish() == 0);
}

// A security profile's errno is not a want of memory, and what is not heard must not be waited for.
TEST_CASE("a call that is refused to the adapter's thread is told when it starts", "[soft]") {
  for (const unsigned call :
       {SYS_bind, SYS_listen, SYS_eventfd2, SYS_epoll_create1, SYS_epoll_ctl}) {
    INFO(call);
    ChildProcess child("refused@" + std::to_string(call));
    CHECK(child.finish() == 0);
  }
}

TEST_CASE("a killed peer turns into retry-exceeded at once", "[soft]") {
  Child child("direct");
  Options o;
  o.timeout = 20;  // 4.3 s a try, 8 tries: the death must be noticed without waiting for that
  o.retry_cnt = 7;
  Side s(o);
  child.connect(s);
  child.kill_and_wait();
  auto w = s.request(IBV_WR_RDMA_WRITE_WITH_IMM, 0, 8, child.theirs.address, child.theirs.rkey);
  std::int64_t begin = now_ns();
  REQUIRE(s.post(w) == 0);
  CHECK(wait(s).status == IBV_WC_RETRY_EXC_ERR);
  CHECK(now_ns() - begin < 2 * kSecond);
}

// An adapter answers for a process that stands still.  Here its engine must have taken the offer of
// a link first, and that it has not says nothing of its queue pair.
TEST_CASE("a process that stops before it has taken a link is waited for", "[soft]") {
  Options o;
  Side first(o);
  o.timeout = 16;
  Side s(o);
  // Who has the lower number offers.
  std::optional<Child> it;
  do it.emplace("twice");
  while (it->theirs.qpn < s.qp->qp_num);
  Child& child = *it;
  child.connect(first);
  auto w = first.request(IBV_WR_RDMA_WRITE, 0, 8, child.theirs.address, child.theirs.rkey);
  REQUIRE(first.post(w) == 0);
  REQUIRE(wait(first).status == IBV_WC_SUCCESS);  // the processes have met
  Address theirs{};
  char go = 1;
  REQUIRE((hear(child.fd, theirs) && tell(child.fd, address_of(s))));
  REQUIRE(hear(child.fd, go));
  REQUIRE(::kill(child.pid, SIGSTOP) == 0);
  siginfo_t stopped{};
  REQUIRE(::waitid(P_PID, static_cast<id_t>(child.pid), &stopped, WSTOPPED | WNOWAIT) == 0);
  s.connect(theirs.qpn, theirs.gid);
  w = s.request(IBV_WR_RDMA_WRITE, 0, 8, theirs.address, theirs.rkey);
  REQUIRE(s.post(w) == 0);
  usleep(1'500'000);  // the retries of an adapter last 537 ms
  REQUIRE(::kill(child.pid, SIGCONT) == 0);
  CHECK(wait(s).status == IBV_WC_SUCCESS);
  CHECK(child.finish() == 0);
}

TEST_CASE("a process of another job is out of reach", "[soft]") {
  Child child("otherjob");
  Options o;
  Side s(o);
  REQUIRE(tell(child.fd, address_of(s)));
  REQUIRE(s.to_init() == 0);
  CHECK(s.to_rtr(child.theirs.qpn, child.theirs.gid) == EHOSTUNREACH);
  CHECK(child.finish() == 40);
}

TEST_CASE("a wrong key is refused between processes, small and large", "[soft]") {
  Child child("direct");
  Options o;
  Side s(o);
  child.connect(s);
  const std::uint32_t bytes = GENERATE(8u, 100000u);
  auto w = s.request(IBV_WR_RDMA_WRITE, 0, bytes, child.theirs.address + (8 << 20) - 4,
                     child.theirs.rkey);
  REQUIRE(s.post(w) == 0);
  CHECK(wait(s).status == IBV_WC_REM_ACCESS_ERR);
  CHECK(child.finish() == 0);
}

// Between two children: whether a process copies itself is settled when its adapter starts.
TEST_CASE("packets carry writes and reads whole, and each counts as one message", "[soft]") {
  const std::string job = "packets-" + std::to_string(getpid());
  Child one("writes@" + job), two("direct@" + job);
  one.meet(two);
  CHECK(one.finish() == 0);
  CHECK(two.finish() == 0);
}

TEST_CASE("two processes that only wait for events wake each other", "[soft]") {
  Child child("waits");
  Options o;
  o.channel = true;
  Side s(o);
  child.connect(s);
  REQUIRE(s.post_receive(64, 64) == 0);
  REQUIRE(ibv_req_notify_cq(s.cq, 0) == 0);
  const std::int64_t begin = now_ns();
  CHECK(bounce(s, kRounds, true));
  // Each message wakes an engine, and that the waiter: far from a look each millisecond.  The
  // bound leaves room for a busy machine.
  const std::int64_t each = (now_ns() - begin) / (2 * kRounds);
  INFO("one way: " << each << " ns");
  CHECK(each < 5 * kMillisecond);
  if (getenv("TWINPATH_TEST_SHOW") != nullptr) WARN("one way: " << each << " ns");
  CHECK(child.finish() == 0);
}

TEST_CASE("processes that nap between messages lose none of them", "[soft]") {
  Child child("naps");
  Options o;
  o.channel = true;
  Side s(o);
  child.connect(s);
  REQUIRE(s.post_receive(64, 64) == 0);
  REQUIRE(ibv_req_notify_cq(s.cq, 0) == 0);
  CHECK(bounce(s, kNaps, true, true));
  CHECK(child.finish() == 0);
}

TEST_CASE("processes that start at once have queue pair numbers of their own", "[soft]") {
  std::vector<std::unique_ptr<ChildProcess>> children;
  for (int i = 0; i < 24; ++i) children.push_back(std::make_unique<ChildProcess>("direct@at-once"));
  std::set<std::uint32_t> numbers;
  for (const auto& child : children) {
    Address a{};
    REQUIRE(hear(child->fd, a));
    CHECK(numbers.insert(a.qpn).second);
  }
}
