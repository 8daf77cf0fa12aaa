#pragma once
// Processors: how many this process may really use, where threads of ours run that help the
// caller's, and how such a thread waits.
//
// Launchers bind a rank to one core by themselves (mpirun -np 2, Slurm with one CPU a task).  There
// NCCL's threads have to be, and they poll; a thread of ours that polled beside them would take
// the core from them for a time slice each time.  So helpers leave such a binding as far as the
// cpuset lets them, and where there are few processors all the same none of them polls for long.
//
// Threads: any.  All but what is constexpr reads files or makes system calls; not for the data
// path.
#include <sched.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>

#include "plugin/base/config.h"

namespace twinpath {

// Of the calling thread's binding and what its control groups grant of their time; at least 1.
int usable_cpus();

// What cpu.max of control groups v2 says ("200000 100000"), in whole processors, rounded up; 0: no
// limit, or no such text.
int cpus_of_quota(std::string_view cpu_max);

// The kernel's way to write a set: "0-3,8".  Empty for what is none.
cpu_set_t cpus_of_list(std::string_view list);

// Fewer than these are a narrow binding: helpers leave it.
inline constexpr int kRoomyBinding = 4;

// Where a helper runs that may run on `allowed`: near to its work, if there is room enough, else
// anywhere.  `near` may be empty: unknown.
cpu_set_t nearest_cpus(const cpu_set_t& allowed, const cpu_set_t& near);

// The calling thread leaves a narrow binding for all processors that the cpuset allows.  False: it
// is not narrow, is to stay, or there are no more.
bool leave_binding(HelperCpus choice);
// The calling thread moves to the processors of a list, as nearest_cpus() has it.
void move_near(std::string_view list);
// A helping thread's first call: both of them.  Gives how many processors it may use.
int place_helper(HelperCpus choice, std::string_view near_list);

// What a helper does after a look that found nothing.  Sleeping is for some 20 us, or until woken.
enum class Pause : std::uint8_t { spin, yield, sleep };

// `quiet_ns`: since it last found something.  `spin_ns`: how long to poll where there is room.
constexpr Pause pause_after(std::int64_t quiet_ns, int cpus, std::int64_t spin_ns) {
  constexpr int kRoom = 5;  // the caller's threads, the GPU's, and ours
  constexpr std::int64_t kYields = 200'000;
  // Who yields the only one to somebody that polls waits for the end of his time slice; who sleeps
  // is let on before that.
  constexpr std::int64_t kYieldsAlone = 20'000;
  if (cpus >= kRoom) return quiet_ns < spin_ns ? Pause::spin : Pause::sleep;
  const std::int64_t limit = cpus > 1 ? kYields : kYieldsAlone;
  return quiet_ns < std::min(spin_ns, limit) ? Pause::yield : Pause::sleep;
}

// A sleep of a helper that nobody wakes, and the thread's setting that makes it that short.
void make_sleeps_exact();
void sleep_briefly();

// What to tell the user of a process that is held on one or two processors of more; empty:
// nothing.  `bound`: by its binding; `quota`: by its control group, 0 without; `online`: there are.
std::string held_on_few(int bound, int quota, int online);
// The same of this process.
std::string held_on_few();

}  // namespace twinpath
