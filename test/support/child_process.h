#pragma once
// Another process: this program again, started with a role.  The program has a test case of the
// tag [.child] that asks own_role() what to do, does it, and leaves with _exit(); parent and child
// talk over a socket pair.
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <string>
#include <type_traits>

#include "test/support/catch.h"

namespace twinpath::test {

// One plain value over the socket pair; false when the other side has gone.
template <class T>
bool tell(int fd, const T& value) {
  static_assert(std::is_trivially_copyable_v<T>);
  return ::send(fd, &value, sizeof value, MSG_NOSIGNAL) == static_cast<ssize_t>(sizeof value);
}
template <class T>
bool hear(int fd, T& value) {
  static_assert(std::is_trivially_copyable_v<T>);
  return ::recv(fd, &value, sizeof value, MSG_WAITALL) == static_cast<ssize_t>(sizeof value);
}

struct Role {
  std::string name;
  int fd = -1;  // to the parent
};
// Of the process that calls it; only in the test case of the tag [.child].
inline Role own_role() {
  const char* text = getenv("TWINPATH_TEST_CHILD");
  REQUIRE(text != nullptr);
  const std::string role(text);
  const auto colon = role.rfind(':');
  return {role.substr(0, colon), atoi(role.c_str() + colon + 1)};
}

struct ChildProcess {
  pid_t pid = -1;
  int fd = -1;

  explicit ChildProcess(const std::string& role) {
    int ends[2];
    REQUIRE(socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0);
    pid = fork();
    if (pid == 0) {
      ::close(ends[0]);
      setenv("TWINPATH_TEST_CHILD", (role + ":" + std::to_string(ends[1])).c_str(), 1);
      execl("/proc/self/exe", "child", "[.child]", static_cast<char*>(nullptr));
      _exit(99);
    }
    ::close(ends[1]);
    fd = ends[0];
  }
  ~ChildProcess() {
    kill_and_wait();
    if (fd >= 0) ::close(fd);
  }
  ChildProcess(const ChildProcess&) = delete;
  ChildProcess& operator=(const ChildProcess&) = delete;

  // Lets it go on to its end; its exit status, or 1000 and the signal that ended it.
  int finish() {
    (void)tell(fd, char{1});  // it may have ended by itself
    int status = 0;
    waitpid(pid, &status, 0);
    pid = -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
  }
  void kill_and_wait() {
    if (pid <= 0) return;
    kill(pid, SIGKILL);
    waitpid(pid, nullptr, 0);
    pid = -1;
  }
};

}  // namespace twinpath::test
