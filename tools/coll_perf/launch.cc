#include "tools/coll_perf/launch.h"

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <sstream>

#include "plugin/base/clock.h"
#include "tools/coll_perf/error.h"
#include "tools/common/said_once.h"

namespace twinpath::coll {
namespace {

constexpr const char* kPlaceVariable = "TWINPATH_COLL_PERF_RANK";  // "rank size said fd fd ..."

std::vector<std::string> own_arguments() {
  std::ifstream file("/proc/self/cmdline", std::ios::binary);
  std::vector<std::string> out;
  for (std::string word; std::getline(file, word, '\0');) out.push_back(word);
  return out;
}

// A reader of rank 0's output that has gone (`| head -1`) ends the whole run as it would end a
// program of one process.  Signal-safe; the launcher's end is this one's, too.
extern "C" void pass_to_launcher(int signal) {
  kill(getppid(), signal);
  pause();
}

[[noreturn]] void become_rank(int rank, int size, std::vector<UniqueFd> links, pid_t parent) {
  // A launcher that dies must not leave ranks behind.
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(kExitFailed);
  std::ostringstream place;
  const int said = tools::said_once_fd();
  if (said >= 0) fcntl(said, F_SETFD, 0);
  place << rank << ' ' << size << ' ' << said;
  for (UniqueFd& link : links) {
    const int fd = link.release();
    fcntl(fd, F_SETFD, 0);
    place << ' ' << fd;
  }
  setenv(kPlaceVariable, place.str().c_str(), 1);
  std::vector<std::string> words = own_arguments();
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  execv("/proc/self/exe", argv.data());
  std::fprintf(stderr, "coll_perf: rank %d cannot be started: %s\n", rank, std::strerror(errno));
  _exit(kExitFailed);
}

}  // namespace

std::optional<Place> started_place(std::vector<UniqueFd>& links) {
  const char* text = std::getenv(kPlaceVariable);
  if (text == nullptr) return std::nullopt;
  std::istringstream words(text);
  Place place;
  int said = -1;
  words >> place.rank >> place.size >> said;
  tools::join_said_once(said);
  prctl(PR_SET_NAME, "coll_perf");  // it was executed as /proc/self/exe
  if (std::signal(SIGPIPE, pass_to_launcher) == SIG_IGN) std::signal(SIGPIPE, SIG_IGN);
  place.local_rank = place.rank;
  for (int fd; words >> fd;) {
    fcntl(fd, F_SETFD, FD_CLOEXEC);
    links.emplace_back(fd);
  }
  unsetenv(kPlaceVariable);
  const std::size_t expected = place.rank == 0 ? static_cast<std::size_t>(place.size) - 1 : 1;
  if (links.size() != expected) {
    throw ToolError(kExitUsage, strf("%s is for coll_perf itself; unset it", kPlaceVariable));
  }
  return place;
}

int run_processes(int size, int victim) {
  auto links = tools::Group::socket_pairs(size);
  (void)tools::said_once_fd();  // made here, so that all ranks inherit one
  std::fflush(nullptr);
  std::vector<pid_t> pids(static_cast<std::size_t>(size), -1);
  const pid_t self = getpid();
  for (int rank = 0; rank < size; ++rank) {
    const pid_t pid = fork();
    if (pid == 0) become_rank(rank, size, std::move(links[static_cast<std::size_t>(rank)]), self);
    if (pid < 0) {
      for (const pid_t p : pids) {
        if (p > 0) kill(p, SIGKILL);
      }
      throw ToolError(kExitFailed, strf("fork for rank %d: %s", rank, std::strerror(errno)));
    }
    pids[static_cast<std::size_t>(rank)] = pid;
  }
  links.clear();  // so that a rank's end closes its sockets
  int worst = kExitOk;
  int left = size;
  std::int64_t kill_at = 0;
  while (left > 0) {
    int status = 0;
    const pid_t pid = waitpid(-1, &status, WNOHANG);
    if (pid <= 0) {
      if (pid < 0 && errno != EINTR) break;
      if (kill_at != 0 && now_ns() > kill_at) {
        for (const pid_t p : pids) {
          if (p > 0) kill(p, SIGKILL);
        }
        kill_at = 0;
      }
      usleep(2000);
      continue;
    }
    const auto at = std::find(pids.begin(), pids.end(), pid);
    if (at == pids.end()) continue;
    const int rank = static_cast<int>(at - pids.begin());
    *at = -1;
    --left;
    if (rank == victim && WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL) continue;
    int code = WIFEXITED(status) ? WEXITSTATUS(status) : kExitFailed;
    if (WIFSIGNALED(status)) {
      std::fprintf(stderr, "coll_perf: rank %d (pid %d) was ended by signal %d (%s)\n", rank, pid,
                   WTERMSIG(status), strsignal(WTERMSIG(status)));
    }
    if (code > kExitWrong && kill_at == 0) kill_at = now_ns() + 10 * kSecond;
    worst = std::max(worst, code);
  }
  return worst;
}

}  // namespace twinpath::coll
