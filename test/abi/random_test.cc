// Clients of the whole net ABI, and of all GIN and RMA tables, that do at random what NCCL may do,
// and what befalls them: any version's table, connections both ways, groups, tags, receives without
// completion, flushes, puts, gets, signals, counters, memory that is given back and unmapped at
// once, memory that is registered twice, hints, threads, aborts, another communicator beside it,
// faults of the adapter, processes that stand still or are killed.  Every byte is known
// (test/fabric/traffic.h, one_sided_plan.h), every request ends, and nothing is left behind.
//
//   TWINPATH_TEST_SEED     the first seed; a failure names its own
//   TWINPATH_SOAK_SECONDS  how long to go on
#include <atomic>
#include <cstdarg>
#include <cstdio>
#include <cstring>
#include <thread>

#include "plugin/base/clock.h"
#include "test/abi/built_plugin.h"
#include "test/abi/one_sided_rank.h"
#include "test/abi/random_rank.h"
#include "test/abi/random_stage.h"
#include "test/support/catch.h"
#include "test/support/log_capture.h"
#include "test/support/needs.h"
#include "test/support/numbers.h"

namespace twinpath::test {
namespace {

// A logger that stops the process where a connection begins to go on over another port.
void stop_in_failover(LogLevel, unsigned long, const char*, int, const char* format, ...) {
  static std::atomic<bool> stopped{false};
  char text[512];
  va_list arguments;
  va_start(arguments, format);
  (void)std::vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  if (std::strstr(text, " stops and goes on") != nullptr && !stopped.exchange(true))
    (void)::raise(SIGSTOP);
}

// Plays the scenes of one seed after the other until time is up.
template <class WorldOf, class SceneOf>
void play_seeds(Client client, WorldOf world_of, SceneOf scene_of) {
  const std::uint64_t first = number_from("TWINPATH_TEST_SEED", 1);
  const std::int64_t end =
      now_ns() + static_cast<std::int64_t>(number_from("TWINPATH_SOAK_SECONDS", 8)) * kSecond;
  for (std::uint64_t seed = first; seed == first || now_ns() < end; ++seed) {
    // The thread sanitizer sees no order that goes through another process.
    const World world = world_of(seed, kSanitizesThreads);
    Stage stage(client, world);
    for (int number = 0; number < kScenes; ++number) {
      const auto scene = scene_of(world, number);
      INFO("TWINPATH_TEST_SEED=" << seed << ": " << text_of(world));
      INFO("scene " << number << ": " << text_of(scene));
      REQUIRE(stage.play(number, scene) == "");
    }
    REQUIRE(stage.end() == "");
  }
}

TEST_CASE("a client that does at random what NCCL may do finds every byte and leaves nothing",
          "[net]") {
  play_seeds(Client::net, random_world, random_scene);
}

TEST_CASE("a client of puts, gets, signals and counters, too, by host and by kernels",
          "[one-sided]") {
  play_seeds(Client::one_sided, one_sided_world, one_sided_scene);
}

// Longer than any limit of a failover (5 s for an adapter to give its receives back).
TEST_CASE("a process that is stopped in a failover goes on with it", "[stopped]") {
  NEEDS(!kSanitizes, "time passes, and little else");
  const World world = failover_world();
  Stage stage(Client::net_failover, world);
  CHECK(stage.play_stopped(6000) == "");
  CHECK(stage.end() == "");
}

// Of a scene in which nothing may be said: all of that, and what was said.
std::string with_warnings(std::string wrong, const World& world, const Cut& cut,
                          const LogCapture& log) {
  const bool calm = cut.ending == Ending::all && world.faults[0].empty() && world.faults[1].empty();
  // How fast a port is on a busy machine, where copies are a process's, is nobody's fault.
  for (const std::string& w : log.warnings())
    if (!wrong.empty() || (calm && w.find(" finds rail ") == w.npos)) wrong += "; " + w;
  return wrong;
}

Player net_player(const Start& start) {
  const bool failover = start.client == Client::net_failover;
  const World world = failover ? failover_world() : random_world(start.seed, start.one_process);
  return [=, plugin = std::make_shared<BuiltPlugin>()](int number, Marks& marks,
                                                       bool& leaves_nothing) {
    LogCapture log;
    const LogSink sink = failover && start.sides == 2 ? stop_in_failover : current_sink();
    const Scene scene = failover ? failover_scene() : random_scene(world, number);
    AnyNet& net = *plugin->nets[static_cast<std::size_t>(world.table)];
    std::atomic<bool> leaves{true};
    const auto play = [&](const Scene& part, int comm, int side) {
      RandomRank rank(net, world, part, side, start.peers[comm][side], marks.net[comm]);
      const std::string found = rank.play(sink);
      if (!rank.leaves_nothing()) leaves = false;
      return found;
    };
    const Scene beside = scene_beside(scene);
    const std::string wrong = on_sides(start, [&](int side) {
      std::string found, other;
      std::thread companion;
      if (scene.accompanied) companion = std::thread([&] { other = play(beside, 1, side); });
      found = play(scene, 0, side);
      if (companion.joinable()) companion.join();
      return found + (other.empty() ? "" : "; beside: " + other);
    });
    leaves_nothing = leaves;
    return with_warnings(wrong, world, scene, log);
  };
}

Player one_sided_player(const Start& start) {
  const World world = one_sided_world(start.seed, start.one_process);
  return [=, plugin = std::make_shared<SidedPlugin>()](int number, Marks& marks, bool&) {
    LogCapture log;
    const LogSink sink = current_sink();
    const SidedScene scene = one_sided_scene(world, number);
    const std::string wrong = on_sides(start, [&](int side) {
      return OneSidedRank(*plugin, world, scene, side, start.peers[0][side], marks.lanes)
          .play(sink);
    });
    return with_warnings(wrong, world, scene, log);
  };
}

}  // namespace

// Not a test: what the processes of the ranks run.
TEST_CASE("ranks", "[.child]") {
  play_scenes([](const Start& start) {
    return start.client == Client::one_sided ? one_sided_player(start) : net_player(start);
  });
}

}  // namespace twinpath::test
