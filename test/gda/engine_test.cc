// The engine's thread: clients come and go while it goes round.
#include "gda/team/engine.h"

#include <atomic>
#include <chrono>
#include <memory>
#include <thread>
#include <vector>

#include "gda/served/back/verbs_back_end.h"
#include "plugin/base/clock.h"
#include "test/support/catch.h"

using namespace twinpath;
using namespace twinpath::gda;

namespace {

struct Counting final : EngineClient {
  std::atomic<std::uint64_t> turns{0}, looks{0};
  bool turn() override {
    turns.fetch_add(1);
    return false;
  }
  void look_around() override { looks.fetch_add(1); }
};

}  // namespace

TEST_CASE("An engine serves a client from add to remove, and not afterwards") {
  for (const EngineChoice choice :
       {EngineChoice::automatic, EngineChoice::spin, EngineChoice::sleep}) {
    Engine engine(-1, choice);
    auto a = std::make_unique<Counting>(), b = std::make_unique<Counting>();
    engine.add(*a);
    engine.add(*b);
    const std::uint64_t before = b->turns.load();
    engine.pass_round();
    CHECK(b->turns.load() > before);
    engine.remove(*a);
    const std::uint64_t last = a->turns.load();
    engine.pass_round();
    engine.pass_round();
    CHECK(a->turns.load() == last);
    a.reset();  // the engine would touch freed memory if it still knew it
    engine.pass_round();
    const std::int64_t end = now_ns() + 5 * kSecond;
    while (b->looks.load() < 2 && now_ns() < end) std::this_thread::yield();
    CHECK(b->looks.load() >= 2);
    engine.remove(*b);
  }
}

TEST_CASE("An engine sleeps between looks where nobody needs its turns, and wakes for changes") {
  struct Quiet final : EngineClient {
    std::atomic<std::uint64_t> turns{0}, looks{0};
    std::atomic<bool> needs{false};
    bool turn() override {
      turns.fetch_add(1);
      return false;
    }
    void look_around() override { looks.fetch_add(1); }
    bool needs_turns() const override { return needs.load(); }
  };
  Engine engine(-1, EngineChoice::spin);
  Quiet a;
  engine.add(a);
  const auto wait = [&](auto&& until) {
    const std::int64_t end = now_ns() + 20 * kSecond;
    while (!until() && now_ns() < end) std::this_thread::sleep_for(std::chrono::milliseconds(5));
    return until();
  };
  const std::uint64_t turns = a.turns.load(), looks = a.looks.load();
  CHECK(wait([&] { return a.looks.load() >= looks + 3; }));
  // A turn for each look; an engine that spins makes millions.
  CHECK(a.turns.load() - turns <= 3 * (a.looks.load() - looks) + 3);
  const std::int64_t begin = now_ns();
  for (int i = 0; i < 50; ++i) engine.pass_round();  // a look's time each would be 10 s
  CHECK(now_ns() - begin < 5 * kSecond);
  a.needs = true;
  CHECK(wait([&] { return a.turns.load() > turns + 10000; }));
  a.needs = false;
  Counting busy;
  engine.add(busy);  // the other's turns come, too
  const std::uint64_t later = a.turns.load();
  CHECK(wait([&] { return busy.turns.load() > 1000 && a.turns.load() > later + 1000; }));
  engine.remove(busy);
  engine.remove(a);
}

TEST_CASE("An engine lets clients glance where nothing moved, and no others") {
  struct Glancing final : EngineClient {
    explicit Glancing(bool busy) : moves(busy) {}
    bool turn() override {
      turns.fetch_add(1);
      return moves;
    }
    void look_around() override {}
    void glance() override { glances.fetch_add(1); }
    const bool moves;
    std::atomic<std::uint64_t> turns{0}, glances{0};
  };
  Engine engine(-1, EngineChoice::automatic);
  Glancing idle(false), busy(true);
  engine.add(busy);
  engine.add(idle);
  const std::int64_t end = now_ns() + 20 * kSecond;
  while (idle.glances < 50 && now_ns() < end) std::this_thread::yield();
  engine.remove(idle);
  engine.remove(busy);
  CHECK(idle.glances >= 50);
  CHECK(idle.glances < idle.turns / 2);
  CHECK(busy.glances == 0);
}

TEST_CASE("Clients of many threads share the engine of one GPU") {
  std::vector<std::thread> threads;
  std::atomic<int> wrong{0};
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 20; ++i) {
        auto engine = Engine::of(-1, EngineChoice::automatic, HelperCpus::near);
        Counting client;
        engine->add(client);
        engine->pass_round();
        if (client.turns.load() == 0) wrong.fetch_add(1);
        engine->remove(client);
      }
    });
  }
  for (auto& t : threads) t.join();
  CHECK(wrong.load() == 0);
  const auto one = Engine::of(-1, EngineChoice::automatic, HelperCpus::near);
  CHECK(Engine::of(-1, EngineChoice::automatic, HelperCpus::near) == one);
}

TEST_CASE("Queue numbers have 24 bits and do not overlap") {
  Engine engine(-1, EngineChoice::sleep);
  const std::uint32_t first = engine.take_numbers(1000);
  CHECK(engine.take_numbers(1) == first + 1000);
  for (int i = 0; i < 40; ++i) {
    const std::uint32_t at = engine.take_numbers(1u << 20);
    CHECK(at >= first);
    CHECK(at + (1u << 20) <= 1u << 24);
  }
}

TEST_CASE("Error completions become the syndromes that adapters write") {
  CHECK(syndrome_of(IBV_WC_SUCCESS) == Syndrome::none);
  CHECK(syndrome_of(IBV_WC_LOC_PROT_ERR) == Syndrome::local_protection);
  CHECK(syndrome_of(IBV_WC_WR_FLUSH_ERR) == Syndrome::flushed);
  CHECK(syndrome_of(IBV_WC_REM_ACCESS_ERR) == Syndrome::remote_access);
  CHECK(syndrome_of(IBV_WC_RETRY_EXC_ERR) == Syndrome::retry_exceeded);
  for (int status = IBV_WC_SUCCESS + 1; status <= IBV_WC_TM_RNDV_INCOMPLETE; ++status)
    CHECK(syndrome_of(static_cast<ibv_wc_status>(status)) != Syndrome::none);
}
