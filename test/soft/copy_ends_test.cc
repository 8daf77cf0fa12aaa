// Large copies with helping threads that end early: no byte is written after a completion, a
// deregistration or the end of a queue pair, and nobody waits for who is gone.
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include <set>

#include "test/soft/gpu_page.h"
#include "test/soft/processes.h"
#include "test/soft/team.h"
#include "test/support/needs.h"

using namespace twinpath;
using namespace twinpath::test;

namespace {

bool is_all(const std::vector<std::uint8_t>& v, std::uint8_t value) {
  return v[0] == value && std::memcmp(v.data(), v.data() + 1, v.size() - 1) == 0;
}

// Memory that the processor reaches and the kernel will not, as pages of drivers.
struct SecretMemory {
  static constexpr std::size_t kBytes = 4u << 20;
  std::uint8_t* at = nullptr;
  SecretMemory() {
    constexpr long kMemfdSecret = 447;  // which Debian 12's headers may lack
    const int fd = static_cast<int>(::syscall(kMemfdSecret, 0));
    if (fd < 0) return;
    if (::ftruncate(fd, kBytes) == 0) {
      void* p = ::mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
      if (p != MAP_FAILED) at = static_cast<std::uint8_t*>(p);
    }
    ::close(fd);
  }
  ~SecretMemory() {
    if (at != nullptr) ::munmap(at, kBytes);
  }
  SecretMemory(const SecretMemory&) = delete;
  SecretMemory& operator=(const SecretMemory&) = delete;
};

}  // namespace

TEST_CASE("nobody writes memory that was deregistered during a copy", "[soft]") {
  const auto opcode = GENERATE(IBV_WR_RDMA_WRITE, IBV_WR_RDMA_READ);
  for (int round = 0; round < 5; ++round) {
    Pair p(large());
    const Helpers helpers(3);
    Side& target = opcode == IBV_WR_RDMA_READ ? p.a : p.b;
    std::memset(target.buffer.data(), 0xee, kLarge);
    auto w = p.a.request(opcode, 0, kLarge, p.b.address(), p.b.mr->rkey);
    REQUIRE(p.a.post(w) == 0);
    REQUIRE(target.verbs.dereg_mr(std::exchange(target.mr, nullptr)) == 0);
    const std::size_t left = soft::chunks_left(soft::soft(p.a.qp)->copies.out) * soft::kChunk;
    usleep(3000);
    const auto* rest = target.buffer.data() + (kLarge - left);
    CHECK(std::all_of(rest, rest + left, [](std::uint8_t byte) { return byte == 0xee; }));
    std::memset(target.buffer.data(), 0xdd, kLarge);
    const auto status = next(p.a, p.b).status;
    // The whole of it may have been in time.
    if (status != IBV_WC_SUCCESS)
      CHECK(status == (opcode == IBV_WR_RDMA_READ ? IBV_WC_LOC_PROT_ERR : IBV_WC_REM_ACCESS_ERR));
    usleep(1000);
    if (left != 0) CHECK(is_all(target.buffer, 0xdd));
  }
}

TEST_CASE("deregistration waits for copies that are left to the GPU's engine", "[soft][cuda]") {
  const std::string what = GENERATE("write", "read", "atomic", "host memory");
  CAPTURE(what);
  FakeGpu gpu;
  Pair p({}, with_cuda());
  GpuPage near(gpu, p.a), far(gpu, p.b);
  auto w = p.a.request(what == "read"     ? IBV_WR_RDMA_READ
                       : what == "atomic" ? IBV_WR_ATOMIC_FETCH_AND_ADD
                                          : IBV_WR_RDMA_WRITE,
                       0, 8, p.b.address(), p.b.mr->rkey);
  if (what == "host memory") {
    w.wr.wr.rdma = {far.address(), far.mr->rkey};
  } else {
    w.sge = {near.address(), 8, near.mr->lkey};
  }
  gpu.pause(true);
  REQUIRE(p.a.post(w) == 0);
  CHECK(p.quiet(p.b));  // an atomic's answer comes
  CHECK(p.quiet(p.a));
  CHECK(waits_for_copy(gpu, p.a, std::exchange(what == "host memory" ? p.a.mr : near.mr, nullptr)));
  CHECK(p.wait(p.a).status == IBV_WC_SUCCESS);
}

// As an adapter does, whose command returns when the queue pair has stopped: who has put both ends
// into error may hand the memory on (proxy/connect/failover.h).
TEST_CASE("a queue pair is in error once copies that are left to the GPU's engine have ended",
          "[soft][cuda]") {
  const std::string what = GENERATE("write", "read", "atomic");
  CAPTURE(what);
  FakeGpu gpu;
  Pair p({}, with_cuda());
  GpuPage far(gpu, p.b);
  auto w = p.a.request(what == "read"     ? IBV_WR_RDMA_READ
                       : what == "atomic" ? IBV_WR_ATOMIC_FETCH_AND_ADD
                                          : IBV_WR_RDMA_WRITE,
                       0, 8, far.address(), far.mr->rkey);
  gpu.pause(true);
  REQUIRE(p.a.post(w) == 0);
  CHECK(p.quiet(p.a));
  Side& copies = what == "atomic" ? p.b : p.a;  // at whose queue pair it is under way
  std::atomic<bool> ended{false};
  bool early = false;
  std::thread other([&] {
    (void)copies.to_error();
    early = !ended.load();
  });
  ::usleep(50'000);  // who does not wait is over by then, mostly
  ended.store(true);
  gpu.pause(false);
  other.join();
  CHECK_FALSE(early);
  CHECK_FALSE(gpu.has_work());
}

TEST_CASE("a queue pair that ends during a copy writes no more", "[soft]") {
  const std::string how = GENERATE("error", "reset", "destroy", "port down");
  CAPTURE(how);
  for (int round = 0; round < 5; ++round) {
    Pair p(large());
    const Helpers helpers(3);
    auto w = p.a.request(IBV_WR_RDMA_WRITE, 0, kLarge, p.b.address(), p.b.mr->rkey);
    REQUIRE(p.a.post(w) == 0);
    if (how == "error") {
      REQUIRE(p.a.to_error() == 0);
    } else if (how == "reset") {
      ibv_qp_attr a{};
      a.qp_state = IBV_QPS_RESET;
      REQUIRE(p.a.verbs.modify_qp(p.a.qp, &a, IBV_QP_STATE) == 0);
    } else if (how == "destroy") {
      REQUIRE(p.a.verbs.destroy_qp(std::exchange(p.a.qp, nullptr)) == 0);
    } else {
      REQUIRE(soft::set_port_state(p.a.context, 1, false) == 0);
    }
    std::memset(p.b.buffer.data(), 0xee, kLarge);
    if (how == "error") {
      const auto status = next(p.a, p.b).status;
      CHECK((status == IBV_WC_WR_FLUSH_ERR || status == IBV_WC_SUCCESS));
    }
    usleep(2000);
    CHECK(is_all(p.b.buffer, 0xee));
    if (how == "port down") {
      REQUIRE(soft::set_port_state(p.a.context, 1, true) == 0);
      CHECK(next(p.a, p.b).status == IBV_WC_SUCCESS);
      while (p.a.next_event(nullptr, 0) != -1) continue;
      while (p.b.next_event(nullptr, 0) != -1) continue;
    }
  }
}

TEST_CASE("chunks that the system refuses are found out, the others are copied", "[soft]") {
  Side s(large(4096));  // there is an adapter
  const Helpers helpers(3);
  constexpr std::size_t kChunks = 32, kBytes = kChunks * soft::kChunk;
  const auto map = [] {
    void* p = ::mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    REQUIRE(p != MAP_FAILED);
    return static_cast<std::uint8_t*>(p);
  };
  std::uint8_t *from = map(), *to = map();
  paint(from, kBytes, 5);
  // Itself as another process, with two holes, into which two helpers fall.
  static constexpr std::size_t kHoles[] = {10, 20};
  const auto allow = [to](int rights) {
    for (const std::size_t hole : kHoles)
      REQUIRE(::mprotect(to + hole * soft::kChunk, soft::kChunk, rights) == 0);
  };
  allow(PROT_NONE);
  soft::Claim claim{};
  claim.next = std::uint64_t{9} << 32;
  soft::TeamCopy c;
  c.begin(9, ::getpid(), true, reinterpret_cast<std::uint64_t>(from),
          reinterpret_cast<std::uint64_t>(to), kBytes, claim);
  std::set<std::uint32_t> found;
  soft::CopyTeam::Look look = soft::CopyTeam::Look::more;
  const std::int64_t end = now_ns() + 20 * kSecond;
  while (look != soft::CopyTeam::Look::done && now_ns() < end) {
    look = the_team().look(c);
    // After the offer all is left to the helpers.
    while (look == soft::CopyTeam::Look::more && !c.alone && soft::chunks_left(c) != 0 &&
           now_ns() < end)
      usleep(100);
    if (look != soft::CopyTeam::Look::failed) continue;
    CHECK(c.slot == -1);
    for (std::uint32_t n = c.take_failed(); n != 0; n = c.take_failed()) found.insert(n - 1);
  }
  REQUIRE(look == soft::CopyTeam::Look::done);
  CHECK(found == std::set<std::uint32_t>(std::begin(kHoles), std::end(kHoles)));
  allow(PROT_READ | PROT_WRITE);
  for (const std::size_t hole : kHoles)
    std::memcpy(to + hole * soft::kChunk, from + hole * soft::kChunk, soft::kChunk);
  CHECK(std::memcmp(to, from, kBytes) == 0);
  ::munmap(from, kBytes);
  ::munmap(to, kBytes);
}

TEST_CASE("a forked child has no helpers and waits for none", "[soft]") {
  Pair p(large());
  const Helpers helpers(3);
  auto w = p.a.request(IBV_WR_RDMA_WRITE, 0, kLarge, p.b.address(), p.b.mr->rkey);
  REQUIRE(p.a.post(w) == 0);
  const pid_t child = ::fork();
  if (child == 0) {
    ::alarm(20);
    soft::CopyTeam& team = the_team();
    soft::SoftQp& qp = *soft::soft(p.a.qp);
    team.cancel(qp.copies.out);
    team.rest();
    ::_exit(team.wanted() == 0 && team.running() == 0 && qp.copies.out.slot == -1 ? 0 : 1);
  }
  int status = -1;
  REQUIRE(::waitpid(child, &status, 0) == child);
  CHECK(status == 0);
  CHECK(next(p.a, p.b).status == IBV_WC_SUCCESS);
  CHECK(p.a.buffer == p.b.buffer);
  CHECK(the_team().running() == 3);
}

TEST_CASE("a peer that dies during a copy with helpers is an error", "[soft]") {
  constexpr std::uint32_t kBytes = 8u << 20;
  Child child("helped");
  Side s(large(kBytes));
  const Helpers helpers(3);
  child.connect(s);
  auto w = s.request(IBV_WR_RDMA_WRITE, 0, kBytes, child.theirs.address, child.theirs.rkey);
  REQUIRE(s.post(w) == 0);
  REQUIRE(wait(s).status == IBV_WC_SUCCESS);
  for (int i = 0; i < 8; ++i) REQUIRE(s.post(w) == 0);
  child.kill_and_wait();
  bool failed = false;
  for (int i = 0; i < 8; ++i) failed = wait(s).status != IBV_WC_SUCCESS || failed;
  CHECK(failed);
}

TEST_CASE("all chunks that a far end with helpers cannot read are written for it", "[soft]") {
  SecretMemory secret;
  NEEDS(secret.at != nullptr, "no memfd_secret");
  constexpr auto kBytes = static_cast<std::uint32_t>(SecretMemory::kBytes);
  bool met = false;
  for (int attempt = 0; attempt < 20 && !met; ++attempt) {
    Child child("helped");
    Side s(large(kBytes));
    child.connect(s);
    soft::SoftQp& qp = *soft::soft(s.qp);
    ibv_mr* mr = s.verbs.reg_mr_iova2(s.pd, secret.at, kBytes,
                                      reinterpret_cast<std::uint64_t>(secret.at), 0);
    REQUIRE(mr != nullptr);
    for (unsigned round = 0; round < 4; ++round) {
      paint(secret.at, kBytes, round);
      auto w = s.request(IBV_WR_RDMA_WRITE, 0, kBytes, child.theirs.address, child.theirs.rkey);
      w.sge = {reinterpret_cast<std::uint64_t>(secret.at), kBytes, mr->lkey};
      REQUIRE(s.post(w) == 0);
      REQUIRE(wait(s).status == IBV_WC_SUCCESS);
      auto r = s.request(IBV_WR_RDMA_READ, 0, kBytes, child.theirs.address, child.theirs.rkey);
      REQUIRE(s.post(r) == 0);
      REQUIRE(wait(s).status == IBV_WC_SUCCESS);
      REQUIRE(std::memcmp(s.buffer.data(), secret.at, kBytes) == 0);
    }
    met = qp.requester.no_pull;  // the far end came to try
    CHECK(s.verbs.dereg_mr(mr) == 0);
    CHECK(child.finish() == 0);
  }
  CHECK(met);
}
