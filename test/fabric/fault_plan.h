#pragma once
// A schedule of faults, all of it made of one number: what kind of connection it is, what goes over
// it, and what happens to its ports meanwhile.  Pure, so that a schedule that fails is there again
// for its seed; only what threads do in between differs.
#include <algorithm>
#include <array>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

namespace twinpath::test {

struct FaultPlan {
  enum class Memory : std::uint8_t { host, direct, up_to_64k, staged };
  enum class Fault : std::uint8_t {
    down,      // with its event
    up,        // mended, whatever it had
    silent,    // loses everything without a word
    deaf,      // loses what is sent to it
    unheard,   // loses the acknowledgements of what it sends
    slow,      // a rate far below its speed
    all_down,  // of one end
    mended,    // all ports
    error,     // the next write ends in an error of the adapter's own
    stubborn,  // the next moves of queue pairs to RTR or RTS time out
    sluggish   // takes its time to destroy queue pairs
  };
  struct Event {
    std::uint32_t after_us = 0;
    Fault fault = Fault::up;
    int port = 0;  // soft0 and soft1 send, soft2 and soft3 receive
    std::uint32_t mbps = 0;
  };

  unsigned seed = 0;
  bool merged = true;       // else a device of its own each, the other one in reserve
  bool two_threads = true;  // an end each
  bool hasty = true;        // pauses are short; else as they are when nobody sets any
  Memory source = Memory::host, landing = Memory::host;
  int queues = 1;
  bool split = false, adaptive = false, measured = true;
  std::uint32_t stripe_min = 65536;
  int ib_timeout = 20, stall_ms = 20;
  // Of the traffic.
  std::vector<std::size_t> sizes;
  static constexpr std::size_t kParcelSizes = 4;  // the first of the sizes are for parcels
  int most_in_group = 1, window = 4, rest = 2;
  int optional_one_in = 0;  // receives that are alone and need no completion; 0: none
  bool reversed = false;    // members of a group leave last first
  std::vector<Event> events;

  std::size_t most_bytes() const { return *std::max_element(sizes.begin(), sizes.end()); }
  bool gpu() const { return source != Memory::host || landing != Memory::host; }
};

inline const char* name_of(FaultPlan::Fault f) {
  constexpr std::array names{"down",     "up",     "silent", "deaf",     "unheard", "slow",
                             "all down", "mended", "error",  "stubborn", "sluggish"};
  return names[static_cast<std::size_t>(f)];
}

inline FaultPlan plan_faults(unsigned seed) {
  using Fault = FaultPlan::Fault;
  using Memory = FaultPlan::Memory;
  std::mt19937 random(seed);
  const auto below = [&](unsigned n) { return static_cast<int>(random() % n); };
  const auto one_of = [&](auto... values) {
    const std::array all{values...};
    return all[random() % all.size()];
  };
  FaultPlan p;
  p.seed = seed;
  p.merged = below(2) == 0;
  p.two_threads = below(2) == 0;
  p.hasty = below(16) != 0;
  if (below(3) == 0) {
    p.source = one_of(Memory::host, Memory::direct, Memory::up_to_64k, Memory::staged);
    p.landing = one_of(Memory::host, Memory::direct, Memory::up_to_64k, Memory::staged);
  }
  p.queues = 1 + below(3);
  p.split = below(2) == 0;
  p.adaptive = below(2) == 0;
  p.measured = below(4) != 0;
  p.stripe_min = one_of(256u, 4096u, 65536u);
  p.ib_timeout = one_of(10, 14, 20);
  p.stall_ms = p.hasty ? 10 + below(20) : 50;
  p.most_in_group = one_of(1, 1, 2, 8);
  p.window = 1 + below(6);
  p.rest = 1 + below(3);
  p.reversed = below(2) == 0;
  p.optional_one_in = one_of(0, 2, 5);
  p.sizes = {0, 1, 8, 64, 127, 129};
  const int kind = below(4);
  if (kind >= 1) p.sizes.insert(p.sizes.end(), {1000, 4096, 20'000});
  if (kind >= 2 && p.most_in_group <= 2) p.sizes.insert(p.sizes.end(), {70'000, 300'000});
  if (kind == 3 && p.gpu() && p.most_in_group <= 1) p.sizes.push_back(1'100'000);
  for (int n = 4 + below(9); n > 0; --n) {
    FaultPlan::Event e;
    // Several at a time, before anybody noticed, in the middle of it, and when all is well again.
    e.after_us =
        static_cast<std::uint32_t>(one_of(0, 0, 300, 2000, 8000, 30000) * (50 + below(100)) / 100);
    e.port = below(4);
    const int what = below(20);
    e.fault = what < 5    ? Fault::down
              : what < 11 ? Fault::up
              : what < 13 ? Fault::silent
              : what < 14 ? Fault::deaf
              : what < 15 ? Fault::unheard
              : what < 16 ? Fault::slow
              : what < 17 ? Fault::all_down
              : what < 18 ? Fault::mended
              : what < 19 ? one_of(Fault::error, Fault::stubborn)
                          : Fault::sluggish;
    e.mbps = static_cast<std::uint32_t>(one_of(200, 1000, 5000));
    p.events.push_back(e);
  }
  return p;
}

// In one line, for who reads of its failure.
inline std::string text_of(const FaultPlan& p) {
  constexpr std::array memory{"host", "direct", "up to 64 KiB", "staged"};
  std::string t =
      "seed " + std::to_string(p.seed) + ": " + (p.merged ? "merged" : "apart") +
      (p.two_threads ? ", two threads" : "") + (p.hasty ? "" : ", unhurried") + ", " +
      memory[static_cast<std::size_t>(p.source)] + " to " +
      memory[static_cast<std::size_t>(p.landing)] + ", " + std::to_string(p.queues) + " queues" +
      (p.split ? " split" : "") + (p.adaptive ? ", adaptive" : "") + ", stripes of " +
      std::to_string(p.stripe_min) + ", timeout " + std::to_string(p.ib_timeout) + ", groups of " +
      std::to_string(p.most_in_group) + (p.reversed ? " reversed" : "") + ", optional 1 in " +
      std::to_string(p.optional_one_in) + ", up to " + std::to_string(p.most_bytes()) + " bytes;";
  for (const FaultPlan::Event& e : p.events)
    t += " +" + std::to_string(e.after_us) + " us " + name_of(e.fault) + " soft" +
         std::to_string(e.port);
  return t;
}

}  // namespace twinpath::test
