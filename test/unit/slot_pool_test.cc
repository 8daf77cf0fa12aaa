#include "proxy/queues/slot_pool.h"

#include <vector>

#include "test/support/catch.h"

namespace twinpath {
namespace {

struct Slot {
  Slot(int* alive, int number) : alive_(alive), number_(number) { ++*alive_; }
  ~Slot() { --*alive_; }
  Slot(const Slot&) = delete;
  Slot& operator=(const Slot&) = delete;
  int* const alive_;
  const int number_;
  std::uint16_t next_free_ = 0;
};

constexpr std::uint16_t kSlots = 4;
struct Slots {
  int alive = 0;
  SlotPool<Slot, kSlots> pool;
  Slot* take() {
    return pool.take(
        [&](void* at, std::uint16_t slot) { return new (at) Slot(&alive, 100 + slot); });
  }
};

TEST_CASE("A slot is made when it is first needed, and only then") {
  Slots s;
  CHECK(s.alive == 0);
  CHECK(s.pool.take_again() == nullptr);
  CHECK_FALSE(s.pool.made(0));
  CHECK_FALSE(s.pool.full());
  for (int i = 0; i < kSlots; ++i) {
    const Slot* t = s.take();
    REQUIRE(t != nullptr);
    CHECK(t->number_ == 100 + i);
    CHECK(s.alive == i + 1);
    CHECK(s.pool.used() == i + 1);
    CHECK(s.pool.made(static_cast<std::size_t>(i)));
    CHECK_FALSE(s.pool.made(static_cast<std::size_t>(i) + 1));
    CHECK(&s.pool.at(static_cast<std::size_t>(i)) == t);
  }
}

TEST_CASE("A slot that was given back is taken again as it is, the last one first") {
  Slots s;
  Slot* a = s.take();
  Slot* b = s.take();
  Slot* c = s.take();
  s.pool.give(*a);
  s.pool.give(*c);
  s.pool.give(*b);
  CHECK(s.pool.used() == 0);
  CHECK(s.take() == b);
  CHECK(s.pool.take_again() == c);
  CHECK(s.take() == a);
  CHECK(s.alive == 3);
  CHECK(s.pool.used() == 3);
  // Those not made yet come when there is no other.
  CHECK(s.pool.take_again() == nullptr);
  CHECK(s.take()->number_ == 103);
}

TEST_CASE("A full pool gives none until one comes back") {
  Slots s;
  std::vector<Slot*> taken;
  for (int i = 0; i < kSlots; ++i) taken.push_back(s.take());
  CHECK(s.pool.full());
  CHECK(s.take() == nullptr);
  CHECK(s.pool.take_again() == nullptr);
  CHECK(s.pool.used() == kSlots);
  s.pool.give(*taken[2]);
  CHECK_FALSE(s.pool.full());
  CHECK(s.take() == taken[2]);
  CHECK(s.pool.full());
  CHECK(s.alive == kSlots);
}

TEST_CASE("A pool ends those it made, in use or not") {
  int alive = 0;
  {
    SlotPool<Slot, kSlots> pool;
    const auto make = [&](void* at, std::uint16_t slot) { return new (at) Slot(&alive, slot); };
    (void)pool.take(make);
    Slot* second = pool.take(make);
    pool.give(*second);
    CHECK(alive == 2);
  }
  CHECK(alive == 0);
}

}  // namespace
}  // namespace twinpath
