// What a forked child keeps of sockets: nothing, whenever the fork comes.
#include "plugin/base/unshared_fd.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <thread>
#include <vector>

#include "test/support/catch.h"
#include "test/support/needs.h"

namespace twinpath {
namespace {

UnsharedFd a_socket() {
  return UnsharedFd::make([] { return ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0); });
}

// Runs `body` in a forked child; what it returns there.
template <class Body>
int in_child(Body&& body) {
  const pid_t child = ::fork();
  if (child == 0) ::_exit(body());
  int status = 0;
  if (child < 0 || ::waitpid(child, &status, 0) != child) return -1;
  return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
}

bool is_open(int fd) { return ::fcntl(fd, F_GETFD) != -1; }

// Of this process among the first descriptors; makes system calls only.
int sockets() {
  int n = 0;
  for (int fd = 3; fd < 256; ++fd) {
    int type = 0;
    socklen_t length = sizeof type;
    if (::getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &length) == 0) ++n;
  }
  return n;
}

}  // namespace

TEST_CASE("a forked child has none of its parent's unshared descriptors, and the parent has all") {
  UnsharedFd one = a_socket(), two = a_socket();
  const UnsharedFd moved = std::move(two);
  REQUIRE(one);
  REQUIRE(moved);
  CHECK(!two);
  CHECK(in_child([&] { return is_open(one.get()) || is_open(moved.get()) ? 1 : 0; }) == 0);
  CHECK(is_open(one.get()));
  CHECK(is_open(moved.get()));
  const int number = one.get();
  one.reset();
  CHECK(!is_open(number));
}

TEST_CASE("an owner that is destroyed in the child leaves other files of that number alone") {
  UnsharedFd one = a_socket();
  REQUIRE(one);
  CHECK(in_child([&] {
          const int number = one.get();
          if (is_open(number)) return 1;
          if (::dup2(0, number) != number && ::open("/dev/null", O_RDONLY) < 0) return 2;
          if (!is_open(number)) return 3;
          one.reset();
          if (!is_open(number)) return 4;
          // And new ones can be made.
          UnsharedFd own = a_socket();
          if (!own) return 5;
          const int its = own.get();
          own.reset();
          return is_open(its) ? 6 : 0;
        }) == 0);
}

TEST_CASE("a descriptor that cannot be had leaves its errno") {
  const UnsharedFd none = UnsharedFd::make([] {
    errno = EMFILE;
    return -1;
  });
  CHECK(errno == EMFILE);
  CHECK(!none);
}

// With a sanitizer's shadow memory a fork takes 30 ms.
constexpr int kForks = TWINPATH_SANITIZES_ADDRESSES || TWINPATH_SANITIZES_THREADS ? 60 : 300;

TEST_CASE("forks at any moment keep no socket, while threads open and close them") {
  const int others = in_child([] { return sockets(); });  // that this program was started with
  std::atomic<bool> stop{false};
  std::vector<std::thread> threads;
  for (int t = 0; t < 2; ++t)
    threads.emplace_back([&] {
      while (!stop.load()) {
        std::vector<UnsharedFd> few;
        for (int i = 0; i < 3; ++i) few.push_back(a_socket());
      }
    });
  int kept = 0, done = 0;
  for (; done < kForks && kept == 0; ++done) kept = in_child([&] { return sockets() - others; });
  stop.store(true);
  for (std::thread& t : threads) t.join();
  CHECK(kept == 0);
  CHECK(done == kForks);
}

}  // namespace twinpath
