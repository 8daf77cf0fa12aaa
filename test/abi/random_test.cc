// A client of the whole net ABI that does at random what NCCL may do, and what befalls it: any
// version's table, connections both ways, groups, tags, receives without completion, flushes,
// memory that is given back and unmapped at once, threads, aborts, faults of the adapter, processes
// that stand still or are killed.  Every byte is known (test/fabric/traffic.h), every request ends,
// and nothing is left behind.
//
//   TWINPATH_TEST_SEED     the first seed; a failure names its own
//   TWINPATH_SOAK_SECONDS  how long to go on
#include <malloc.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/wait.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstdarg>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <optional>
#include <thread>

#include "plugin/base/clock.h"
#include "plugin/base/owned.h"
#include "test/abi/built_plugin.h"
#include "test/abi/random_rank.h"
#include "test/support/catch.h"
#include "test/support/child_process.h"
#include "test/support/descriptors.h"
#include "test/support/log_capture.h"
#include "test/support/needs.h"
#include "test/support/numbers.h"

namespace twinpath::test {
namespace {

using Marks = SentMarks[2 * kMostConnections];

constexpr char kPlay = 'p';  // to a process of ranks; another word ends it

// To such a process, when it starts.
struct Start {
  std::uint64_t seed;
  bool failover;  // not at random: failover_world(), of which rank 1 stops itself
  bool one_process;
  int sides;     // a bit each
  int peers[2];  // sockets of the ranks
  int marks;     // memory
};

// What a process has; it should not grow.
struct Left {
  std::size_t descriptors, threads, maps, bytes;
};

struct Result {
  char wrong[700];
  bool leaves_nothing;
  Left left;
};

// Of memory that processes share.
std::size_t shared_mappings() {
  std::size_t n = 0;
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) n += line.find("memfd:") != line.npos ? 1 : 0;
  return n;
}

std::size_t threads_here() {
  std::size_t n = 0;
  if (DIR* d = ::opendir("/proc/self/task")) {
    while (::readdir(d) != nullptr) ++n;
    (void)::closedir(d);
  }
  return n;
}

Left left_here() {
  return {open_descriptors(), threads_here(), shared_mappings(), ::mallinfo2().uordblks};
}

Marks& map_marks(int fd) {
  void* const at = ::mmap(nullptr, sizeof(Marks), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  REQUIRE(at != MAP_FAILED);
  return *static_cast<Marks*>(at);
}

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

// The ranks of this process play a scene.
std::string play(AnyNet& net, const World& world, const Start& start, int number, Marks& marks,
                 bool& leaves_nothing) {
  LogCapture log;
  const LogSink sink = start.failover && start.sides == 2 ? stop_in_failover : current_sink();
  const Scene scene = start.failover ? failover_scene() : random_scene(world, number);
  std::string wrong[2];
  std::array<std::atomic<bool>, 2> leaves{true, true};
  std::vector<std::thread> ranks;
  for (int side = 0; side < 2; ++side)
    if ((start.sides >> side & 1) != 0)
      ranks.emplace_back([&, side] {
        RandomRank rank(net, world, scene, side, start.peers[side], marks);
        wrong[side] = rank.play(sink);
        leaves[side] = rank.leaves_nothing();
      });
  for (std::thread& t : ranks) t.join();
  leaves_nothing = leaves[0] && leaves[1];
  std::string text = wrong[0] + wrong[1];
  const bool calm =
      scene.ending == Ending::all && world.faults[0].empty() && world.faults[1].empty();
  if (!text.empty() || calm)
    for (const std::string& w : log.warnings()) text += "; " + w;
  return text;
}

// --- The parent.

struct Environment {
  Environment(const World& world, int side) {
    for (const auto& [name, value] : world.settings) ::setenv(name, value.c_str(), 1);
    const std::string faults =
        world.one_process ? world.faults[0] + world.faults[1] : world.faults[side];
    if (faults.empty())
      ::unsetenv("TWINPATH_SOFT_FAULTS");
    else
      ::setenv("TWINPATH_SOFT_FAULTS", faults.c_str(), 1);
  }
};

class Stage {
 public:
  explicit Stage(const World& world, bool failover = false) : world_(world) {
    const UniqueFd memory(::memfd_create("marks", 0));
    REQUIRE(::ftruncate(memory.get(), sizeof(Marks)) == 0);
    marks_ = &map_marks(memory.get());
    int peers[2];
    REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM, 0, peers) == 0);
    for (int side = 0; side < (world.one_process ? 1 : 2); ++side) {
      const Environment set(world, side);
      children_[side].emplace("ranks");
      const Start start{world.seed,           failover,
                        world.one_process,    world.one_process ? 3 : 1 << side,
                        {peers[0], peers[1]}, memory.get()};
      REQUIRE(tell(children_[side]->fd, start));
    }
    for (int fd : peers) (void)::close(fd);
  }
  ~Stage() { (void)::munmap(marks_, sizeof(Marks)); }
  Stage(const Stage&) = delete;
  Stage& operator=(const Stage&) = delete;

  std::string play(int number) {
    const Scene scene = random_scene(world_, number);
    begin();
    auto& victim = children_[world_.one_process ? 0 : scene.side];
    if (scene.ending == Ending::stop || scene.ending == Ending::kill) {
      sleep_ms(scene.after_ms);
      (void)::kill(victim->pid, scene.ending == Ending::stop ? SIGSTOP : SIGKILL);
      if (scene.ending == Ending::stop) sleep_ms(scene.stop_ms);
      (void)::kill(victim->pid, SIGCONT);
    }
    if (scene.ending == Ending::kill) victim.reset();
    return results(number);
  }
  // A sanitizer's findings are told by how processes end.
  std::string end() {
    std::string wrong;
    for (auto& child : children_)
      if (const int status = child ? child->finish() : 0; status != 0)
        wrong += "a process ended with " + std::to_string(status) + "\n";
    return wrong;
  }
  // The one scene of failover_world(); rank 1 stands still for so long.
  std::string play_failover(int stop_ms) {
    begin();
    int status = 0;
    for (int ms = 0; ms < 30'000 && status == 0; ms += 10) {
      (void)::waitpid(children_[1]->pid, &status, WNOHANG | WUNTRACED);
      sleep_ms(10);
    }
    if (!WIFSTOPPED(status)) return "there was no failover; " + results(0);
    sleep_ms(stop_ms);
    (void)::kill(children_[1]->pid, SIGCONT);
    return results(0);
  }

 private:
  static void sleep_ms(int ms) { std::this_thread::sleep_for(std::chrono::milliseconds(ms)); }

  void begin() {
    std::memset(static_cast<void*>(marks_), 0, sizeof(Marks));
    for (auto& child : children_)
      if (child) (void)tell(child->fd, kPlay);
  }
  std::string results(int number) {
    std::string wrong;
    for (int side = 0; side < 2; ++side)
      if (children_[side]) wrong += result_of(*children_[side], side, number);
    return wrong;
  }
  std::string result_of(ChildProcess& child, int side, int number) {
    const std::string who = "rank " + std::to_string(side) + ": ";
    pollfd p{child.fd, POLLIN, 0};
    if (::poll(&p, 1, 120'000) != 1) return who + "does not end\n";
    Result r;
    if (!hear(child.fd, r))
      return who + "ended by itself: " + std::to_string(child.finish()) + "\n";
    std::string wrong = r.wrong[0] != 0 ? who + r.wrong + "\n" : "";
    Left& first = first_[side];
    if (number == 0) first = r.left;
    leaves_nothing_[side] = leaves_nothing_[side] && r.leaves_nothing;
    if (!leaves_nothing_[side]) return wrong;
    const auto grown = [&](const char* what, std::size_t now, std::size_t before,
                           std::size_t room) {
      if (now > before + room)
        wrong +=
            who + std::to_string(before) + " " + what + " became " + std::to_string(now) + "\n";
    };
    grown("descriptors", r.left.descriptors, first.descriptors, 0);
    grown("threads", r.left.threads, first.threads, 4);  // helpers begin when they are needed
    grown("shared mappings", r.left.maps, first.maps, 0);
    grown("bytes", r.left.bytes, first.bytes, 4 << 20);  // pools, too
    return wrong;
  }

  const World& world_;
  Marks* marks_ = nullptr;
  std::optional<ChildProcess> children_[2];
  Left first_[2]{};
  bool leaves_nothing_[2] = {true, true};
};

TEST_CASE("a client that does at random what NCCL may do finds every byte and leaves nothing") {
  const std::uint64_t first = number_from("TWINPATH_TEST_SEED", 1);
  const std::int64_t end =
      now_ns() + static_cast<std::int64_t>(number_from("TWINPATH_SOAK_SECONDS", 8)) * kSecond;
  for (std::uint64_t seed = first; seed == first || now_ns() < end; ++seed) {
    // The thread sanitizer sees no order that goes through another process.
    const World world = random_world(seed, kSanitizesThreads);
    Stage stage(world);
    for (int number = 0; number < kScenes; ++number) {
      INFO("TWINPATH_TEST_SEED=" << seed << ": " << text_of(world));
      INFO("scene " << number << ": " << text_of(random_scene(world, number)));
      REQUIRE(stage.play(number) == "");
    }
    REQUIRE(stage.end() == "");
  }
}

// Longer than any limit of a failover (5 s for an adapter to give its receives back).
TEST_CASE("a process that is stopped in a failover goes on with it", "[stopped]") {
  NEEDS(!kSanitizes, "time passes, and little else");
  const World world = failover_world();
  Stage stage(world, true);
  CHECK(stage.play_failover(6000) == "");
  CHECK(stage.end() == "");
}

}  // namespace

// Not a test: what the processes of the ranks run.
TEST_CASE("ranks", "[.child]") {
  const Role role = own_role();
  Start start;
  if (!hear(role.fd, start)) _exit(0);
  for (int side = 0; side < 2; ++side)
    if ((start.sides >> side & 1) == 0) (void)::close(start.peers[side]);
  Marks& marks = map_marks(start.marks);
  const World world =
      start.failover ? failover_world() : random_world(start.seed, start.one_process);
  (void)::mallopt(M_ARENA_MAX, 1);            // what is counted
  (void)::unsetenv("TWINPATH_SOAK_SECONDS");  // the test's, and no setting
  const BuiltPlugin plugin;
  AnyNet& net = *plugin.nets[static_cast<std::size_t>(world.table)];
  char go = 0;
  for (int number = 0; hear(role.fd, go) && go == kPlay; ++number) {
    Result result{};
    result.leaves_nothing = true;
    const std::string wrong = play(net, world, start, number, marks, result.leaves_nothing);
    (void)std::snprintf(result.wrong, sizeof result.wrong, "%s", wrong.c_str());
    result.left = left_here();
    if (!tell(role.fd, result)) break;
  }
  _exit(0);
}

}  // namespace twinpath::test
