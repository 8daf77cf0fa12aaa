#include "test/abi/random_stage.h"

#include <malloc.h>
#include <poll.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <thread>

#include "plugin/base/clock.h"
#include "plugin/base/owned.h"
#include "plugin/base/wait_within.h"
#include "test/support/descriptors.h"
#include "test/support/numbers.h"

namespace twinpath::test {
namespace {

constexpr char kPlay = 'p';  // to a process of ranks; another word ends it

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

Left left_here() {
  return {open_descriptors(), entries_of("/proc/self/task"), shared_mappings(),
          ::mallinfo2().uordblks};
}

// Queue pairs that were given up are destroyed by a thread of their own, which may be late.
Left left_in_the_end(const Left& first) {
  RunLimit limit(5 * kSecond);
  for (;;) {
    const Left now = left_here();
    const bool all = now.descriptors <= first.descriptors && now.maps <= first.maps;
    if (all || limit.over(now_ns())) return now;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
}

Marks& map_marks(int fd) {
  void* const at = ::mmap(nullptr, sizeof(Marks), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  REQUIRE(at != MAP_FAILED);
  return *static_cast<Marks*>(at);
}

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

void sleep_ms(int ms) { std::this_thread::sleep_for(std::chrono::milliseconds(ms)); }

}  // namespace

Stage::Stage(Client client, const World& world) : world_(world) {
  const UniqueFd memory(::memfd_create("marks", 0));
  REQUIRE(::ftruncate(memory.get(), sizeof(Marks)) == 0);
  marks_ = &map_marks(memory.get());
  int peers[kComms][2];
  for (auto& pair : peers) REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0);
  for (int side = 0; side < (world.one_process ? 1 : 2); ++side) {
    const Environment set(world, side);
    children_[side].emplace("ranks");
    Start start{world.seed, client,      world.one_process, world.one_process ? 3 : 1 << side,
                {},         memory.get()};
    std::memcpy(start.peers, peers, sizeof peers);
    REQUIRE(tell(children_[side]->fd, start));
  }
  for (const auto& pair : peers)
    for (int fd : pair) (void)::close(fd);
}

std::string Stage::play(int number, const Cut& scene) {
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

std::string Stage::end() {
  std::string wrong;
  for (auto& child : children_)
    if (const int status = child ? child->finish() : 0; status != 0)
      wrong += "a process ended with " + std::to_string(status) + "\n";
  return wrong;
}

std::string Stage::play_stopped(int stop_ms) {
  begin();
  int status = 0;
  for (int ms = 0; ms < 30'000 && status == 0; ms += 10) {
    (void)::waitpid(children_[1]->pid, &status, WNOHANG | WUNTRACED);
    sleep_ms(10);
  }
  if (!WIFSTOPPED(status)) return "rank 1 does not stop; " + results(0);
  sleep_ms(stop_ms);
  (void)::kill(children_[1]->pid, SIGCONT);
  return results(0);
}

void Stage::begin() {
  std::memset(static_cast<void*>(marks_), 0, sizeof(Marks));
  for (auto& child : children_)
    if (child) (void)tell(child->fd, kPlay);
}

std::string Stage::results(int number) {
  std::string wrong;
  for (int side = 0; side < 2; ++side)
    if (children_[side]) wrong += result_of(*children_[side], side, number);
  return wrong;
}

std::string Stage::result_of(ChildProcess& child, int side, int number) {
  const std::string who = "rank " + std::to_string(side) + ": ";
  pollfd p{child.fd, POLLIN, 0};
  // The ranks find out for themselves what stands still, by the time in which they ran.
  const auto limit_s = std::max<std::uint64_t>(120, number_from("TWINPATH_SOAK_SECONDS", 0));
  if (::poll(&p, 1, static_cast<int>(limit_s * 1000)) != 1) return who + "does not end\n";
  Result r;
  if (!hear(child.fd, r)) return who + "ended by itself: " + std::to_string(child.finish()) + "\n";
  std::string wrong = r.wrong[0] != 0 ? who + r.wrong + "\n" : "";
  Left& first = first_[side];
  if (number == 0) first = r.left;
  leaves_nothing_[side] = leaves_nothing_[side] && r.leaves_nothing;
  if (!leaves_nothing_[side]) return wrong;
  const auto grown = [&](const char* what, std::size_t now, std::size_t before, std::size_t room) {
    if (now > before + room)
      wrong += who + std::to_string(before) + " " + what + " became " + std::to_string(now) + "\n";
  };
  grown("descriptors", r.left.descriptors, first.descriptors, 0);
  grown("threads", r.left.threads, first.threads, 4);  // helpers begin when they are needed
  grown("shared mappings", r.left.maps, first.maps, 0);
  grown("bytes", r.left.bytes, first.bytes, 4 << 20);  // pools, too
  return wrong;
}

void play_scenes(const std::function<Player(const Start&)>& player_of) {
  const Role role = own_role();
  Start start;
  if (!hear(role.fd, start)) _exit(0);
  for (int side = 0; side < 2; ++side)
    for (const auto& pair : start.peers)
      if ((start.sides >> side & 1) == 0) (void)::close(pair[side]);
  Marks& marks = map_marks(start.marks);
  (void)::mallopt(M_ARENA_MAX, 1);            // what is counted
  (void)::unsetenv("TWINPATH_SOAK_SECONDS");  // the test's, and no setting
  const Player play = player_of(start);
  char go = 0;
  Left first{};
  bool clean = true;
  for (int number = 0; hear(role.fd, go) && go == kPlay; ++number) {
    Result result{};
    result.leaves_nothing = true;
    const std::string wrong = play(number, marks, result.leaves_nothing);
    (void)std::snprintf(result.wrong, sizeof result.wrong, "%s", wrong.c_str());
    clean = clean && result.leaves_nothing;
    result.left = number == 0 || !clean ? left_here() : left_in_the_end(first);
    if (number == 0) first = result.left;
    if (!tell(role.fd, result)) break;
  }
  _exit(0);
}

std::string on_sides(const Start& start, const std::function<std::string(int side)>& play) {
  std::string wrong[2];
  std::vector<std::thread> ranks;
  for (int side = 0; side < 2; ++side)
    if ((start.sides >> side & 1) != 0) ranks.emplace_back([&, side] { wrong[side] = play(side); });
  for (std::thread& t : ranks) t.join();
  return wrong[0] + wrong[1];
}

}  // namespace twinpath::test
