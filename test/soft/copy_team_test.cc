// Threads that help with large copies of host memory: same bytes, same order, and no thread where
// there is nothing to help with.
#include <dirent.h>

#include <cstdio>

#include "test/soft/many.h"
#include "test/soft/processes.h"
#include "test/soft/team.h"

using namespace twinpath;
using namespace twinpath::test;

namespace {

// Copying threads of this process, and how many of them sleep.
struct Threads {
  int all = 0, asleep = 0;
};
Threads copying_threads() {
  Threads n;
  DIR* tasks = opendir("/proc/self/task");
  REQUIRE(tasks != nullptr);
  while (const dirent* entry = readdir(tasks)) {
    const std::string path = std::string("/proc/self/task/") + entry->d_name + "/stat";
    std::FILE* f = std::fopen(path.c_str(), "re");
    if (f == nullptr) continue;
    char name[64] = "", state = 0;
    if (std::fscanf(f, "%*d (%63[^)]) %c", name, &state) == 2 &&
        std::string(name) == "twinpath-copy") {
      ++n.all;
      if (state == 'S') ++n.asleep;
    }
    std::fclose(f);
  }
  closedir(tasks);
  return n;
}
bool come_to(int all, int asleep) {
  for (const std::int64_t end = now_ns() + 20 * kSecond; now_ns() < end; usleep(1000)) {
    const Threads n = copying_threads();
    if (n.all == all && n.asleep >= asleep) return true;
  }
  return false;
}

}  // namespace

TEST_CASE("small machines get no copying threads, larger ones a few", "[soft]") {
  using soft::suitable_copy_threads;
  for (const int processes : {1, 2, 8}) {
    CHECK(suitable_copy_threads(1, processes) == 0);
    CHECK(suitable_copy_threads(2, processes) == 0);
  }
  CHECK(suitable_copy_threads(4, 2) == 0);
  CHECK(suitable_copy_threads(16, 2) == 3);
  CHECK(suitable_copy_threads(16, 8) == 0);
  CHECK(suitable_copy_threads(64, 4) == 4);
  CHECK(suitable_copy_threads(4096, 1) == 4);
}

TEST_CASE("helpers copy a message that its owner does not look at", "[soft]") {
  const auto opcode = GENERATE(IBV_WR_RDMA_WRITE, IBV_WR_RDMA_READ);
  const bool slept = GENERATE(false, true);
  Pair p(large());
  const Helpers helpers(2);
  if (slept) {
    auto first = p.a.request(opcode, 0, kLarge, p.b.address(), p.b.mr->rkey);
    REQUIRE(p.a.post(first) == 0);
    REQUIRE(next(p.a, p.b).status == IBV_WC_SUCCESS);
    REQUIRE(come_to(2, 2));
    std::memset((opcode == IBV_WR_RDMA_READ ? p.a : p.b).buffer.data(), 0, kLarge);
  }
  std::vector<std::uint8_t>& source = (opcode == IBV_WR_RDMA_READ ? p.b : p.a).buffer;
  paint(source.data(), kLarge, 1);
  std::memset(source.data() + kLarge - 4, 0x11, 4);
  auto w = p.a.request(opcode, 0, kLarge, p.b.address(), p.b.mr->rkey);
  REQUIRE(p.a.post(w) == 0);
  soft::SoftQp& qp = *soft::soft(p.a.qp);
  {
    const std::lock_guard hold(qp.lock);  // so neither polls nor the engine can
    if (qp.send.head != qp.send.tail) {
      const std::int64_t end = now_ns() + 20 * kSecond;
      while (soft::chunks_left(qp.copies.out) != 0 && now_ns() < end) usleep(100);
      CHECK(soft::chunks_left(qp.copies.out) == 0);
      CHECK(qp.send.head != qp.send.tail);  // the owner completes it
      usleep(2000);
      // It also writes what the far end may watch.
      if (opcode == IBV_WR_RDMA_WRITE) CHECK(p.b.buffer[kLarge - 1] == 0);
    }
  }
  CHECK(next(p.a, p.b).status == IBV_WC_SUCCESS);
  CHECK(p.a.buffer == p.b.buffer);
  CHECK(the_team().running() == 2);
}

TEST_CASE("with no helpers wanted no thread is started", "[soft]") {
  Pair p(large());
  const Helpers helpers(0);
  auto w = p.a.request(IBV_WR_RDMA_WRITE, 0, kLarge, p.b.address(), p.b.mr->rkey);
  REQUIRE(p.a.post(w) == 0);
  CHECK(next(p.a, p.b).status == IBV_WC_SUCCESS);
  CHECK(the_team().running() == 0);
  CHECK(come_to(0, 0));
}

TEST_CASE("small messages start no copying threads", "[soft]") {
  Pair p(large());
  const Helpers helpers(3);
  auto w = p.a.request(IBV_WR_RDMA_WRITE, 0, soft::kSharedFrom - 1, p.b.address(), p.b.mr->rkey);
  REQUIRE(p.a.post(w) == 0);
  CHECK(next(p.a, p.b).status == IBV_WC_SUCCESS);
  CHECK(the_team().running() == 0);
  CHECK(come_to(0, 0));
}

TEST_CASE("copying threads sleep when there is nothing, and end with the last context", "[soft]") {
  {
    Pair p(large());
    the_team().set(3);
    for (int round = 0; round < 2; ++round) {
      auto w = p.a.request(IBV_WR_RDMA_WRITE, 0, kLarge, p.b.address(), p.b.mr->rkey);
      REQUIRE(p.a.post(w) == 0);
      CHECK(next(p.a, p.b).status == IBV_WC_SUCCESS);
      CHECK(come_to(3, 3));
    }
  }
  CHECK(come_to(0, 0));
  CHECK(the_team().running() == 0);
  {  // and start again
    Pair p(large());
    auto w = p.a.request(IBV_WR_RDMA_WRITE, 0, kLarge, p.b.address(), p.b.mr->rkey);
    REQUIRE(p.a.post(w) == 0);
    CHECK(next(p.a, p.b).status == IBV_WC_SUCCESS);
    CHECK(come_to(3, 0));
  }
  the_team().set(-1);
}

TEST_CASE("what helpers copied is there at the completion, whatever its size and place", "[soft]") {
  const auto opcode = GENERATE(IBV_WR_RDMA_WRITE, IBV_WR_RDMA_READ, IBV_WR_RDMA_WRITE_WITH_IMM);
  const bool stream = GENERATE(false, true);  // stores past the caches
  Pair p(large(4u << 20));
  const Helpers helpers(3, stream);
  Side& from = opcode == IBV_WR_RDMA_READ ? p.b : p.a;
  Side& to = opcode == IBV_WR_RDMA_READ ? p.a : p.b;
  for (unsigned round = 0; round < 40; ++round) {
    const std::uint32_t bytes = (256u << 10) + round * 65521;
    const std::size_t at = round % 13, far = round * 5 % 11;
    INFO("round " << round << ", " << bytes << " bytes");
    paint(from.buffer.data(), from.buffer.size(), round);
    std::memset(to.buffer.data(), 0xee, to.buffer.size());
    if (opcode == IBV_WR_RDMA_WRITE_WITH_IMM) REQUIRE(p.b.post_receive(0, 0) == 0);
    auto w = p.a.request(opcode, at, bytes, p.b.address(far), p.b.mr->rkey);
    REQUIRE(p.a.post(w) == 0);
    const std::size_t source = opcode == IBV_WR_RDMA_READ ? far : at,
                      target = opcode == IBV_WR_RDMA_READ ? at : far;
    if (opcode == IBV_WR_RDMA_WRITE_WITH_IMM) {
      REQUIRE(next(p.b, p.a).byte_len == bytes);
    } else {
      REQUIRE(next(p.a, p.b).status == IBV_WC_SUCCESS);
    }
    REQUIRE(std::memcmp(to.buffer.data() + target, from.buffer.data() + source, bytes) == 0);
    for (std::size_t i = 0; i < target; ++i) REQUIRE(to.buffer[i] == 0xee);
    for (std::size_t i = target + bytes; i < target + bytes + 64; ++i)
      REQUIRE(to.buffer[i] == 0xee);
    if (opcode == IBV_WR_RDMA_WRITE_WITH_IMM) REQUIRE(next(p.a, p.b).status == IBV_WC_SUCCESS);
  }
}

TEST_CASE("the last word of a write that helpers copy comes last", "[soft]") {
  constexpr std::uint32_t kBytes = 3u << 20;
  Pair p(large(kBytes));
  const Helpers helpers(3);
  auto* last = reinterpret_cast<std::uint32_t*>(p.b.buffer.data() + kBytes - 4);
  for (std::uint32_t round = 1; round <= 20; ++round) {
    paint(p.a.buffer.data(), kBytes, round);
    std::memcpy(p.a.buffer.data() + kBytes - 4, &round, sizeof round);
    auto w = p.a.request(IBV_WR_RDMA_WRITE, 0, kBytes, p.b.address(), p.b.mr->rkey);
    REQUIRE(p.a.post(w) == 0);
    const std::int64_t end = now_ns() + 20 * kSecond;
    while (std::atomic_ref(*last).load(std::memory_order_acquire) != round && now_ns() < end)
      (void)ibv_poll_cq(p.a.cq, 0, nullptr);
    REQUIRE(p.a.buffer == p.b.buffer);
    REQUIRE(next(p.a, p.b).status == IBV_WC_SUCCESS);
  }
}

TEST_CASE("messages of a queue pair stay in order with helpers", "[soft]") {
  Pair p(large(4u << 20));
  const Helpers helpers(3);
  constexpr std::uint32_t kBytes = 1u << 20;
  // Large and small ones to the same place: the last stands in the end.
  for (unsigned round = 0; round < 10; ++round) {
    for (unsigned i = 0; i < 4; ++i) paint(p.a.buffer.data() + i * kBytes, kBytes, round + 7 * i);
    for (std::uint64_t i = 0; i < 8; ++i) {
      const std::uint32_t bytes = i % 2 == 0 ? kBytes : 512;
      auto w = p.a.request(IBV_WR_RDMA_WRITE, i / 2 * kBytes, bytes, p.b.address(), p.b.mr->rkey);
      w.wr.wr_id = i;
      REQUIRE(p.a.post(w) == 0);
    }
    for (std::uint64_t i = 0; i < 8; ++i) {
      const ibv_wc wc = next(p.a, p.b);
      REQUIRE(wc.status == IBV_WC_SUCCESS);
      REQUIRE(wc.wr_id == i);
    }
    REQUIRE(std::memcmp(p.b.buffer.data(), p.a.buffer.data() + 3 * kBytes, kBytes) == 0);
  }
}

TEST_CASE("helpers serve several queue pairs at once, both ways", "[soft]") {
  constexpr int kPairs = 8, kRounds = 10;
  constexpr std::uint32_t kBytes = 512u << 10;
  Many m(kPairs, large(2 * kPairs * std::size_t{kBytes}));
  const Helpers helpers(4);
  for (unsigned round = 0; round < kRounds; ++round) {
    paint(m.a.buffer.data(), kPairs * kBytes, round);
    paint(m.b.buffer.data(), kPairs * kBytes, round + 3);
    for (int i = 0; i < kPairs; ++i) {
      const auto at = static_cast<std::size_t>(i) * kBytes, there = kPairs * kBytes + at;
      m.at_a(i, [&] {
        auto w = m.a.request(IBV_WR_RDMA_WRITE, at, kBytes, m.b.address(there), m.b.mr->rkey);
        REQUIRE(m.a.post(w) == 0);
      });
      m.at_b(i, [&] {
        auto w = m.b.request(IBV_WR_RDMA_WRITE, at, kBytes, m.a.address(there), m.a.mr->rkey);
        REQUIRE(m.b.post(w) == 0);
      });
    }
    for (int i = 0; i < kPairs; ++i) {
      REQUIRE(next(m.a, m.b).status == IBV_WC_SUCCESS);
      REQUIRE(next(m.b, m.a).status == IBV_WC_SUCCESS);
    }
    constexpr std::size_t kAll = kPairs * std::size_t{kBytes};
    REQUIRE(std::memcmp(m.a.buffer.data() + kAll, m.b.buffer.data(), kAll) == 0);
    REQUIRE(std::memcmp(m.b.buffer.data() + kAll, m.a.buffer.data(), kAll) == 0);
  }
}

TEST_CASE("helpers at both ends copy between processes", "[soft]") {
  constexpr std::uint32_t kBytes = 4u << 20;
  Child child("helped");  // its helpers: 2
  Side s(large(2 * kBytes + 64));
  const Helpers helpers(3);
  child.connect(s);
  for (unsigned round = 0; round < 12; ++round) {
    const std::uint32_t bytes = kBytes - round * 65521;
    paint(s.buffer.data(), kBytes, round);
    std::memset(s.buffer.data() + kBytes, 0xee, kBytes + 64);
    auto w = s.request(IBV_WR_RDMA_WRITE, 0, bytes, child.theirs.address + 64, child.theirs.rkey);
    auto r =
        s.request(IBV_WR_RDMA_READ, kBytes, bytes, child.theirs.address + 64, child.theirs.rkey);
    w.wr.wr_id = 1;
    r.wr.wr_id = 2;
    REQUIRE(s.post(w) == 0);
    REQUIRE(s.post(r) == 0);
    for (const std::uint64_t id : {1, 2}) {
      const ibv_wc wc = wait(s);
      REQUIRE(wc.status == IBV_WC_SUCCESS);
      REQUIRE(wc.wr_id == id);
    }
    REQUIRE(std::memcmp(s.buffer.data(), s.buffer.data() + kBytes, bytes) == 0);
    CHECK(s.buffer[kBytes + bytes] == 0xee);
  }
  CHECK(come_to(3, 0));
  CHECK(child.finish() == 0);
}
