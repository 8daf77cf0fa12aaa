// vm-gaps: for how long a stream stands still when one of two merged rails fails, of any plugin
// with table v12, many times over.  Of ours and of another one in one boot: see kHelp.
//
// Runs as root in the virtual machine of topology pair2.  Each run has two processes of its own
// and a connection of its own; every byte is looked at.  Threads: one in each process.
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "plugin/base/clock.h"
#include "test/vm/faults/gap_end.h"
#include "test/vm/faults/network.h"

namespace twinpath::test {
namespace {

constexpr const char* kHelp =
    "usage: vm-gaps [--runs N] [--fault down|there|cut] [NAME=PLUGIN]...\n"
    "Two merged rails carry a stream, one of them fails in the middle (down: its link goes down "
    "at\n"
    "the sender; there: at the receiver; cut: it loses everything without a word) and comes back;\n"
    "the plugins in turn, N times each.\n"
    "One line a run: the longest time between two messages after the failure, ms, or what went\n"
    "wrong; then one line a plugin: p50, p99, maximum of those that survived.\n"
    "Settings come from the environment, of all plugins alike.\n";

constexpr std::uint64_t kBefore = 20, kAfter = 100;
constexpr int kStart = 30000, kSurvive = 10000;  // ms

bool wait_for(int limit_ms, std::uint64_t messages) {
  for (const std::int64_t end = now_ns() + limit_ms * kMillisecond; now_ns() < end; rest_ms(1)) {
    if (shared->messages.load() >= messages) return true;
    if (shared->wrong[0] != 0) return false;
  }
  return false;
}

// What went wrong; empty: nothing.
std::string watch(const std::string& fault) {
  const auto why = [](const char* otherwise) {
    return shared->wrong[0] != 0 ? std::string(shared->wrong.data()) : std::string(otherwise);
  };
  if (!wait_for(kStart, kBefore)) return why("never began");
  shared->failed_at.store(now_ns());
  std::string problem;
  const auto go_on = [&] {
    if (!wait_for(kSurvive, shared->messages.load() + kAfter)) problem = why("stands still");
    shared->gap = shared->longest.load();
  };
  if (fault == "cut") {
    const Cut broken("a1");
    go_on();
  } else {
    const LinkDown broken(fault == "there" ? "b1" : "a1");
    go_on();
  }
  return problem;
}

struct Result {
  std::vector<double> gaps;  // ms
  int lost = 0, sizes = 0;   // runs
};

void run(const std::string& name, const std::string& plugin, const std::string& fault, int number,
         Result& into) {
  (void)wait_ports_active({"rxe0", "rxe1", "rxe2", "rxe3"});
  void* memory =
      ::mmap(nullptr, sizeof(GapShared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return;
  shared = new (memory) GapShared;
  (void)std::fflush(nullptr);
  std::array<pid_t, 2> pids{};
  for (const bool sends : {true, false}) {
    pid_t& pid = pids[sends ? 0 : 1];
    pid = ::fork();
    if (pid != 0) continue;
    {
      GapEnd end(plugin, sends);
      end.run();
    }
    shared->done[sends ? 0 : 1].store(true);
    // Whoever closes first must not be what the other one stumbles over.
    while (!shared->quit.load()) rest_ms(1);
    std::_Exit(0);
  }
  const std::string problem = watch(fault);
  shared->finish.store(true);
  for (int i = 0; i < 3000 && !(shared->done[0].load() && shared->done[1].load()); ++i) rest_ms(1);
  shared->quit.store(true);
  rest_ms(20);
  for (const pid_t pid : pids) {
    (void)::kill(pid, SIGKILL);
    (void)::waitpid(pid, nullptr, 0);
  }
  const double ms = static_cast<double>(shared->gap) / 1e6;
  into.sizes += shared->sizes.load() != 0 ? 1 : 0;
  if (problem.empty())
    into.gaps.push_back(ms);
  else
    ++into.lost;
  std::printf("%s %s run %d: ", name.c_str(), fault.c_str(), number);
  if (problem.empty())
    std::printf("%.1f ms, %d wrong sizes%s%s\n", ms, shared->sizes.load(), ms > 300 ? ": " : "",
                ms > 300 ? shared->said.data() : "");
  else
    std::printf("LOST: %s (%s)\n", problem.c_str(), shared->said.data());
  (void)std::fflush(stdout);
  (void)::munmap(memory, sizeof(GapShared));
}

int all_runs(int argc, char** argv) {
  int runs = 10;
  std::string fault = "down";
  std::vector<std::pair<std::string, std::string>> plugins;
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    const std::size_t is = word.find('=');
    if (word == "--runs" && i + 1 < argc) {
      runs = std::atoi(argv[++i]);
    } else if (word == "--fault" && i + 1 < argc) {
      fault = argv[++i];
    } else if (is != std::string::npos) {
      plugins.emplace_back(word.substr(0, is), word.substr(is + 1));
    } else {
      std::fputs(kHelp, word == "--help" ? stdout : stderr);
      return word == "--help" ? 0 : 2;
    }
  }
  const bool known = fault == "down" || fault == "there" || fault == "cut";
  if (plugins.empty() || !known || ::geteuid() != 0 ||
      std::getenv("RXE_TOPO") != std::string("pair2")) {
    std::fputs("vm-gaps runs as root in the VM with RXE_TOPO=pair2 and needs a plugin\n", stderr);
    return 2;
  }
  std::vector<Result> results(plugins.size());
  for (int n = 1; n <= runs; ++n)
    for (std::size_t p = 0; p < plugins.size(); ++p)
      run(plugins[p].first, plugins[p].second, fault, n, results[p]);
  for (std::size_t p = 0; p < plugins.size(); ++p) {
    std::vector<double>& g = results[p].gaps;
    std::sort(g.begin(), g.end());
    const auto at = [&](double part) {
      return g.empty()
                 ? 0
                 : g[static_cast<std::size_t>(std::ceil(part * static_cast<double>(g.size()))) - 1];
    };
    std::printf(
        "%s %s: %zu survived, %d lost; p50 %.0f, p90 %.0f, p99 %.0f, max %.0f ms; %d "
        "with wrong sizes\n",
        plugins[p].first.c_str(), fault.c_str(), g.size(), results[p].lost, at(0.5), at(0.9),
        at(0.99), at(1), results[p].sizes);
  }
  return 0;
}

}  // namespace
}  // namespace twinpath::test

int main(int argc, char** argv) { return twinpath::test::all_runs(argc, argv); }
