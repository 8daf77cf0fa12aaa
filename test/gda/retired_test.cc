// Memory whose freeing waits for kernels, and when that is done.
#include "gda/memory/retired.h"

#include <atomic>
#include <chrono>
#include <memory>
#include <thread>
#include <vector>

#include "test/support/catch.h"

using namespace twinpath::gda;

namespace {

struct Seen {
  std::atomic<bool> kernels_run{false}, freed{false};
  std::atomic<int> released{0};
};

Retired::Memory memory_of(const std::shared_ptr<Seen>& seen) {
  return {.free =
              [seen] {
                seen->kernels_run.wait(true);
                seen->freed = true;
              },
          .release = [seen] { ++seen->released; }};
}

void wait_for(const std::atomic<int>& count, int least) {
  for (int i = 0; i < 10000 && count < least; ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  CHECK(count >= least);
}

}  // namespace

TEST_CASE("memory goes at once when no context lives") {
  Retired retired;
  const auto seen = std::make_shared<Seen>();
  CHECK(retired.put(memory_of(seen)));
  CHECK(seen->freed);
  CHECK(retired.kept() == 0);
  CHECK(seen.use_count() == 1);
}

TEST_CASE("memory is kept while contexts live, and its kernels are let go again and again") {
  Retired retired;
  const auto first = std::make_shared<Seen>(), second = std::make_shared<Seen>();
  retired.enter();
  retired.enter();
  retired.leave();
  CHECK(retired.put(memory_of(first)));
  CHECK_FALSE(first->freed);
  CHECK(retired.kept() == 1);
  wait_for(first->released, 5);
  retired.leave();
  CHECK(retired.put(memory_of(second)));
  CHECK(first->freed);
  CHECK(second->freed);
  CHECK(retired.kept() == 0);
  // And once more, with the thread that is there.
  retired.enter();
  const auto third = std::make_shared<Seen>();
  CHECK(retired.put(memory_of(third)));
  wait_for(third->released, 5);
  retired.leave();
  CHECK(retired.put({.free = [] {}, .release = {}}));
  CHECK(third->freed);
}

TEST_CASE("while the first waits to be freed, kernels of all are let go") {
  Retired retired;
  const auto first = std::make_shared<Seen>(), second = std::make_shared<Seen>();
  retired.enter();
  first->kernels_run = true;
  CHECK(retired.put(memory_of(first)));
  retired.leave();
  CHECK_FALSE(retired.put(memory_of(second), 10'000'000));
  const int before = second->released;
  wait_for(second->released, before + 5);
  CHECK_FALSE(second->freed);
  first->kernels_run = false;
  first->kernels_run.notify_all();
  for (int i = 0; i < 10000 && second.use_count() != 1; ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  CHECK(second->freed);
  CHECK(first.use_count() == 1);
}

TEST_CASE("of too much, the oldest is freed although contexts live") {
  Retired retired;
  retired.enter();
  std::vector<std::shared_ptr<Seen>> all;
  for (std::size_t i = 0; i < Retired::kMost + 2; ++i) {
    all.push_back(std::make_shared<Seen>());
    CHECK(retired.put(memory_of(all.back())));
  }
  CHECK(all[0]->freed);
  CHECK(all[1]->freed);
  CHECK_FALSE(all[2]->freed);
  CHECK(retired.kept() == Retired::kMost);
  retired.leave();
  CHECK(retired.put({.free = [] {}, .release = {}}));
  for (auto& seen : all) CHECK(seen->freed);
}
