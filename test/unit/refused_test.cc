// System calls that a limit or a security profile refuses: an error with its cause, or another way.
// In child processes, as neither is ever lifted again.
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <functional>
#include <thread>

#include "plugin/base/clock.h"
#include "plugin/base/counter_page.h"
#include "plugin/base/event_wait.h"
#include "plugin/base/file_size_signal.h"
#include "plugin/base/refused.h"
#include "plugin/base/shared_memory.h"
#include "plugin/rdma/handle.h"
#include "proxy/queues/session_thread.h"
#include "test/support/catch.h"
#include "test/support/log_capture.h"
#include "test/support/refuse.h"

using namespace twinpath;
using namespace twinpath::test;

namespace {

// What `body` returned in a child; -1: it was killed.
int in_child(const std::function<int()>& body) {
  const pid_t child = ::fork();
  if (child == 0) {
    ::alarm(20);
    ::_exit(body());
  }
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

bool limit_files(rlim_t bytes) {
  const rlimit limit{bytes, bytes};
  return ::setrlimit(RLIMIT_FSIZE, &limit) == 0;
}

}  // namespace

TEST_CASE("shared memory beyond the limit of file sizes is an error and no signal") {
  LogCapture log;
  CHECK(in_child([&] {
          if (!limit_files(64 << 10)) return 1;
          if (SharedMemory::create("test", 1 << 20, Writers::both)) return 2;
          if (!log.has(LogLevel::warn, "ulimit -f")) return 3;
          log.clear();
          // Optional: one line for the user, and the plugin goes on without.
          if (CounterPage::create("host", "version", "") != nullptr) return 4;
          if (!log.has(LogLevel::warn, "ulimit -f") || log.warnings().size() != 1) return 5;
          return SharedMemory::create("test", 4096, Writers::both) ? 0 : 6;
        }) == 0);
}

TEST_CASE("a signal for the limit of file sizes that was the program's stays pending") {
  CHECK(in_child([] {
          sigset_t own;
          sigemptyset(&own);
          sigaddset(&own, SIGXFSZ);
          if (::sigprocmask(SIG_BLOCK, &own, nullptr) != 0 || ::raise(SIGXFSZ) != 0) return 1;
          { const NoFileSizeSignal none; }
          sigset_t pending;
          if (::sigpending(&pending) != 0 || sigismember(&pending, SIGXFSZ) != 1) return 2;
          return 0;
        }) == 0);
}

TEST_CASE("a refused memfd is told as such") {
  LogCapture log;
  for (const unsigned error : {EPERM, EACCES, ENOSYS})
    CHECK(in_child([&] {
            if (!refuse({SYS_memfd_create}, error)) return 1;
            if (SharedMemory::create("test", 4096, Writers::both)) return 2;
            return log.has(LogLevel::warn, "security profile") ? 0 : 3;
          }) == 0);
}

TEST_CASE("shared memory is reserved without fallocate, too") {
  CHECK(in_child([&] {
          if (!refuse({SYS_fallocate}, EPERM)) return 1;
          auto made = SharedMemory::create("test", 10'000, Writers::both);
          if (!made) return 2;
          for (std::size_t i = 0; i < 10'000; ++i)
            if (made->as<char>()[i] != 0) return 3;
          if (!limit_files(4096)) return 4;
          return SharedMemory::create("test", 10'000, Writers::both) ? 5 : 0;
        }) == 0);
}

// Its size and what is written to it are sealed, so that only its own mapping reserves it.
TEST_CASE("a page of counters is made and grows without fallocate, too") {
  LogCapture log;
  CHECK(in_child([&] {
          if (!refuse({SYS_fallocate}, EPERM)) return 1;
          auto made = SharedMemory::create_sparse("test", 1 << 20, Writers::creator);
          if (!made || made->reserve(100, 10'000) != Status::ok) return 2;
          if (CounterPage::create("host", "version", "") == nullptr) return 3;
          return log.warnings().empty() ? 0 : 4;
        }) == 0);
}

// As before Linux 5.14: by writing to the file, or, where that is sealed, not at all.
TEST_CASE("without fallocate and madvise memory that others may write grows, and no other does") {
  LogCapture log;
  CHECK(in_child([&] {
          if (!refuse({SYS_fallocate}, EPERM) || !refuse({SYS_madvise}, EINVAL)) return 1;
          auto open = SharedMemory::create_sparse("test", 1 << 20, Writers::both);
          if (!open || open->reserve(100, 10'000) != Status::ok) return 2;
          auto sealed = SharedMemory::create_sparse("test", 1 << 20, Writers::creator);
          if (!sealed || sealed->reserve(100, 10'000) == Status::ok) return 3;
          return log.has(LogLevel::warn, "seccomp") ? 0 : 4;
        }) == 0);
}

TEST_CASE("events are waited for by whatever call there is") {
  LogCapture log;
  struct Row {
    std::initializer_list<unsigned> refused;
    bool works;
  };
#ifdef SYS_epoll_wait
  constexpr unsigned kOldest = SYS_epoll_wait;
#else
  constexpr unsigned kOldest = SYS_epoll_pwait2;
#endif
  const Row rows[] = {{{}, true},
                      {{SYS_epoll_pwait2}, true},
                      {{SYS_epoll_pwait2, kOldest}, true},
                      {{SYS_epoll_pwait2, kOldest, SYS_epoll_pwait}, false}};
  for (const unsigned error : {ENOSYS, EPERM, EINVAL}) {
    for (const Row& row : rows) {
      CHECK(in_child([&] {
              const int epoll = ::epoll_create1(0), bell = ::eventfd(0, 0);
              epoll_event e{};
              e.events = EPOLLIN;
              e.data.fd = bell;
              if (::epoll_ctl(epoll, EPOLL_CTL_ADD, bell, &e) != 0) return 1;
              if (!refuse(row.refused, error)) return 2;
              EventWait waiter("test");
              std::array<epoll_event, 4> events;
              const std::int64_t before = now_ns();
              for (int i = 0; i < 20; ++i)
                if (waiter.wait(epoll, events, 1500) != 0) return 3;
              // Never a loop without a pause, whatever is refused.
              if (now_ns() - before < 20 * kMillisecond) return 4;
              if (::eventfd_write(bell, 1) != 0) return 5;
              const int n = waiter.wait(epoll, events, -1);
              if (n != (row.works ? 1 : 0)) return 6;
              if (row.works && events[0].data.fd != bell) return 7;
              return log.warnings().size() == (row.works ? 0u : 1u) ? 0 : 8;
            }) == 0);
    }
  }
}

TEST_CASE("descriptors that a session's thread cannot watch are told once, with the remedy") {
  struct Idle : Watched {
    std::int64_t attend(std::int64_t) override { return 0; }
  };
  LogCapture log;
  SpinLock lock;
  Idle first, second, third;
  const UnsharedFd bell = UnsharedFd::make([] { return ::eventfd(0, 0); });
  const UnsharedFd other = UnsharedFd::make([] { return ::eventfd(0, 0); });
  SessionThread thread(lock, [] { return false; });
  thread.watch(first, {bell.get()});
  CHECK(log.warnings().empty());
  bool refused = false;
  // A thread's filter is its own.
  std::thread([&] {
    refused = refuse({SYS_epoll_ctl}, ENOSPC);
    thread.watch(second, {bell.get(), other.get()});
    thread.watch(third, {other.get()});
  }).join();
  for (Idle* each : {&first, &second, &third}) thread.unwatch(*each);
  REQUIRE(refused);
  CHECK(log.warnings().size() == 1);
  CHECK(log.has(LogLevel::warn, "fs.epoll.max_user_watches"));
}

TEST_CASE("random numbers come without getrandom, too") {
  CHECK(in_child([] {
          if (!refuse({SYS_getrandom}, EPERM)) return 1;
          return random_nonce() != random_nonce() ? 0 : 2;
        }) == 0);
}

TEST_CASE("what helps against a refused call") {
  struct Row {
    int error;
    const char *thread, *memory;
  };
  const Row rows[] = {{EAGAIN, "ulimit -u", "free memory"}, {EPERM, "seccomp", "seccomp"},
                      {EACCES, "seccomp", "seccomp"},       {ENOSYS, "seccomp", "seccomp"},
                      {EMFILE, "ulimit -u", "ulimit -n"},   {ENFILE, "ulimit -u", "ulimit -n"},
                      {EFBIG, "ulimit -u", "ulimit -f"},    {ENOSPC, "ulimit -u", "free memory"},
                      {ENOMEM, "ulimit -u", "free memory"}, {EAFNOSUPPORT, "ulimit -u", "seccomp"}};
  for (const Row& row : rows) {
    CAPTURE(row.error);
    CHECK(why_no_thread(row.error).find(row.thread) != std::string::npos);
    CHECK(why_no_memory(row.error).find(row.memory) != std::string::npos);
    CHECK(why_no_memory(row.error).find("ulimit -v") == std::string::npos);
    // Of epoll_ctl this is a limit of its own.
    CHECK(why_not_watched(row.error).find(row.error == ENOSPC ? "fs.epoll.max_user_watches"
                                                              : row.memory) != std::string::npos);
  }
  CHECK(in_child([] {
          const rlimit limit{rlim_t{1} << 40, rlim_t{1} << 40};
          if (::setrlimit(RLIMIT_AS, &limit) != 0) return 1;
          if (why_no_thread(EAGAIN).find("ulimit -v") == std::string::npos) return 2;
          return why_no_memory(ENOMEM).find("ulimit -v") != std::string::npos ? 0 : 3;
        }) == 0);
}

TEST_CASE("what helps against a refused call of the control network") {
  struct Row {
    int error;
    const char *says, *not_that;
  };
  const Row rows[] = {
      {EPERM, "seccomp", "another one"},       {EACCES, "a firewall", "another one"},
      {ENOSYS, "seccomp", "firewall"},         {EMFILE, "ulimit -n", "another one"},
      {ENFILE, "ulimit -n", "another one"},    {ENOBUFS, "free memory", "another one"},
      {EADDRINUSE, "; another one", "seccomp"}};
  for (const Row& row : rows) {
    CAPTURE(row.error);
    const std::string text = why_no_network(row.error, "another one");
    CHECK(text.find(row.says) != std::string::npos);
    CHECK(text.find(row.not_that) == std::string::npos);
  }
  CHECK(why_no_network(ECONNREFUSED, "") == "Connection refused");
}

TEST_CASE("the limits of memory that there are are named") {
  CHECK(in_child([] {
          const rlimit limit{rlim_t{1} << 50, rlim_t{1} << 50};
          if (::setrlimit(RLIMIT_DATA, &limit) != 0) return 1;
          if (limits_of_memory().find("ulimit -d") == std::string::npos) return 2;
          if (::setrlimit(RLIMIT_AS, &limit) != 0) return 3;
          if (limits_of_memory().find("ulimit -v, ulimit -d") == std::string::npos) return 4;
          return why_no_memory(ENOMEM).find("ulimit -d") != std::string::npos ? 0 : 5;
        }) == 0);
}
