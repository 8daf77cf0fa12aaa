#include "plugin/base/cpus.h"

#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

#include <charconv>
#include <cstdio>
#include <cstring>
#include <thread>

namespace twinpath {
namespace {

// The whole of a small file; empty when there is none.
std::string text_of(const std::string& path) {
  std::string text;
  std::FILE* f = std::fopen(path.c_str(), "re");
  if (f == nullptr) return text;
  char part[512];
  for (std::size_t n = 0; (n = std::fread(part, 1, sizeof part, f)) != 0;) text.append(part, n);
  std::fclose(f);
  return text;
}

// This process's group in a hierarchy, "" when it is not there: that of the second version (no
// controllers), or the one of the first version that has the controller.
std::string own_group(std::string_view controller) {
  const std::string text = text_of("/proc/self/cgroup");
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = std::min(text.find('\n', at), text.size());
    const std::string_view line = std::string_view(text).substr(at, end - at);  // 1:cpu,cpuacct:/a
    at = end + 1;
    const std::size_t first = line.find(':'), second = line.find(':', first + 1);
    if (first == line.npos || second == line.npos) continue;
    const std::string names = "," + std::string(line.substr(first + 1, second - first - 1)) + ",";
    if (controller.empty() ? names == ",,"
                           : names.find("," + std::string(controller) + ",") != names.npos)
      return std::string(line.substr(second + 1));
  }
  return {};
}

// The least that any group from `group` up to the root grants; 0: no limit.
template <class Grant>
int least_of(std::string group, Grant&& granted) {
  int least = 0;
  for (;;) {
    if (const int n = granted(group); n != 0) least = least == 0 ? n : std::min(least, n);
    const std::size_t slash = group.rfind('/');
    if (slash == std::string::npos) return least;
    group.resize(slash);
  }
}

int quota() {
  const int second = least_of(own_group(""), [](const std::string& group) {
    return cpus_of_quota(text_of("/sys/fs/cgroup" + group + "/cpu.max"));
  });
  // The first version has the two numbers in two files; -1 is no limit.
  const int first = least_of(own_group("cpu"), [](const std::string& group) {
    const std::string folder = "/sys/fs/cgroup/cpu" + group;
    return cpus_of_quota(text_of(folder + "/cpu.cfs_quota_us") + " " +
                         text_of(folder + "/cpu.cfs_period_us"));
  });
  return first == 0 || second == 0 ? std::max(first, second) : std::min(first, second);
}

// False where there are more processors than the set has room for: nothing of them is narrow.
bool binding_of_thread(cpu_set_t& set) {
  CPU_ZERO(&set);
  return sched_getaffinity(0, sizeof set, &set) == 0;
}

int with_quota(int cpus) {
  if (const int granted = quota(); granted != 0) cpus = std::min(cpus, granted);
  return std::max(cpus, 1);
}

}  // namespace

int cpus_of_quota(std::string_view text) {
  long numbers[2] = {0, 0};
  for (long& n : numbers) {
    text.remove_prefix(std::min(text.find_first_not_of(" \n"), text.size()));
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), n);
    if (error != std::errc() || n <= 0) return 0;
    text.remove_prefix(static_cast<std::size_t>(end - text.data()));
  }
  return static_cast<int>(std::min(1 + (numbers[0] - 1) / numbers[1], 1L << 16));
}

cpu_set_t cpus_of_list(std::string_view list) {
  cpu_set_t set, none;
  CPU_ZERO(&set);
  CPU_ZERO(&none);
  const char* at = list.data();
  const char* const end = at + list.size();
  while (at != end && *at != '\n') {
    unsigned first = 0, last = 0;
    auto read = std::from_chars(at, end, first);
    if (read.ec != std::errc()) return none;
    last = first;
    if (read.ptr != end && *read.ptr == '-') {
      read = std::from_chars(read.ptr + 1, end, last);
      if (read.ec != std::errc()) return none;
    }
    for (unsigned n = first; n <= last && n < CPU_SETSIZE; ++n) CPU_SET(n, &set);
    at = read.ptr;
    if (at != end && *at == ',') ++at;
  }
  return set;
}

cpu_set_t nearest_cpus(const cpu_set_t& allowed, const cpu_set_t& near) {
  cpu_set_t both;
  CPU_AND(&both, &allowed, &near);
  return CPU_COUNT(&both) >= kRoomyBinding ? both : allowed;
}

bool leave_binding(HelperCpus choice) {
  cpu_set_t before, after;
  if (choice != HelperCpus::near || !binding_of_thread(before) ||
      CPU_COUNT(&before) >= kRoomyBinding)
    return false;
  // The kernel takes of all of them what the cpuset allows.
  std::memset(&after, 0xff, sizeof after);
  return sched_setaffinity(0, sizeof after, &after) == 0 && binding_of_thread(after) &&
         CPU_COUNT(&after) > CPU_COUNT(&before);
}

void move_near(std::string_view list) {
  cpu_set_t allowed;
  if (list.empty() || !binding_of_thread(allowed)) return;
  const cpu_set_t own = nearest_cpus(allowed, cpus_of_list(list));
  (void)sched_setaffinity(0, sizeof own, &own);
}

int place_helper(HelperCpus choice, std::string_view near_list) {
  if (leave_binding(choice)) move_near(near_list);
  return usable_cpus();
}

int usable_cpus() {
  cpu_set_t set;
  return with_quota(binding_of_thread(set) ? CPU_COUNT(&set)
                                           : static_cast<int>(std::thread::hardware_concurrency()));
}

void make_sleeps_exact() {
  (void)::prctl(PR_SET_TIMERSLACK, 1000UL);  // ns; the default of 50 us is most of the sleep
}

void sleep_briefly() {
  constexpr timespec kBrief{0, 20'000};
  (void)::nanosleep(&kBrief, nullptr);
}

std::string held_on_few(int bound, int quota, int online) {
  const int usable = quota == 0 ? bound : std::min(bound, quota);
  constexpr int kFew = 2;
  if (usable > kFew || usable >= online) return {};
  std::string text = "this process is held on " + std::to_string(usable) + " of " +
                     std::to_string(online) + " processors";
  text +=
      quota != 0 && quota < bound
          ? ", by its control group's quota: small messages are slow, as NCCL's threads and ours "
            "take turns there; give the job four processors a rank (containers: --cpus; "
            "Kubernetes: limits.cpu)"
          : ", by its binding: small messages are slow, as NCCL's threads take turns there; "
            "bind ranks to four or to none (mpirun --bind-to none, Slurm --cpus-per-task=4)";
  return text;
}

std::string held_on_few() {
  cpu_set_t set;
  if (!binding_of_thread(set)) return {};
  return held_on_few(CPU_COUNT(&set), quota(), static_cast<int>(::sysconf(_SC_NPROCESSORS_ONLN)));
}

}  // namespace twinpath
