#include "plugin/rdma/mr_cache.h"

#include <cerrno>
#include <thread>
#include <vector>

#include "test/support/catch.h"
#include "test/support/log_capture.h"
#include "test/support/memlock.h"

namespace twinpath {
namespace {

// A verbs table that only counts.
struct Fake {
  static inline int live = 0, made = 0;
  static inline int refuse_errno = 0;
  static inline bool refuse_relaxed = false;
  static inline unsigned last_access = 0;
  static inline std::uint64_t last_offset = 0;
  static inline int refuse_data_direct = 0;  // errno
  static inline int last_mlx5_access = -1;
  static inline std::mutex mutex;

  static ibv_mr* make(void* addr, std::size_t bytes, unsigned access) {
    std::lock_guard hold(mutex);
    last_access = access;
    if (refuse_errno != 0 || (refuse_relaxed && (access & IBV_ACCESS_RELAXED_ORDERING) != 0)) {
      errno = refuse_errno != 0 ? refuse_errno : EINVAL;
      return nullptr;
    }
    auto* mr = new ibv_mr{};
    mr->addr = addr;
    mr->length = bytes;
    mr->lkey = mr->rkey = static_cast<std::uint32_t>(++made);
    ++live;
    return mr;
  }
  static Verbs table() {
    live = made = 0;
    refuse_errno = 0;
    refuse_relaxed = false;
    refuse_data_direct = 0;
    last_mlx5_access = -1;
    Verbs v;
    v.reg_mr_iova2 = [](ibv_pd*, void* addr, std::size_t bytes, std::uint64_t, unsigned access) {
      return make(addr, bytes, access);
    };
    v.reg_dmabuf_mr = [](ibv_pd*, std::uint64_t offset, std::size_t bytes, std::uint64_t iova, int,
                         int access) {
      last_offset = offset;
      return make(reinterpret_cast<void*>(iova), bytes, static_cast<unsigned>(access));
    };
    v.reg_data_direct = [](ibv_pd*, std::uint64_t offset, std::size_t bytes, std::uint64_t iova,
                           int, int access, int mlx5_access) -> ibv_mr* {
      last_offset = offset;
      last_mlx5_access = mlx5_access;
      if (refuse_data_direct != 0) {
        errno = refuse_data_direct;
        return nullptr;
      }
      return make(reinterpret_cast<void*>(iova), bytes, static_cast<unsigned>(access));
    };
    v.dereg_mr = [](ibv_mr* mr) {
      std::lock_guard hold(mutex);
      --live;
      delete mr;
      return 0;
    };
    return v;
  }
};

MrRequest host(std::uint64_t at, std::size_t bytes) {
  MrRequest r;
  r.address = at;
  r.bytes = bytes;
  return r;
}

TEST_CASE("Ranges inside a live registration share it and the last user removes it") {
  const Verbs verbs = Fake::table();
  MrCache cache(verbs, nullptr, "fake0");
  auto a = cache.acquire(host(0x10000, 0x4000));
  auto b = cache.acquire(host(0x11010, 100));
  REQUIRE(a);
  REQUIRE(b);
  CHECK(*a == *b);
  CHECK(Fake::made == 1);
  cache.release(*a);
  CHECK(Fake::live == 1);
  cache.release(*b);
  CHECK(Fake::live == 0);
}

TEST_CASE("D7: lookups stay right after removals in any order, also with overlapping ranges") {
  const Verbs verbs = Fake::table();
  MrCache cache(verbs, nullptr, "fake0");
  std::vector<MrRegion*> regions;
  for (std::uint64_t i = 0; i < 8; ++i) {
    auto r = cache.acquire(host(0x100000 + i * 0x3000, 0x4000));  // each overlaps the next
    REQUIRE(r);
    regions.push_back(*r);
  }
  CHECK(Fake::made == 8);
  for (std::size_t i : {0u, 3u, 7u, 4u}) cache.release(regions[i]);
  CHECK(cache.regions() == 4);
  for (std::uint64_t i : {1u, 2u, 5u, 6u}) {
    auto again = cache.acquire(host(0x100000 + i * 0x3000 + 0x1000, 0x1000));
    REQUIRE(again);
    CHECK(*again == regions[i]);
    cache.release(*again);
  }
  CHECK(Fake::made == 8);
  // What was removed is registered anew, not found.
  auto fresh = cache.acquire(host(0x100000 + 3 * 0x3000 + 0x1000, 0x1000));
  REQUIRE(fresh);
  CHECK(Fake::made == 9);
}

TEST_CASE("D7: kind and ordering are part of the key") {
  const Verbs verbs = Fake::table();
  MrCache cache(verbs, nullptr, "fake0");
  MrRequest r = host(0x10000, 0x1000);
  REQUIRE(cache.acquire(r));
  r.relaxed_ordering = true;
  REQUIRE(cache.acquire(r));
  CHECK((Fake::last_access & IBV_ACCESS_RELAXED_ORDERING) != 0);
  r.kind = MrKind::cuda;
  REQUIRE(cache.acquire(r));
  r.kind = MrKind::dmabuf;
  r.dmabuf_fd = 5;
  r.dmabuf_offset = 0x200;
  REQUIRE(cache.acquire(r));
  CHECK(Fake::last_offset == 0x200);
  CHECK(Fake::made == 4);
}

TEST_CASE("A device that refuses relaxed ordering gets strict registrations") {
  const Verbs verbs = Fake::table();
  test::LogCapture log;
  MrCache cache(verbs, nullptr, "fake0");
  Fake::refuse_relaxed = true;
  MrRequest r = host(0x10000, 0x1000);
  r.relaxed_ordering = true;
  auto a = cache.acquire(r);
  auto b = cache.acquire(r);
  REQUIRE(a);
  REQUIRE(b);
  CHECK(*a == *b);
  CHECK((Fake::last_access & IBV_ACCESS_RELAXED_ORDERING) == 0);
  CHECK(log.warnings().empty());
}

TEST_CASE("A dma-buf goes by the data-direct function where that is wanted, other memory never") {
  const Verbs verbs = Fake::table();
  MrCache cache(verbs, nullptr, "fake0");
  MrRequest r = host(0x100000, 0x10000);
  r.data_direct = true;
  auto plain = cache.acquire(r);
  REQUIRE(plain);
  CHECK(Fake::last_mlx5_access == -1);
  r.kind = MrKind::dmabuf;
  r.dmabuf_fd = 3;
  r.dmabuf_offset = 0x2000;
  auto direct = cache.acquire(r);
  REQUIRE(direct);
  CHECK(Fake::last_mlx5_access == kDataDirect);
  CHECK(Fake::last_offset == 0x2000);
  // Another port of the adapter may have it the usual way: two registrations.
  Fake::last_mlx5_access = -1;
  r.data_direct = false;
  auto usual = cache.acquire(r);
  REQUIRE(usual);
  CHECK(*usual != *direct);
  CHECK(Fake::last_mlx5_access == -1);
  for (auto* region : {*plain, *direct, *usual}) cache.release(region);
  CHECK(Fake::live == 0);
}

TEST_CASE("A data-direct function that refuses is left to the usual one, and said once") {
  const Verbs verbs = Fake::table();
  MrCache cache(verbs, nullptr, "fake0");
  test::LogCapture log;
  Fake::refuse_data_direct = 524;
  std::vector<MrRegion*> regions;
  for (const std::uint64_t at : {0x100000u, 0x200000u}) {
    MrRequest r = host(at, 0x10000);
    r.data_direct = true;
    r.kind = MrKind::dmabuf;
    r.dmabuf_fd = 3;
    auto region = cache.acquire(r);
    REQUIRE(region);
    regions.push_back(*region);
  }
  CHECK(log.warnings().size() == 1);
  CHECK(log.has(LogLevel::warn, "the data-direct function of fake0 refuses GPU memory"));
  for (auto* region : regions) cache.release(region);
  CHECK(Fake::live == 0);
}

TEST_CASE("Too little lockable memory is named with its remedy") {
  const Verbs verbs = Fake::table();
  const test::LimitedMemlock limited;
  test::LogCapture log;
  MrCache cache(verbs, nullptr, "fake0");
  Fake::refuse_errno = ENOMEM;
  auto r = cache.acquire(host(0x10000, 4321));
  CHECK(r.status() == Status::no_memory);
  CHECK(log.has(LogLevel::warn, "fake0"));
  CHECK(log.has(LogLevel::warn, "4321 bytes of host memory at 0x10000"));
  CHECK(log.has(LogLevel::warn, "ulimit -l"));
  CHECK(cache.regions() == 0);
}

TEST_CASE("Threads may acquire and release at the same time") {
  const Verbs verbs = Fake::table();
  MrCache cache(verbs, nullptr, "fake0");
  std::vector<std::thread> threads;
  for (std::uint64_t t = 0; t < 4; ++t) {
    threads.emplace_back([&cache, t] {
      for (std::uint64_t i = 0; i < 500; ++i) {
        auto r = cache.acquire(host(0x10000 + (i + t) % 7 * 0x1000, 0x1800));
        if (r) cache.release(*r);
      }
    });
  }
  for (auto& t : threads) t.join();
  CHECK(cache.regions() == 0);
  CHECK(Fake::live == 0);
}

}  // namespace
}  // namespace twinpath
