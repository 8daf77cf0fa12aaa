#pragma once
// Two ranks in one process or in two, which play the scenes of a world one after the other: who
// starts, stops and kills them, hears what they found, and looks at what they leave behind.
#include <sys/mman.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "test/abi/random_plan.h"
#include "test/support/child_process.h"

namespace twinpath::test {

// Whose scenes.
enum class Client : std::uint8_t {
  net,
  net_failover,  // not at random: failover_world(), of which rank 1 stops itself
  one_sided
};

// To a process of ranks, when it starts.
struct Start {
  std::uint64_t seed;
  Client client;
  bool one_process;
  int sides;             // a bit each
  int peers[kComms][2];  // sockets of the ranks
  int marks;             // memory
};

// Of one lane of one-sided traffic: how far its two ends are.
struct LaneMarks {
  std::atomic<std::uint64_t> begun;     // messages whose posting has begun
  std::atomic<std::uint64_t> verified;  // messages that the receiver has seen and done with
  std::atomic<std::uint64_t> ended;     // acts of which nothing is under way any more
};

inline constexpr int kMostLanes = 32;

// What the ranks of a scene share.
struct Marks {
  SentMarks net[kComms][2 * kMostConnections];
  LaneMarks lanes[kMostLanes];
};

// What a process has; it should not grow.
struct Left {
  std::size_t descriptors, threads, maps, bytes;
};

class Stage {
 public:
  Stage(Client client, const World& world);
  ~Stage() { (void)::munmap(marks_, sizeof(Marks)); }
  Stage(const Stage&) = delete;
  Stage& operator=(const Stage&) = delete;

  // Empty, or what the ranks found.
  std::string play(int number, const Cut& cut);
  // Scene 0, in which rank 1 stops itself; it goes on after so long.
  std::string play_stopped(int stop_ms);
  // A sanitizer's findings are told by how processes end.
  std::string end();

 private:
  void begin();
  std::string results(int number);
  std::string result_of(ChildProcess& child, int side, int number);

  const World& world_;
  Marks* marks_ = nullptr;
  std::optional<ChildProcess> children_[2];
  Left first_[2]{};
  bool leaves_nothing_[2] = {true, true};
};

// In a process of ranks.  How scene `number` went, for those of Start::sides.
using Player = std::function<std::string(int number, Marks&, bool& leaves_nothing)>;
// Plays whatever the parent asks for, and does not return.
[[noreturn]] void play_scenes(const std::function<Player(const Start&)>& player_of);

// Runs `play(side)` on a thread for each rank of this process; all that they say.
std::string on_sides(const Start& start, const std::function<std::string(int side)>& play);

}  // namespace twinpath::test
