#include "plugin/base/cpus.h"

#include <sched.h>

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <string>
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

// This process's group of the unified hierarchy; "" when it is not there.
std::string own_group() {
  const std::string text = text_of("/proc/self/cgroup");
  constexpr std::string_view kUnified = "0::";
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = std::min(text.find('\n', at), text.size());
    if (text.compare(at, kUnified.size(), kUnified) == 0)
      return text.substr(at + kUnified.size(), end - at - kUnified.size());
    at = end + 1;
  }
  return {};
}

// The least that any group on the way up grants; 0: no limit.
int quota() {
  int least = 0;
  const auto consider = [&least](int n) {
    if (n != 0) least = least == 0 ? n : std::min(least, n);
  };
  for (std::string group = own_group();;) {
    consider(cpus_of_quota(text_of("/sys/fs/cgroup" + group + "/cpu.max")));
    const std::size_t slash = group.rfind('/');
    if (slash == std::string::npos) break;
    group.resize(slash);
  }
  // The first version has the two numbers in two files; -1 is no limit.
  consider(cpus_of_quota(text_of("/sys/fs/cgroup/cpu/cpu.cfs_quota_us") + " " +
                         text_of("/sys/fs/cgroup/cpu/cpu.cfs_period_us")));
  return least;
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

int usable_cpus() {
  cpu_set_t set;
  CPU_ZERO(&set);
  // Fails where there are more processors than the set has room for.
  int n = sched_getaffinity(0, sizeof set, &set) == 0
              ? CPU_COUNT(&set)
              : static_cast<int>(std::thread::hardware_concurrency());
  if (const int granted = quota(); granted != 0) n = std::min(n, granted);
  return std::max(n, 1);
}

}  // namespace twinpath
