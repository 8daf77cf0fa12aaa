#pragma once
// The address of a team's port goes and comes back at another index of the port's GID table: a
// queue pair that was made with it is mute from then on.
#include "test/gda/move_seeds.h"
#include "test/gda/rings.h"
#include "test/support/moving_gids.h"

namespace twinpath::test {

inline int place = 0;      // where the first port's address goes
inline bool away = false;  // it is nowhere in between

inline void moving(Fabric& fabric) { MovingGids::on(fabric, "soft0"); }

inline std::size_t times(const char* text) {
  std::size_t count = 0;
  for (const LogLine& line : fault.log->lines())
    count += line.text.find(text) != std::string::npos ? 1 : 0;
  return count;
}
inline std::size_t refusals() { return times("soft0 cannot be used again yet: "); }

inline std::string moves_address(const Port& port) {
  for (place = 1; place <= 2; ++place) {
    std::this_thread::sleep_for(std::chrono::microseconds(fault.after_us));
    MovingGids::put(away ? std::vector<int>{} : std::vector{place});
    {
      const std::lock_guard hold(MovingGids::mutex);
      MovingGids::raised.clear();
    }
    set(port, false);
    EXPECT_GIN(all_are_on("soft1"), place);
    std::this_thread::sleep_for(std::chrono::microseconds(fault.back_us));
    set(port, true);
    if (away) {  // the port serves again; without an address no queue can be made
      const std::size_t before = refusals();
      EXPECT_GIN(comes([before] { return refusals() > before; }), place);
      EXPECT_GIN(MovingGids::indices_raised().empty(), place);
      MovingGids::put({place});
    }
    EXPECT_GIN(all_are_on("soft0"), place);
    const std::vector<int> raised = MovingGids::indices_raised();
    EXPECT_GIN(!raised.empty() && raised == std::vector(raised.size(), place), place);
  }
  return {};
}

// Of one rank: its second port's address moves, of which the adapter tells.  That of the first one
// does, too, of which nobody does: a pair leaves that port for another.
struct Idle {
  static inline int rank = 0;

  static void adjust(Fabric& fabric) {
    MovingGids::on(fabric);
    Rings::on(fabric, "soft1");
  }
  static void tell(int at) {
    const std::lock_guard hold(MovingGids::mutex);
    MovingGids::places = {at};
    MovingGids::raised.clear();
    MovingGids::gid_queries = 0;
    Rings::rung = true;
  }
  static bool asked() {
    const std::lock_guard hold(MovingGids::mutex);
    return MovingGids::gid_queries > 0;
  }
};

inline constexpr std::size_t kIdle = 3;  // queues of that rank, and the other one's to it

inline std::string idle_moves() {
  for (int at = 1; at <= 2; ++at) {
    Idle::tell(at - 1);  // where it is already
    EXPECT_GIN(comes(Idle::asked), at);
    std::this_thread::sleep_for(std::chrono::milliseconds(500));  // some looks at ports
    EXPECT_GIN(MovingGids::indices_raised().empty(), at);
    Idle::tell(at);
    const std::size_t all = kIdle * static_cast<std::size_t>(at);
    EXPECT_GIN(comes([all] { return times("can move to soft1 again") == all; }), at);
    const std::vector<int> raised = MovingGids::indices_raised();
    EXPECT_GIN(!raised.empty() && raised == std::vector(raised.size(), at), at);
  }
  return {};
}

// `Play`: what a rank has over its first two ports, and a word to the other rank and from it.
template <class Play>
std::string idle_address(Rank& r) {
  EXPECT_GIN(r.use(open_devices(soon_back(), r.rank == Idle::rank ? Idle::adjust : nullptr)));
  const bool merged = static_cast<bool>(r.devices->merge(std::array{0, 1}));
  r.meeting->barrier();
  EXPECT_GIN(merged);
  Play play(r, static_cast<int>(r.devices->count()) - 1);
  EXPECT_GIN(play);
  r.meeting->barrier();
  if (r.rank == 0)
    if (std::string wrong = idle_moves(); !wrong.empty()) return wrong;
  r.meeting->barrier();
  if (r.rank == 0) set(*r.devices->rails(0).front().port, false);
  EXPECT_GIN(all_are_on("soft1"));
  if (std::string wrong = play.talk(); !wrong.empty()) return wrong;
  r.meeting->barrier();
  mend(r);
  return {};
}

template <class Play>
void idle_addresses() {
  for (const int rank : {0, 1}) {
    INFO("of rank " << rank);
    const LogCapture log;
    fault = {"idle address", true};
    fault.log = &log;
    fault.queues = 4;
    Idle::rank = rank;
    CHECK(run_threads(2, idle_address<Play>, soon_back()) == "");
  }
}

}  // namespace twinpath::test
