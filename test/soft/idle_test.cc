// What queue pairs cost that nobody uses, and that none of them is forgotten.
#include <dirent.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <string>
#include <thread>

#include "test/soft/many.h"

using namespace twinpath;
using namespace twinpath::test;

namespace {

// Nanoseconds that the adapter's engine thread has run so far; -1: not found.
std::int64_t engine_ran_ns() {
  std::int64_t ran = -1;
  DIR* tasks = opendir("/proc/self/task");
  if (tasks == nullptr) return ran;
  while (const dirent* d = readdir(tasks)) {
    const std::string dir = std::string("/proc/self/task/") + d->d_name;
    char comm[32] = "";
    if (FILE* f = std::fopen((dir + "/comm").c_str(), "re")) {
      if (std::fgets(comm, sizeof comm, f) == nullptr) comm[0] = 0;
      std::fclose(f);
    }
    if (std::string(comm) != "twinpath-hca\n") continue;
    if (FILE* f = std::fopen((dir + "/schedstat").c_str(), "re")) {
      long long ns = 0;
      if (std::fscanf(f, "%lld", &ns) == 1) ran = ns;
      std::fclose(f);
    }
  }
  closedir(tasks);
  return ran;
}

void rest(int ms) { std::this_thread::sleep_for(std::chrono::milliseconds(ms)); }

std::int64_t empty_poll_ns(ibv_cq* cq) {
  constexpr int kPolls = 2000;
  std::int64_t best = 1'000'000'000;
  for (int round = 0; round < 5; ++round) {
    const std::int64_t begin = now_ns();
    for (int i = 0; i < kPolls; ++i) {
      ibv_wc wc{};
      if (ibv_poll_cq(cq, 1, &wc) != 0) return -1;
    }
    best = std::min(best, (now_ns() - begin) / kPolls);
  }
  return best;
}

}  // namespace

// Long enough for every queue pair that has nothing to do to fall asleep.
constexpr int kNap = 60;

TEST_CASE("idle queue pairs cost neither polls nor the engine time", "[soft]") {
  Many few(1), many(300);
  rest(200);
  const std::int64_t before = engine_ran_ns();
  REQUIRE(before >= 0);
  rest(500);
  CHECK(engine_ran_ns() - before < 10 * kMillisecond);
  const std::int64_t one = empty_poll_ns(few.a.cq), all = empty_poll_ns(many.a.cq);
  INFO("an empty poll takes " << one << " ns with one, " << all << " ns with all");
  REQUIRE(one >= 0);
  CHECK(all <= 10 * std::max<std::int64_t>(one, 10));
}

TEST_CASE("a queue pair that sleeps wakes for what is sent to it and by it", "[soft]") {
  Options o;
  o.channel = true;
  Many m(20, o);
  for (int n = 0; n < m.count(); n += 3) {
    m.at_b(n, [&] { REQUIRE(m.b.post_receive(0, 64) == 0); });
    REQUIRE(ibv_req_notify_cq(m.b.cq, 0) == 0);
    rest(kNap);
    m.at_a(n, [&] {
      auto w = m.a.request(IBV_WR_SEND, 0, 8, 0, 0);
      REQUIRE(m.a.post(w) == 0);
    });
    // Nobody polls: the engine has to see it.
    REQUIRE(m.b.channel_event(2000));
    ibv_wc wc{};
    REQUIRE(ibv_poll_cq(m.b.cq, 1, &wc) == 1);
    CHECK(wc.opcode == IBV_WC_RECV);
    for (std::int64_t end = now_ns() + 2 * kSecond;
         now_ns() < end && ibv_poll_cq(m.a.cq, 1, &wc) == 0;) {
    }
    CHECK(wc.opcode == IBV_WC_SEND);
    CHECK(wc.status == IBV_WC_SUCCESS);
  }
}

TEST_CASE("the first poll after a message moves a queue pair that slept", "[soft]") {
  Pair p;
  REQUIRE(p.b.post_receive(0, 64) == 0);
  ibv_wc wc{};
  int first = 0;
  constexpr int kRounds = 10;
  for (int round = 0; round < kRounds; ++round) {
    rest(kNap);
    auto w = p.a.request(IBV_WR_SEND, 0, 8, 0, 0);
    REQUIRE(p.a.post(w) == 0);
    // The engine was woken too and may hold at times what the poll wants.
    if (ibv_poll_cq(p.b.cq, 1, &wc) == 1) {
      ++first;
    } else {
      CHECK(p.wait(p.b).status == IBV_WC_SUCCESS);
    }
    CHECK(p.wait(p.a).status == IBV_WC_SUCCESS);
    REQUIRE(p.b.post_receive(0, 64) == 0);
  }
  CHECK(first >= 1);
}

TEST_CASE("no message is lost in the moment of falling asleep", "[soft]") {
  Options o;
  o.channel = true;
  Pair p(o);
  for (std::uint32_t round = 0; round < 150; ++round) {
    REQUIRE(p.b.post_receive(0, 64) == 0);
    REQUIRE(ibv_req_notify_cq(p.b.cq, 0) == 0);
    // Around the 10 ms after which it goes to sleep.
    std::this_thread::sleep_for(std::chrono::microseconds(9000 + round * 2654435761u % 4096));
    auto w = p.a.request(IBV_WR_SEND, 0, 8, 0, 0);
    REQUIRE(p.a.post(w) == 0);
    REQUIRE(p.b.channel_event(2000));
    ibv_wc wc{};
    REQUIRE(ibv_poll_cq(p.b.cq, 1, &wc) == 1);
    CHECK(p.wait(p.a).status == IBV_WC_SUCCESS);
  }
}

TEST_CASE("the clocks of a queue pair that slept go on with its next work", "[soft]") {
  Pair p;  // timeout 14, 1 retry: 134 ms
  rest(kNap);
  p.b.verbs.destroy_qp(p.b.qp);
  p.b.qp = nullptr;
  auto w = p.a.request(IBV_WR_RDMA_WRITE, 0, 8, p.b.address(), p.b.mr->rkey);
  const std::int64_t begin = now_ns();
  REQUIRE(p.a.post(w) == 0);
  // Without polls: only the engine looks.
  rest(400);
  ibv_wc wc{};
  REQUIRE(ibv_poll_cq(p.a.cq, 1, &wc) == 1);
  CHECK(wc.status == IBV_WC_RETRY_EXC_ERR);
  CHECK(now_ns() - begin > 100 * kMillisecond);
}

TEST_CASE("what was sent while a port was down arrives at a queue pair that slept", "[soft]") {
  Options o;
  o.timeout = 20;
  Pair p(o);
  REQUIRE(p.b.post_receive(0, 64) == 0);
  rest(kNap);
  REQUIRE(soft::set_port_state(p.b.context, 1, false) == 0);
  auto w = p.a.request(IBV_WR_SEND, 0, 8, 0, 0);
  REQUIRE(p.a.post(w) == 0);
  rest(kNap);
  REQUIRE(soft::set_port_state(p.b.context, 1, true) == 0);
  CHECK(p.wait(p.b).opcode == IBV_WC_RECV);
  CHECK(p.wait(p.a).status == IBV_WC_SUCCESS);
}

TEST_CASE("figures: idle queue pairs", "[.figures]") {
  for (int count : {1, 10, 100, 1000}) {
    Many m(count);
    rest(300);
    const std::int64_t poll = empty_poll_ns(m.a.cq);
    rest(300);
    const std::int64_t before = engine_ran_ns();
    rest(2000);
    std::printf("%4d idle queue pairs: empty poll %5ld ns, engine thread %7ld us per second\n",
                2 * count, static_cast<long>(poll),
                static_cast<long>((engine_ran_ns() - before) / 2000));
  }
}
