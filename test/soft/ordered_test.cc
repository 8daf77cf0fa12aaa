// Small writes as their readers see them: word after word, so that a thread that watches the last
// word finds the rest in place.  What a clear-to-send cell relies on.
#include <atomic>
#include <thread>

#include "test/soft/pair.h"

using namespace twinpath;
using namespace twinpath::test;

namespace {

// As the proxy does: a thread watches the last word of what its peer writes and then reads the
// rest with plain loads; `taken` gives the range back to the writer.
struct Watcher {
  std::uint32_t* words;
  std::size_t count;
  std::atomic<std::uint32_t> taken{0};
  std::atomic<std::uint32_t> wrong{0};

  void run(std::uint32_t rounds) {
    for (std::uint32_t round = 1; round <= rounds; ++round) {
      const std::atomic_ref<std::uint32_t> last(words[count - 1]);
      while (last.load(std::memory_order_acquire) != round) {
      }
      for (std::size_t i = 0; i + 1 < count; ++i)
        if (words[i] != round + i) wrong.fetch_add(1, std::memory_order_relaxed);
      taken.store(round, std::memory_order_release);
    }
  }
};

}  // namespace

TEST_CASE("who sees the last word of a write sees all of it", "[soft]") {
  // One and 16 cells of 64 bytes; words that are aligned to 4 bytes only; more than is stored word
  // by word.
  const std::uint32_t bytes = GENERATE(12u, 64u, 1024u, 100u, 6000u);
  const std::size_t at = GENERATE(std::size_t{64}, std::size_t{68});
  constexpr std::uint32_t kRounds = 2000;
  Pair p;
  const std::size_t count = bytes / 4;
  Watcher watcher{reinterpret_cast<std::uint32_t*>(p.b.buffer.data() + at), count};
  std::thread reader([&] { watcher.run(kRounds); });
  auto* words = reinterpret_cast<std::uint32_t*>(p.a.buffer.data());
  for (std::uint32_t round = 1; round <= kRounds; ++round) {
    for (std::size_t i = 0; i + 1 < count; ++i) words[i] = static_cast<std::uint32_t>(round + i);
    words[count - 1] = round;
    auto w = p.a.request(IBV_WR_RDMA_WRITE, 0, bytes, p.b.address(at), p.b.mr->rkey);
    if (p.a.post(w) != 0 || p.wait(p.a).status != IBV_WC_SUCCESS) break;
    while (watcher.taken.load(std::memory_order_acquire) != round) {
    }
  }
  reader.join();
  CHECK(watcher.wrong.load() == 0);
}

TEST_CASE("who sees a signal sees what was written before it", "[soft]") {
  const std::uint32_t bytes = GENERATE(16u, 1024u, 50000u);
  constexpr std::uint64_t kRounds = 500;
  Pair p;
  auto* words = reinterpret_cast<std::uint32_t*>(p.b.buffer.data() + 64);
  std::atomic<std::uint64_t> taken{0};
  std::atomic<int> wrong{0};
  std::thread reader([&] {
    const std::atomic_ref<std::uint64_t> signal(
        *reinterpret_cast<std::uint64_t*>(p.b.buffer.data()));
    for (std::uint64_t round = 1; round <= kRounds; ++round) {
      while (signal.load(std::memory_order_acquire) != round) {
      }
      for (std::size_t i = 0; i < bytes / 4; ++i)
        if (words[i] != round + i) wrong.fetch_add(1, std::memory_order_relaxed);
      taken.store(round, std::memory_order_release);
    }
  });
  auto* from = reinterpret_cast<std::uint32_t*>(p.a.buffer.data() + 64);
  for (std::uint64_t round = 1; round <= kRounds; ++round) {
    for (std::size_t i = 0; i < bytes / 4; ++i) from[i] = static_cast<std::uint32_t>(round + i);
    std::memcpy(p.a.buffer.data(), &round, sizeof round);
    auto payload = p.a.request(IBV_WR_RDMA_WRITE, 64, bytes, p.b.address(64), p.b.mr->rkey);
    auto signal = p.a.request(IBV_WR_RDMA_WRITE, 0, 8, p.b.address(), p.b.mr->rkey);
    if (p.a.post(payload) != 0 || p.a.post(signal) != 0) break;
    if (p.wait(p.a).status != IBV_WC_SUCCESS || p.wait(p.a).status != IBV_WC_SUCCESS) break;
    while (taken.load(std::memory_order_acquire) != round) {
    }
  }
  reader.join();
  CHECK(wrong.load() == 0);
}
