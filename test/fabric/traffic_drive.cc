// Who steps the ends of traffic, and when that has gone on for too long.
#include <random>
#include <thread>
#include <utility>

#include "plugin/base/clock.h"
#include "test/fabric/traffic.h"

namespace twinpath::test {

std::string drive(const std::vector<TrafficEnd*>& ends) {
  constexpr std::int64_t kStill = 30 * kSecond;
  std::uint64_t before = 0;
  std::int64_t moved = now_ns();
  std::minstd_rand random;
  for (;;) {
    std::uint64_t ended = 0;
    bool done = true;
    // Each end is sometimes far ahead of the others, so that much is under way at once.
    for (int round = 0; round < 32; ++round)
      for (TrafficEnd* end : ends)
        for (auto steps = random() % 8; steps > 0; --steps) end->step();
    for (const TrafficEnd* end : ends) {
      if (!end->failure().empty()) return end->failure();
      done = done && end->done();
      ended += end->ended();
    }
    if (done) return {};
    const std::int64_t now = now_ns();
    if (ended != before) moved = now;
    before = ended;
    if (now - moved > kStill) {
      std::string what = "nothing moved for 30 s after " + std::to_string(ended) + " messages";
      for (const TrafficEnd* end : ends) what += "; " + end->state();
      return what;
    }
    std::this_thread::yield();
  }
}

std::string drive(const std::vector<TrafficEnd*>& ends, const std::vector<TrafficEnd*>& others) {
  std::string theirs;
  std::thread thread([&] { theirs = drive(others); });
  const std::string ours = drive(ends);
  thread.join();
  return ours.empty() ? theirs : ours;
}

void abort_rank(std::vector<Doomed> ends, std::uint64_t seed, std::size_t steps) {
  std::minstd_rand random(static_cast<unsigned>(seed));
  const auto step = [&](std::size_t most) {
    for (auto n = random() % most; n > 0; --n)
      for (const Doomed& d : ends)
        if (d.end != nullptr && d.end->failure().empty()) d.end->step();
  };
  step(steps);
  while (!ends.empty()) {
    const std::size_t i = random() % ends.size();
    Doomed& d = ends[i];
    if (d.end != nullptr) {
      std::exchange(d.end, nullptr)
          ->take_memory(*ends[random() % ends.size()].comm, random() % 2 == 0);
    } else {
      d.close();
      ends.erase(ends.begin() + static_cast<std::ptrdiff_t>(i));
    }
    step(8);
  }
}

}  // namespace twinpath::test
