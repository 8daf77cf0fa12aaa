#pragma once
// Waits until the other threads of this process have had their say, without a guess at how long a
// busy machine takes for that.
#include <dirent.h>
#include <time.h>
#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <thread>

namespace twinpath::test {

struct ThreadLook {
  bool sleeps = false;
  std::int64_t ran_ns = 0;  // on a processor, since its start
};

// The other threads by their numbers; those that end meanwhile may be left out.
inline std::map<pid_t, ThreadLook> look_at_others() {
  std::map<pid_t, ThreadLook> found;
  const std::unique_ptr<DIR, int (*)(DIR*)> tasks(::opendir("/proc/self/task"), ::closedir);
  while (const dirent* entry = tasks ? ::readdir(tasks.get()) : nullptr) {
    const auto tid = static_cast<pid_t>(std::strtol(entry->d_name, nullptr, 10));
    if (tid <= 0 || tid == ::gettid()) continue;
    // The clock of a thread by its number, as pthread_getcpuclockid() makes it (CPUCLOCK_SCHED,
    // CPUCLOCK_PERTHREAD_MASK in the kernel's posix-timers.h).
    timespec ran{};
    if (::clock_gettime(static_cast<clockid_t>(~static_cast<unsigned>(tid) << 3 | 6), &ran) != 0)
      continue;
    ThreadLook look{.ran_ns = ran.tv_sec * 1'000'000'000 + ran.tv_nsec};
    const std::string path = "/proc/self/task/" + std::to_string(tid) + "/stat";
    if (const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen(path.c_str(), "r"),
                                                                   std::fclose);
        file) {
      char state = 0;
      look.sleeps = std::fscanf(file.get(), "%*d (%*[^)]) %c", &state) == 1 && state == 'S';
    }
    found[tid] = look;
  }
  return found;
}

// Until each other thread sleeps, or has run for `ms` since: one that spins has seen what there was
// to see.  10 s at most.
inline void let_others_run(int ms) {
  using std::chrono::milliseconds;
  auto begin = look_at_others();
  auto before = begin;
  for (int look = 0; look < 5000; ++look) {
    std::this_thread::sleep_for(milliseconds(2));
    const auto now = look_at_others();
    bool rest = true;
    for (const auto& [tid, at] : now) {
      const ThreadLook last = before[tid], first = begin[tid];  // a new one: awake, never ran
      const bool slept = last.sleeps && at.sleeps && last.ran_ns == at.ran_ns;
      const std::int64_t ran = at.ran_ns - first.ran_ns;
      rest = rest && (slept || ran >= ms * std::int64_t{1'000'000});
    }
    if (rest) return;
    before = now;
  }
}

}  // namespace twinpath::test
