#pragma once
// What the random client of one-sided tables does for a seed; random_plan.h has what is common.
//
// A lane is one context of one communicator, one way.  Its messages go into slots of a window, each
// in a few parts, the last with a signal or with a signal behind it; who sees the sum of all
// signals up to a message may read all of it, and gives the slot back.  Beside that, data is read
// back.  An act begins with windows registered and ends with them given back and unmapped.
#include <algorithm>
#include <array>

#include "test/abi/random_plan.h"

namespace twinpath::test {

inline constexpr std::size_t kMostParts = 3;
inline constexpr std::size_t kSlotGap = 64;        // bytes behind a part that nobody may touch
inline constexpr std::size_t kStaticBytes = 4096;  // that the other rank reads
inline constexpr std::size_t kLaneHead = 64;       // of a lane's part of a window: its word
inline constexpr int kMostComms = 3, kMostContexts = 3;

struct Lane {
  std::uint64_t seed = 1;
  std::size_t most_parts = 1, usual = 64, large = 64, slots = 4;
  std::size_t large_one_in = 8;
  std::size_t gets_one_in = 0;  // messages behind which data is read back; 0: none
  bool word_in_window = false;  // where its signals are added
  bool counted = false;         // a counter says when sources may be used again

  std::size_t stride() const {
    return most_parts * ((std::max(usual, large) + 7) / 8 * 8 + kSlotGap);
  }
  std::size_t bytes() const { return slots * stride(); }
};

struct SidedMessage {
  struct Part {
    std::size_t at, bytes;  // in its slot
  };
  std::array<Part, kMostParts> parts{};
  std::size_t count = 0;
  bool alone = false;  // the signal comes behind them, by itself
  bool gets = false;
  std::uint64_t add = 1;
};

inline std::uint64_t mixed(std::uint64_t x) {
  x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
  x = (x ^ x >> 27) * 0x94d049bb133111ebu;
  return x ^ x >> 31;
}

inline SidedMessage plan_message(const Lane& lane, std::uint64_t number) {
  std::uint64_t state = mixed(lane.seed) + number * 32;
  const auto below = [&state](std::size_t n) { return mixed(++state) % n; };
  SidedMessage m;
  m.alone = below(4) == 0;
  m.count = (m.alone ? 0 : 1) + below(lane.most_parts + (m.alone ? 1 : 0));
  const std::size_t room = lane.stride() / lane.most_parts;
  for (std::size_t p = 0; p < m.count; ++p)
    m.parts[p] = {p * room + below(8),
                  1 + below(below(lane.large_one_in) == 0 ? lane.large : lane.usual)};
  m.gets = lane.gets_one_in != 0 && below(lane.gets_one_in) == 0;
  m.add = below(2) == 0 ? 1 : 1 + below(1000);
  return m;
}

// The tables, and what of GIN's device structures kernels of that NCCL have.
enum class Sided : std::uint8_t { rma14, rma15, rma16, gin11, gin14_old, gin14 };

inline World one_sided_world(std::uint64_t seed, bool one_process) {
  std::mt19937_64 random(seed + 1'000'000);
  const auto below = [&](std::uint64_t n) { return static_cast<int>(random() % n); };
  World w;
  w.seed = seed;
  const bool alone = below(4) == 0;
  w.one_process = one_process || alone;
  w.table = below(6);
  w.ports = 1 + below(2);
  static constexpr const char* kModes[] = {"auto", "auto", "proxy", "gda"};
  const char* const mode = kModes[below(4)];
  // Mode gda is made of an adapter's atomics, and says so where it cannot be had.
  const bool atomics = below(4) != 0 || std::string(mode) == "gda";
  w.settings = {{"TWINPATH_RMA", "1"},
                {"TWINPATH_SOFT_HCAS", std::to_string(w.ports)},
                {"TWINPATH_MODE", mode},
                {"TWINPATH_GIN_ATOMICS", atomics ? "1" : "0"},
                {"TWINPATH_GIN_DEPTH", std::to_string(64 << below(3))},
                {"TWINPATH_GIN_POLLING", below(2) == 0 ? "sleep" : "auto"},
                {"TWINPATH_CONNECT_TIMEOUT_MS", "10000"},
                {"TWINPATH_FAILOVER_HOLD_MS", "1000"},
                // 2 s or more: a process on a busy machine, or one that is stopped, has its time.
                {"NCCL_IB_TIMEOUT", std::to_string(16 + below(5) / 4)},
                {"TWINPATH_SOFT_POLLING", below(2) == 0 ? "sleep" : "auto"},
                {"TWINPATH_SOFT_DIRECT", std::to_string(below(4) == 0 ? 0 : 1)},
                {"TWINPATH_SOFT_COPY_THREADS", std::to_string(below(3))}};
  std::string& fault = w.faults[below(2)];
  switch (below(6)) {
    case 0:
      fault = "delay_us=" + std::to_string(20 + below(300));
      break;
    case 1:
      fault = "fail_send=" + std::to_string(1 + below(400));
      w.may_lose = true;
      break;
    case 2:
      fault = "down_device=1,down_at_ms=" + std::to_string(20 + below(600)) +
              ",down_ms=" + std::to_string(20 + below(400)) +
              ",down_every_ms=" + std::to_string(600 + below(600));
      w.may_lose = true;
      break;
    default:
      break;
  }
  return w;
}
inline bool has_atomics(const World& w) {
  return std::find(w.settings.begin(), w.settings.end(),
                   std::pair<const char*, std::string>("TWINPATH_GIN_ATOMICS", "1")) !=
         w.settings.end();
}

struct SidedScene : Cut {
  int comms = 1, contexts = 1;
  bool threads = false;  // one for each communicator, in place of one for all
  int acts = 1;
  std::uint64_t messages = 100;  // of each lane in an act
  std::vector<Lane> lanes;       // by lane_of

  std::size_t lane_of(int comm, int context, int from) const {
    return static_cast<std::size_t>((comm * contexts + context) * 2 + from);
  }
};

inline SidedScene one_sided_scene(const World& world, int number) {
  std::mt19937_64 random(world.seed * 64 + static_cast<std::uint64_t>(number) + 1'000'000);
  const auto below = [&](std::uint64_t n) { return static_cast<std::size_t>(random() % n); };
  const auto one_in = [&](std::uint64_t n) { return below(n) == 0; };
  SidedScene s;
  static_cast<Cut&>(s) = random_cut(world, number, random);
  const auto table = static_cast<Sided>(world.table);
  const bool gin = table >= Sided::gin11;
  s.comms = static_cast<int>(1 + below(kMostComms));
  s.contexts = table == Sided::gin11 ? 1 : static_cast<int>(1 + below(kMostContexts));
  s.threads = one_in(2);
  s.acts = s.cuts_off() ? 1'000'000 : static_cast<int>(1 + below(3));
  s.messages = 20 + below(180);
  for (int i = 0; i < 2 * s.comms * s.contexts; ++i) {
    Lane l;
    l.seed = random();
    l.most_parts = 1 + below(kMostParts);
    l.usual = std::size_t{8} << below(8);
    l.large = std::size_t{64 << 10} >> below(8);
    l.large_one_in = 4 + below(30);
    l.slots = 1 + below(16);
    const bool gets = !gin || table == Sided::gin14;
    l.gets_one_in = gets ? below(5) : 0;
    l.word_in_window = one_in(3) && (!gin || (table != Sided::gin11 && has_atomics(world)));
    l.counted = gin && one_in(2);
    s.lanes.push_back(l);
  }
  return s;
}

inline std::string text_of(const SidedScene& s) {
  return text_of(static_cast<const Cut&>(s)) + ", " + std::to_string(s.comms) + " comms of " +
         std::to_string(s.contexts) + " contexts" + (s.threads ? ", threads" : "") + ", " +
         std::to_string(s.acts) + " acts of " + std::to_string(s.messages) + " messages";
}

}  // namespace twinpath::test
