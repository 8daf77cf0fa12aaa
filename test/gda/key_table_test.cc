// Keys of windows: bounds, rights, ranks, and keys of windows that are gone.
#include "gda/served/front/key_table.h"

#include <atomic>
#include <set>
#include <thread>
#include <vector>

#include "test/support/catch.h"

using namespace twinpath;
using namespace twinpath::gda;

namespace {

std::vector<KeyedMemory> remotes(int ranks, std::uint64_t bytes) {
  std::vector<KeyedMemory> out;
  for (int r = 0; r < ranks; ++r)
    out.push_back(
        {0x10000u * static_cast<unsigned>(r + 1), bytes, 100u + static_cast<unsigned>(r)});
  return out;
}

}  // namespace

TEST_CASE("A key leads to the memory of the rank it is used for") {
  KeyTable keys(3);
  const auto key = keys.add({0x5000, 64, 9}, remotes(3, 128), kLocalRead | kRemoteWrite);
  REQUIRE(key);
  Located out;
  REQUIRE(keys.local(*key, 16, 48, kLocalRead, out));
  CHECK(out.address == 0x5010);
  CHECK(out.fabric_key == 9);
  REQUIRE(keys.remote(*key, 2, 100, 28, kRemoteWrite, out));
  CHECK(out.address == 0x30000 + 100);
  CHECK(out.fabric_key == 102);
}

TEST_CASE("A key is refused outside its bounds, rights and ranks") {
  KeyTable keys(2);
  const std::uint32_t key = *keys.add({0x5000, 64, 9}, remotes(2, 128), kLocalRead | kRemoteWrite);
  Located out;
  CHECK(keys.local(key, 0, 64, kLocalRead, out));
  CHECK(keys.local(key, 64, 0, kLocalRead, out));
  CHECK_FALSE(keys.local(key, 0, 65, kLocalRead, out));
  CHECK_FALSE(keys.local(key, 65, 0, kLocalRead, out));
  CHECK_FALSE(keys.local(key, 1, ~std::uint64_t{0}, kLocalRead, out));
  CHECK_FALSE(keys.local(key, ~std::uint64_t{0}, 2, kLocalRead, out));
  CHECK_FALSE(keys.local(key, 0, 8, kLocalWrite, out));
  CHECK_FALSE(keys.local(key, 0, 8, kLocalRead | kLocalWrite, out));
  CHECK(keys.remote(key, 1, 120, 8, kRemoteWrite, out));
  CHECK_FALSE(keys.remote(key, 1, 121, 8, kRemoteWrite, out));
  CHECK_FALSE(keys.remote(key, 1, 0, 8, kRemoteAtomic, out));
  CHECK_FALSE(keys.remote(key, 2, 0, 8, kRemoteWrite, out));
  CHECK_FALSE(keys.remote(key, -1, 0, 8, kRemoteWrite, out));
  CHECK_FALSE(keys.local(key ^ 1, 0, 8, kLocalRead, out));
  CHECK_FALSE(keys.local(0, 0, 0, 0, out));
  CHECK_FALSE(keys.local(0xffffffff, 0, 0, 0, out));
}

TEST_CASE("A key of a removed window is refused, also when its number is in use again") {
  KeyTable keys(1);
  const std::uint32_t old = *keys.add({0x5000, 64, 9}, remotes(1, 64), kLocalRead);
  keys.remove(old);
  keys.remove(old);  // nothing to remove
  Located out;
  CHECK_FALSE(keys.local(old, 0, 1, kLocalRead, out));
  std::uint32_t again = 0;
  for (std::size_t i = 0; i < KeyTable::kMaxWindows && again >> 8 != old >> 8; ++i) {
    if (again != 0) keys.remove(again);
    again = *keys.add({0x6000, 64, 9}, remotes(1, 64), kLocalRead);
  }
  REQUIRE(again >> 8 == old >> 8);
  CHECK(again != old);
  CHECK_FALSE(keys.local(old, 0, 1, kLocalRead, out));
  CHECK(keys.local(again, 0, 1, kLocalRead, out));
  keys.remove(old);  // stale: must not remove the new one
  CHECK(keys.local(again, 0, 1, kLocalRead, out));
}

TEST_CASE("A full table says so, and a freed number is found") {
  KeyTable keys(1);
  std::set<std::uint32_t> all;
  for (;;) {
    const auto key = keys.add({0x5000, 64, 9}, remotes(1, 64), kLocalRead);
    if (!key) {
      CHECK(key.status() == Status::no_memory);
      break;
    }
    REQUIRE(*key != 0);
    all.insert(*key);
  }
  CHECK(all.size() == KeyTable::kMaxWindows - 1);
  keys.remove(*all.begin());
  CHECK(keys.add({0x5000, 64, 9}, remotes(1, 64), kLocalRead));
  CHECK(keys.add({}, remotes(2, 64), kLocalRead).status() == Status::bad_argument);
}

TEST_CASE("Lookups run while windows come and go") {
  KeyTable keys(2);
  std::atomic<std::uint32_t> current{*keys.add({1, 64, 9}, remotes(2, 64), kLocalRead)};
  std::atomic<bool> stop{false};
  std::atomic<int> found{0};
  std::thread reader([&] {
    Located out;
    while (!stop)
      if (keys.local(current, 8, 8, kLocalRead, out)) {
        if (out.fabric_key != 9) std::abort();
        ++found;
      }
  });
  for (int i = 0; i < 2000 || found == 0; ++i) {
    const std::uint32_t next = *keys.add({1, 64, 9}, remotes(2, 64), kLocalRead);
    keys.remove(current.exchange(next));
  }
  stop = true;
  reader.join();
  CHECK(found > 0);
}
