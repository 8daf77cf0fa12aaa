#pragma once
// What the random client does for a seed: a world of two ranks, and scenes in it, one after the
// other.  Pure: the parent and the ranks each work it out for themselves.
#include <cstdint>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "test/fabric/traffic.h"

namespace twinpath::test {

enum class Ending : std::uint8_t {
  all,    // of the traffic comes
  abort,  // a rank gives its memory back and closes, in the midst of it
  stop,   // a process stands still for a time and goes on; all of it comes
  kill    // a process is ended
};

// What two ranks are started with, and never changes for them: settings are read once a process.
struct World {
  std::uint64_t seed = 0;
  bool one_process = false;
  int table = 0;  // of the plugin's versions
  int ports = 1;
  bool merged = false;
  bool may_lose = false;  // a fault that nothing mends: the only port has it
  // Of both, and then of each rank's process.
  std::vector<std::pair<const char*, std::string>> settings;
  std::string faults[2];
};

// How a scene ends.
struct Cut {
  Ending ending = Ending::all;
  int side = 0;  // whose
  int after_ms = 0, stop_ms = 0;
  bool cuts_off() const { return ending == Ending::abort || ending == Ending::kill; }
};

struct Scene : Cut {
  int connections = 1;   // each way
  bool threads = false;  // one for each connection, in place of one for all
  bool accompanied = false;
  std::vector<Mix> mixes;
};

inline constexpr int kScenes = 3;
inline constexpr int kMostConnections = 3;
// Communicators of a scene: its own, and one beside it that nothing of the first may disturb.
inline constexpr int kComms = 2;

inline World random_world(std::uint64_t seed, bool one_process) {
  std::mt19937_64 random(seed);
  const auto below = [&](std::uint64_t n) { return static_cast<int>(random() % n); };
  const auto text = [&](const char* name, int value) { return name + std::to_string(value); };
  World w;
  w.seed = seed;
  const bool alone = below(4) == 0;
  w.one_process = one_process || alone;
  w.table = below(7);
  w.ports = below(3) == 0 ? 1 : 2;
  w.merged = w.ports == 2 && below(2) == 0;
  w.settings = {{"TWINPATH_SOFT_HCAS", std::to_string(w.ports)},
                {"NCCL_IB_MERGE_NICS", w.merged ? "1" : "0"},
                {"NCCL_IB_QPS_PER_CONNECTION", std::to_string(1 + below(3))},
                {"NCCL_IB_SPLIT_DATA_ON_QPS", std::to_string(below(2))},
                {"NCCL_IB_TIMEOUT", std::to_string(10 + below(5))},
                {"TWINPATH_STRIPE_MIN", std::to_string(512 << below(8))},
                {"TWINPATH_SOFT_POLLING", below(2) == 0 ? "sleep" : "auto"},
                {"TWINPATH_SOFT_DIRECT", std::to_string(below(4) == 0 ? 0 : 1)},
                {"TWINPATH_SOFT_COPY_THREADS", std::to_string(below(3))}};
  const int stall = 100 << below(4);
  // What is done to one rank's first port; the other rank's and the second go on.
  std::string& fault = w.faults[below(2)];
  switch (below(6)) {
    case 0:
      fault = below(2) == 0 ? text("delay_us=", 20 + below(300))
                            : text("slow_device=1,slow_mbps=", 400 + below(4000));
      break;
    case 1:
    case 2:
      fault = text("fail_send=", 1 + below(400));
      w.may_lose = w.ports == 1;
      break;
    case 3:
    case 4:
      if (w.ports == 1) break;
      fault = text("down_device=1,down_at_ms=", 20 + below(600)) +
              text(",down_ms=", 20 + below(400)) + text(",down_every_ms=", 600 + below(600));
      break;
    default:
      break;
  }
  // Where nothing fails a connection must not move either, and on a busy machine a process may get
  // no core for longer than that.
  const bool fails = !w.faults[0].empty() || !w.faults[1].empty();
  w.settings.emplace_back("TWINPATH_STALL_MS", std::to_string(fails ? stall : 10'000));
  return w;
}

inline Cut random_cut(const World& world, int number, std::mt19937_64& random) {
  const auto below = [&](std::uint64_t n) { return static_cast<int>(random() % n); };
  Cut c;
  // What is left after the first is what later ones may leave.
  if (number > 0) c.ending = static_cast<Ending>(below(4));
  if (c.ending == Ending::kill && (number + 1 < kScenes || world.one_process))
    c.ending = Ending::abort;
  c.side = below(2);
  c.after_ms = below(c.ending == Ending::stop ? 60 : 250);
  c.stop_ms = 150 + below(900);
  return c;
}

inline Scene random_scene(const World& world, int number) {
  std::mt19937_64 random(world.seed * 64 + static_cast<std::uint64_t>(number));
  const auto below = [&](std::uint64_t n) { return static_cast<std::size_t>(random() % n); };
  Scene s;
  static_cast<Cut&>(s) = random_cut(world, number, random);
  s.connections = static_cast<int>(1 + below(kMostConnections));
  s.threads = below(2) == 0;
  for (int i = 0; i < 2 * s.connections; ++i) {
    Mix m;
    m.seed = random();
    m.most_in_group = static_cast<int>(1 + below(kMaxRecvs));
    m.in_order = below(4) == 0;
    // Half of them of what parcels carry.
    m.usual = std::size_t{64} << (below(2) == 0 ? 0 : below(7));
    m.large = std::size_t{1 << 20} >> below(12);
    m.large_one_in = static_cast<int>(8 + below(60));
    // Seldom, too: what the sender owes the receiver for one must not be paid by the next.
    m.optional_one_in = static_cast<int>(below(2) == 0 ? below(4) : 10 + below(50));
    m.flushed_one_in = static_cast<int>(below(4));
    m.renewed_one_in = static_cast<int>(below(3) * 4);
    m.groups_open = m.most_bytes() > 16 * 1024 ? 4 : 1 + below(kMaxRequests);
    m.groups = s.cuts_off() ? 100'000 : m.most_bytes() > 16 * 1024 ? 40 : 200;
    if (below(2) == 0) m.optional_until = below(m.groups / 4);
    s.mixes.push_back(m);
  }
  s.accompanied = below(2) == 0;
  return s;
}

// Of the communicator beside it: an abort is the other one's, and what befalls processes and ports
// is its own, too.
inline Scene scene_beside(const Scene& scene) {
  Scene s = scene;
  if (s.ending == Ending::abort) s.ending = Ending::all;
  s.connections = 1;
  s.mixes.resize(2);
  for (Mix& m : s.mixes) {
    m.seed ^= 0xbe51de;
    if (!s.cuts_off()) m.groups = 40;
  }
  return s;
}

// Two ports, of which one rank's first fails in the midst of it: the connections go on over the
// second.
inline World failover_world() {
  World w;
  w.table = 5;
  w.ports = 2;
  w.merged = true;
  w.settings = {{"TWINPATH_SOFT_HCAS", "2"}, {"NCCL_IB_MERGE_NICS", "1"}};
  w.faults[0] = "fail_send=300";
  return w;
}
inline Scene failover_scene() {
  Scene s;
  for (std::uint64_t seed : {1u, 2u}) s.mixes.push_back({.seed = seed, .groups = 500});
  return s;
}

inline std::string text_of(const World& w) {
  std::string text = w.one_process ? "one process" : "two processes";
  text += ", table " + std::to_string(w.table);
  for (const auto& [name, value] : w.settings) text += std::string(", ") + name + "=" + value;
  for (int side = 0; side < 2; ++side)
    if (!w.faults[side].empty())
      text += ", faults of rank " + std::to_string(side) + ": " + w.faults[side];
  return text;
}

inline std::string text_of(const Cut& c) {
  static constexpr const char* kNames[] = {"all", "abort", "stop", "kill"};
  return std::string(kNames[static_cast<std::size_t>(c.ending)]) + " of rank " +
         std::to_string(c.side) + " after " + std::to_string(c.after_ms) + " ms (stopped for " +
         std::to_string(c.stop_ms) + ")";
}
inline std::string text_of(const Scene& s) {
  return text_of(static_cast<const Cut&>(s)) + ", " + std::to_string(s.connections) +
         " connections" + (s.threads ? ", threads" : "") +
         (s.accompanied ? ", beside another communicator" : "");
}

}  // namespace twinpath::test
