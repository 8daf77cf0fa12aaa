// Read-modify-writes of words of GPU memory, over the fake driver of the copy threads.
#include <array>
#include <atomic>
#include <memory>
#include <thread>
#include <vector>

#include "test/support/catch.h"
#include "test/support/log_capture.h"
#include "test/unit/fake_copy_gpu.h"

namespace twinpath::gpu {

using namespace test_copies;

namespace {

struct Update : WordUpdate {
  std::atomic<bool> finished{false};
  Status status = Status::again;
  std::vector<std::uint64_t>* log = nullptr;
};

void fill(Update& u, std::uint64_t address, std::uint64_t add) {
  u.update = true;
  u.to = {address, 0};
  u.executor = 0;
  u.operand[0] = add;
  u.done = [](CopyJob* base, Status status) {
    auto* update = static_cast<Update*>(base);
    update->status = status;
    if (update->log != nullptr) update->log->push_back(update->old);
    update->finished.store(true, std::memory_order_release);
    update->finished.notify_all();
  };
}

Status wait(Update& u) {
  u.finished.wait(false, std::memory_order_acquire);
  return u.status;
}

Status add(std::uint64_t address, std::uint64_t value, std::uint64_t& old) {
  Update u;
  fill(u, address, value);
  REQUIRE(submit_copy(&u) == Status::ok);
  const Status status = wait(u);
  old = u.old;
  return status;
}

}  // namespace

TEST_CASE("a word of GPU memory is added to, and swapped when it is as expected", "[update]") {
  Machine m;
  m.device_words()[9] = 40;
  const std::uint64_t at = m.device() + 72;
  std::uint64_t old = 0;
  CHECK(add(at, 2, old) == Status::ok);
  CHECK(old == 40);
  CHECK(add(at, ~std::uint64_t{0}, old) == Status::ok);
  CHECK(old == 42);
  CHECK(m.device_words()[9] == 41);
  for (const std::uint64_t expected : {std::uint64_t{7}, std::uint64_t{41}}) {
    Update u;
    fill(u, at, expected);
    u.compare = true;
    u.operand[1] = 1000;
    REQUIRE(submit_copy(&u) == Status::ok);
    CHECK(wait(u) == Status::ok);
    CHECK(u.old == 41);
    CHECK(m.device_words()[9] == (expected == 41 ? 1000 : 41));
  }
  Update masked;
  fill(masked, at, 0);
  masked.compare = true;
  masked.operand[1] = 0x55;
  masked.operand[2] = ~std::uint64_t{0};
  masked.operand[3] = ~std::uint64_t{0xff};
  REQUIRE(submit_copy(&masked) == Status::ok);
  CHECK(wait(masked) == Status::ok);
  CHECK(masked.old == 1000);
  CHECK(m.device_words()[9] == ((1000 & ~0xff) | 0x55));
  CHECK(m.device_words()[8] == 0);
  CHECK(m.device_words()[10] == 0);
  CHECK(m.gpu().same_gpu_copies == 0);
}

TEST_CASE("updates of many threads lose nothing and keep the order of each", "[update]") {
  Machine m;
  constexpr std::size_t kThreads = 4, kEach = 400, kWords = 100;
  std::vector<std::vector<std::unique_ptr<Update>>> updates(kThreads);
  std::vector<std::thread> threads;
  for (std::size_t t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      for (std::size_t i = 0; i < kEach; ++i) {
        updates[t].push_back(std::make_unique<Update>());
        Update& u = *updates[t].back();
        // Words of several pages, in the same place of each.
        const std::size_t word = (i * 7 + t) % kWords;
        fill(u, m.device() + word % 50 * 8 + word / 50 * 4096, 1 + t * 1000000);
        if (submit_copy(&u) != Status::ok) std::abort();
      }
      for (auto& u : updates[t]) (void)wait(*u);
    });
  }
  for (auto& t : threads) t.join();
  std::vector<std::uint64_t> sums(kWords);
  for (std::size_t t = 0; t < kThreads; ++t) {
    std::vector<std::uint64_t> last(kWords);
    for (std::size_t i = 0; i < kEach; ++i) {
      const std::size_t word = (i * 7 + t) % kWords;
      CHECK(updates[t][i]->status == Status::ok);
      CHECK(updates[t][i]->old >= last[word]);
      last[word] = updates[t][i]->old + 1;
      sums[word] += 1 + t * 1000000;
    }
  }
  for (std::size_t w = 0; w < kWords; ++w)
    CHECK(m.device_words()[w % 50 + w / 50 * 512] == sums[w]);
}

TEST_CASE("updates that have gathered are one read and one write of each word", "[update]") {
  Machine m;
  m.gpu().pause(true);
  std::vector<std::unique_ptr<Update>> updates;
  std::vector<std::uint64_t> log;
  const auto submit = [&](std::uint64_t address) {
    updates.push_back(std::make_unique<Update>());
    fill(*updates.back(), address, 1);
    updates.back()->log = &log;
    REQUIRE(submit_copy(updates.back().get()) == Status::ok);
  };
  submit(m.device());
  m.given(1);  // a group of one is under way
  for (int i = 0; i < 30; ++i) submit(m.device());
  const std::size_t copies = m.gpu().copies;
  m.gpu().pause(false);
  for (auto& u : updates) CHECK(wait(*u) == Status::ok);
  CHECK(m.device_words()[0] == 31);
  CHECK(m.gpu().copies == copies + 1);
  for (std::size_t i = 0; i < log.size(); ++i) CHECK(log[i] == i);
}

TEST_CASE("one word under two addresses is not updated twice at a time", "[update]") {
  Machine m;
  m.gpu().pause(true);
  Update first, second;
  fill(first, m.device() + 64, 1);
  fill(second, m.device() + 64 + 4096, 1);  // might be the same word, mapped elsewhere
  REQUIRE(submit_copy(&first) == Status::ok);
  REQUIRE(submit_copy(&second) == Status::ok);
  m.given(1);
  CHECK(m.gpu().copies == 1);
  m.gpu().pause(false);
  CHECK(wait(first) == Status::ok);
  CHECK(wait(second) == Status::ok);
  CHECK(m.gpu().copies == 2);
}

TEST_CASE("an update that the driver refuses fails alone, one of a dead GPU with all", "[update]") {
  const test::LogCapture log;
  Machine m;
  std::uint64_t old = 0;
  SECTION("reading") {
    m.gpu().bad_source = m.device() + 8;
    CHECK(add(m.device() + 8, 1, old) == Status::system);
  }
  SECTION("writing") {
    m.gpu().bad_address = m.device() + 8;
    CHECK(add(m.device() + 8, 1, old) == Status::system);
    CHECK(m.device_words()[1] == 0);
  }
  SECTION("a dead GPU") {
    m.gpu().pause(true);
    std::array<Update, 3> updates;
    for (std::size_t i = 0; i < updates.size(); ++i) {
      fill(updates[i], m.device() + i * 8, 1);
      REQUIRE(submit_copy(&updates[i]) == Status::ok);
      Machine::settle();
    }
    m.gpu().dead = true;
    for (Update& u : updates) CHECK(wait(u) == Status::system);
    CHECK(add(m.device(), 1, old) == Status::system);
    return;
  }
  m.gpu().bad_source = m.gpu().bad_address = 0;
  CHECK(add(m.device(), 5, old) == Status::ok);
  CHECK(m.device_words()[0] == 5);
}

}  // namespace twinpath::gpu
