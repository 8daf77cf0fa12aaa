// NCCL's host RMA (ncclPutSignal, ncclSignal, ncclWaitSignal, 2.30.7 and later) between processes
// or threads, every byte checked.  Run by hand on a machine with a GPU: test/gpu/README.md.
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <thread>

#include "test/gpu/rma_host_rank.h"

namespace twinpath::rma_host {
namespace {

bool read_all(int fd, void* p, std::size_t n) {
  for (auto* at = static_cast<char*>(p); n != 0;) {
    const ssize_t got = ::read(fd, at, n);
    if (got <= 0) return false;
    at += got;
    n -= static_cast<std::size_t>(got);
  }
  return true;
}
bool send_all(int fd, const void* p, std::size_t n) {
  return ::send(fd, p, n, MSG_NOSIGNAL) == static_cast<ssize_t>(n);
}

struct Message {
  unsigned char bytes[128];
};

struct Child {
  pid_t pid = -1;
  int fd = -1;
};

// Hands rank 0's message to all until they have gone.
void serve(const std::vector<Child>& children) {
  for (;;) {
    Message from0{};
    bool all = true;
    for (std::size_t r = 0; r < children.size(); ++r) {
      Message message{};
      all &= read_all(children[r].fd, &message, sizeof message);
      if (r == 0) from0 = message;
    }
    if (!all) return;
    for (const Child& child : children) (void)send_all(child.fd, &from0, sizeof from0);
  }
}

// One process; a rank that fails ends it.
int run_threads(const Options& options) {
  std::vector<Child> ends;
  std::vector<std::thread> ranks;
  for (std::size_t r = 0; r < options.gpus.size(); ++r) {
    int pair[2];
    if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) != 0) return 2;
    ends.push_back({-1, pair[0]});
    ranks.emplace_back([&options, r, fd = pair[1]] {
      if (run_rank(options, static_cast<int>(r), Meeting(fd)) == 0) return;
      std::printf("something was wrong\n");
      ::_exit(1);  // others wait for this rank
    });
  }
  std::thread server([&] { serve(ends); });
  server.detach();
  ::alarm(static_cast<unsigned>(options.limit_s));
  for (std::thread& rank : ranks) rank.join();
  std::printf("all right\n");
  return 0;
}

int run_parent(const Options& options) {
  std::vector<Child> children;
  for (std::size_t r = 0; r < options.gpus.size(); ++r) {
    int ends[2];
    if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) return 2;
    const pid_t pid = ::fork();
    if (pid == 0) {
      for (const Child& other : children) ::close(other.fd);
      ::close(ends[0]);
      ::_exit(run_rank(options, static_cast<int>(r), Meeting(ends[1])));
    }
    ::close(ends[1]);
    children.push_back({pid, ends[0]});
  }
  std::thread server([&] { serve(children); });
  int wrong = 0;
  std::size_t left = children.size();
  for (int tenths = 0; left != 0; ++tenths) {
    for (std::size_t r = 0; r < children.size(); ++r) {
      int status = 0;
      if (children[r].pid < 0 || ::waitpid(children[r].pid, &status, WNOHANG) != children[r].pid)
        continue;
      children[r].pid = -1;
      --left;
      const bool good = WIFEXITED(status) && WEXITSTATUS(status) == 0;
      if (!good) std::printf("FAILED rank %zu ended with status %d\n", r, status);
      wrong += good ? 0 : 1;
    }
    const bool late = tenths > options.limit_s * 10;
    // A rank that failed leaves others waiting.
    if (late || (wrong != 0 && left != 0)) {
      if (late) std::printf("FAILED did not end within %d s\n", options.limit_s);
      ::sleep(wrong != 0 ? 3 : 0);
      for (Child& child : children)
        if (child.pid > 0) {
          ::kill(child.pid, SIGKILL);
          (void)::waitpid(child.pid, nullptr, 0);
        }
      wrong += late ? 1 : 0;
      break;
    }
    ::usleep(100000);
  }
  for (const Child& child : children) (void)::shutdown(child.fd, SHUT_RDWR);
  server.join();
  std::printf(wrong == 0 ? "all right\n" : "something was wrong\n");
  return wrong == 0 ? 0 : 1;
}

}  // namespace

void Meeting::share(void* bytes, std::size_t size) const {
  Message message{};
  std::copy_n(static_cast<unsigned char*>(bytes), std::min(size, sizeof message), message.bytes);
  if (!send_all(fd_, &message, sizeof message) || !read_all(fd_, &message, sizeof message))
    ::_exit(3);  // somebody has failed
  std::copy_n(message.bytes, std::min(size, sizeof message), static_cast<unsigned char*>(bytes));
}

void Meeting::barrier() const {
  unsigned char nothing = 0;
  share(&nothing, 1);
}

}  // namespace twinpath::rma_host

int main(int argc, char** argv) {
  twinpath::rma_host::Options options;
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  CLI::App app("NCCL's host RMA between processes, every byte checked");
  app.add_option("--gpus", options.gpus, "a GPU for each rank, several may be the same: 0,1")
      ->delimiter(',')
      ->capture_default_str();
  app.add_option("--nccl", options.nccl, "libnccl.so.2 (2.30.7 or newer); else the loader's");
  app.add_option("--limit", options.limit_s, "seconds until all is killed")->capture_default_str();
  app.add_option("--rounds", options.rounds, "round trips to measure")->capture_default_str();
  app.add_flag("--kill", options.kill,
               "at the end the last rank goes without a word, and the others must learn of it");
  app.add_flag("--threads", options.threads, "ranks are threads of one process")
      ->excludes("--kill");
  CLI11_PARSE(app, argc, argv);
  // Before NCCL is opened: ranks reach each other by the network, wherever they are.
  ::setenv("NCCL_MNNVL_ENABLE", "0", 0);
  if (options.threads) ::setenv("NCCL_LSA_TEAM_SIZE", "1", 0);
  return options.threads ? twinpath::rma_host::run_threads(options)
                         : twinpath::rma_host::run_parent(options);
}
