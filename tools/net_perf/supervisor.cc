// Workers report by JSON lines: {"phase"}, {"fraction"}, {"barrier"}, {"result"}, {"error"},
// {"done"}.  The parent answers only barriers, with one byte to each worker.
#include "tools/net_perf/supervisor.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <thread>

#include "plugin/base/clock.h"
#include "tools/common/failure.h"
#include "tools/common/said_once.h"
#include "tools/common/units.h"
#include "tools/net_perf/interrupt.h"
#include "tools/net_perf/tests.h"

namespace twinpath::tools {
namespace {

struct Worker {
  Channel control;
  std::string name;  // for messages
  pid_t pid = -1;
  std::thread thread;
  std::string phase = "starting";
  std::string error;
  bool done = false;
  bool waiting = false;  // at a barrier
};

class Run {
 public:
  explicit Run(Supervisor& s) : s_(s), workers_(static_cast<std::size_t>(s.options.workers)) {
    for (std::size_t i = 0; i < workers_.size(); ++i) {
      workers_[i].name = "worker " + std::to_string(i);
      if (s.abroad != nullptr) workers_[i].name += " on " + s.abroad->hosts[i];
    }
  }

  void start() {
    if (s_.abroad != nullptr) return start_abroad();
    std::vector<Channel> controls, peers;
    for (std::size_t i = 0; i < workers_.size(); i += 2) {
      auto [a, b] = Channel::pair();
      peers.push_back(std::move(a));
      peers.push_back(std::move(b));
    }
    for (Worker& w : workers_) {
      auto [mine, its] = Channel::pair();
      w.control = std::move(mine);
      controls.push_back(std::move(its));
    }
    for (std::size_t i = 0; i < workers_.size(); ++i) {
      const int rank = static_cast<int>(i);
      if (s_.options.threads)
        workers_[i].thread = std::thread(s_.worker_main, std::cref(s_.options), rank,
                                         std::move(controls[i]), std::move(peers[i]));
      else
        workers_[i].pid = start_worker(s_.argc, s_.argv, s_.options, rank, controls[i], peers[i]);
    }
  }

  // True when all workers finished well.
  bool listen() {
    const auto limit = static_cast<std::int64_t>(s_.options.timeout_s * 1e9);
    // Workers know the deadline too and say more about it; the parent's is the last resort.
    const std::int64_t deadline = now_ns() + limit + 2 * kSecond;
    std::int64_t grace = 0;  // after the first failure: what do the others say?
    while (true) {
      bool all_done = true, failed = false;
      std::vector<pollfd> fds;
      for (Worker& w : workers_) {
        all_done = all_done && w.done;
        failed = failed || !w.error.empty();
        fds.push_back({w.done || !w.error.empty() ? -1 : w.control.fd(), POLLIN, 0});
      }
      if (all_done) return true;
      fds.push_back({interrupts_.fd(), POLLIN, 0});
      if (failed && grace == 0) grace = now_ns() + kSecond / 2;
      if (failed && (now_ns() > grace || nobody_left())) return false;
      if (now_ns() > deadline) {
        for (Worker& w : workers_)
          if (!w.done && w.error.empty())
            w.error = "timed out after " + fixed(s_.options.timeout_s, 1) + " s in phase '" +
                      w.phase + "' " + silent(w.phase);
        return false;
      }
      if (poll(fds.data(), fds.size(), 50) <= 0) continue;
      if (s_.interrupted = interrupts_.take(); s_.interrupted != 0) return false;
      for (std::size_t i = 0; i < workers_.size(); ++i)
        if (fds[i].fd >= 0 && fds[i].revents != 0) hear(i);
    }
  }

  void stop(bool well) {
    for (Worker& w : workers_) {
      if (w.pid > 0 && well) w.error = end_worker(w.pid);
      if (w.pid > 0) {
        kill(w.pid, SIGKILL);
        waitpid(w.pid, nullptr, 0);
      }
      if (!w.thread.joinable()) continue;
      if (well)
        w.thread.join();
      else
        w.thread.detach();  // it may be stuck in the plugin; the program ends with _exit
    }
  }

  // One line a fault, with all workers that have it.
  std::string errors() const {
    if (s_.interrupted != 0)
      return interrupt_text(s_.interrupted) + " in phase '" + workers_[0].phase + "'\n";
    std::vector<std::pair<std::string, std::string>> lines;  // fault, workers
    for (const Worker& w : workers_) {
      if (w.error.empty() && w.done) continue;
      const std::string fault =
          w.error.empty() ? "was stopped in phase '" + w.phase + "'" : w.error;
      const auto it = std::find_if(lines.begin(), lines.end(),
                                   [&](const auto& line) { return line.first == fault; });
      if (it == lines.end())
        lines.emplace_back(fault, w.name);
      else
        it->second += ", " + w.name;
    }
    std::string text;
    for (const auto& [fault, workers] : lines) text += workers + ": " + fault + "\n";
    return text;
  }

 private:
  // Why a worker does not answer, and what helps.  In some phases it is not inside the plugin.
  static std::string silent(const std::string& phase) {
    if (phase.ends_with(kOwnWork)) return "; raise --timeout, or give smaller --sizes";
    if (phase.ends_with("verify") || phase.ends_with("measure"))
      return "and did not answer; the plugin may be blocking, or filling and checking this much "
             "takes longer: raise --timeout to see which";
    return "and did not answer; the plugin may be blocking: raise --timeout to see whether it is "
           "only slow";
  }
  // Worker 0 here; the others come by themselves and are supervised by their own parents too.
  void start_abroad() {
    auto [mine, its] = Channel::pair();
    workers_[0].control = std::move(mine);
    workers_[0].pid = start_worker(s_.argc, s_.argv, s_.options, 0, its, s_.abroad->peer);
    s_.abroad->peer.close();  // so that its end is noticed
    for (std::size_t i = 1; i < workers_.size(); ++i)
      workers_[i].control = std::move(s_.abroad->controls[i - 1]);
  }

  bool nobody_left() const {
    for (const Worker& w : workers_)
      if (!w.done && w.error.empty()) return false;
    return true;
  }

  void hear(std::size_t index) {
    Worker& w = workers_[index];
    bool closed = false;
    while (auto line = w.control.poll_line(closed)) {
      const nlohmann::json& j = *line;
      if (j.contains("phase")) w.phase = j["phase"].get<std::string>();
      if (j.contains("error")) w.error = j["error"].get<std::string>();
      if (j.contains("fraction") && index == 0)
        s_.on_progress(j["fraction"].get<double>(), w.phase);
      if (j.contains("result")) s_.on_result(static_cast<int>(index), j["result"]);
      if (j.contains("barrier")) w.waiting = true;
      if (j.contains("done")) w.done = true;
    }
    if (closed && !w.done && w.error.empty()) {
      const std::string how = w.pid > 0              ? worker_death(w.pid)
                              : s_.abroad != nullptr ? "its net_perf is gone, see what it said;"
                                                     : "ended";
      w.error = how + " in phase '" + w.phase + "'";
    }
    release_barrier();
  }

  void release_barrier() {
    for (const Worker& w : workers_)
      if (!w.waiting) return;
    for (Worker& w : workers_) {
      w.waiting = false;
      w.control.send("b", 1);
    }
  }

  Supervisor& s_;
  Interrupts interrupts_;  // before the workers, which inherit what is blocked
  std::vector<Worker> workers_;
};

}  // namespace

pid_t start_worker(int argc, char** argv, const Options& options, int rank, const Channel& control,
                   const Channel& peer) {
  std::vector<std::string> args(argv, argv + argc);
  args.insert(args.end(), {"--worker", std::to_string(rank), "--control-fd",
                           std::to_string(control.fd()), "--peer-fd", std::to_string(peer.fd()),
                           "--said-fd", std::to_string(said_once_fd())});
  const int said = said_once_fd();
  if (!options.job.empty()) {
    args.emplace_back("--job");
    for (const int n : options.job) args.push_back(std::to_string(n));
  }
  if (!options.against.empty())
    args.insert(args.end(), {"--turn-plugin", options.plugin, "--turn-timeout",
                             std::to_string(options.timeout_s)});
  std::vector<char*> pointers;
  for (std::string& a : args) pointers.push_back(a.data());
  pointers.push_back(nullptr);
  const pid_t parent = getpid();
  const pid_t pid = fork();
  if (pid < 0) throw Failure(std::string("fork: ") + std::strerror(errno));
  if (pid == 0) {  // only calls that are safe between fork and exec
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(127);
    leave_interrupts_to_parent();
    fcntl(control.fd(), F_SETFD, 0);
    fcntl(peer.fd(), F_SETFD, 0);
    if (said >= 0) fcntl(said, F_SETFD, 0);
    execv("/proc/self/exe", pointers.data());
    _exit(127);
  }
  return pid;
}

bool reap_worker(pid_t& pid, int& status, int seconds) {
  for (int i = 0; i < seconds * 200; ++i) {
    if (waitpid(pid, &status, WNOHANG) == pid) {
      pid = -1;
      return true;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return false;
}

std::string worker_death(pid_t& pid) {
  int status = 0;
  if (!reap_worker(pid, status, 1)) return "closed its control socket";
  return WIFSIGNALED(status) ? std::string("was killed by signal ") + strsignal(WTERMSIG(status))
                             : "exited with status " + std::to_string(WEXITSTATUS(status));
}

std::string end_worker(pid_t& pid) {
  int status = 0;
  if (!reap_worker(pid, status, 5)) {
    kill(pid, SIGKILL);
    waitpid(pid, &status, 0);
    pid = -1;
    return "did not end within 5 s after its work; the plugin holds it";
  }
  if (status == 0) return {};
  return WIFSIGNALED(status)
             ? std::string("was killed at its end by signal ") + strsignal(WTERMSIG(status))
             : "ended with status " + std::to_string(WEXITSTATUS(status));
}

bool Supervisor::run(std::string& why) {
  // On purpose never freed when threads are left behind by a failure: they may still use it.
  auto* run = new Run(*this);
  bool well = false;
  try {
    run->start();
    well = run->listen();
  } catch (const Failure& f) {
    why = std::string(f.what()) + "\n";
  }
  run->stop(well);
  why += run->errors();
  well = well && why.empty();
  if (well || !options.threads) delete run;
  return well;
}

}  // namespace twinpath::tools
