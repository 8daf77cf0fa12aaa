#include "proxy/queues/session_thread.h"

#include <pthread.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <system_error>
#include <utility>

#include "plugin/base/blocked_signals.h"
#include "plugin/base/clock.h"
#include "plugin/base/event_wait.h"
#include "plugin/base/log.h"
#include "plugin/base/refused.h"

namespace twinpath {
namespace {

// How long to sleep for somebody who wants to be called at `next`, in microseconds; -1: for good.
int limit_us(std::int64_t next) {
  constexpr std::int64_t kMinute = 60'000'000;
  if (next == 0) return -1;
  return static_cast<int>(std::clamp<std::int64_t>((next - now_ns()) / 1000 + 1, 1000, kMinute));
}

bool add_to(int epoll, int fd, std::uint32_t what) {
  epoll_event e{};
  e.events = what | EPOLLET;
  e.data.fd = fd;
  return ::epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &e) == 0;
}

}  // namespace

void SessionThread::start() {
  const std::lock_guard changes(changes_);
  (void)start_thread();
}

bool SessionThread::start_thread() {
  if (thread_.joinable() || no_thread_) return !no_thread_;
  const BlockedSignals blocked;
  try {
    thread_ = std::thread([this] { run(); });
  } catch (const std::system_error& error) {
    no_thread_ = true;  // for good: the log has it once
    TP_WARN(
        "what is held back waits for the next call of the communicator, and a failed port is "
        "noticed only by callers that wait: no thread can be started: %s",
        why_no_thread(error.code().value()).c_str());
  }
  return !no_thread_;
}

// The log has it once, however many connections go without.
void SessionThread::say_missing(const char* what, const std::string& why) {
  if (std::exchange(said_missing_, true)) return;
  TP_WARN("a failed port is noticed only by callers that wait: %s: %s", what, why.c_str());
}

bool SessionThread::start_epoll() {
  if (epoll_ || no_epoll_) return !no_epoll_;
  const auto refused = [this](const char* what, const std::string& why) {
    say_missing(what, why);
    no_epoll_ = true;  // for good
    return false;
  };
  epoll_ = UnsharedFd::make([] { return ::epoll_create1(EPOLL_CLOEXEC); });
  bell_ = UnsharedFd::make([] { return ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK); });
  if (!epoll_ || !bell_) return refused("epoll_create1 or eventfd", why_no_memory(errno));
  if (!add_to(epoll_.get(), bell_.get(), EPOLLIN))
    return refused("epoll_ctl", why_not_watched(errno));
  const std::lock_guard hold(lock_);
  wake_up();  // out of the futex, which it will not sleep on again
  watching_ = true;
  return true;
}

SessionThread::~SessionThread() {
  if (!thread_.joinable()) return;
  {
    const std::lock_guard hold(lock_);
    stop_ = true;
    wake_up();
  }
  thread_.join();
}

void SessionThread::ring() {
  const std::uint64_t one = 1;
  (void)!::write(bell_.get(), &one, sizeof one);
}

void SessionThread::wake_up() {
  asleep_ = false;
  calls_.fetch_add(1, std::memory_order_release);
  if (watching_)
    ring();
  else
    calls_.notify_one();
}

void SessionThread::call(const Watched& who) {
  for (Entry& e : entries_)
    if (e.who == &who) e.next = 1;
  called_.store(true, std::memory_order_release);
  if (watching_) ring();
}

void SessionThread::watch(Watched& who, const std::vector<int>& fds) {
  const std::lock_guard changes(changes_);
  if (!start_thread() || !start_epoll()) return;
  // First: what the descriptors tell is for somebody.
  {
    const std::lock_guard hold(lock_);
    entries_.push_back({&who, fds});
  }
  // Told once of each change: who does not read all of it has others that will.
  for (const int fd : fds) {
    if (std::find(watched_.begin(), watched_.end(), fd) == watched_.end() &&
        !add_to(epoll_.get(), fd, EPOLLIN | EPOLLRDHUP))
      say_missing("epoll_ctl", why_not_watched(errno));
    watched_.push_back(fd);
  }
  const std::lock_guard hold(lock_);
  call(who);
}

void SessionThread::unwatch(Watched& who) {
  const std::lock_guard changes(changes_);
  Entry gone;
  {
    const std::lock_guard hold(lock_);
    const auto at = std::find_if(entries_.begin(), entries_.end(),
                                 [&](const Entry& e) { return e.who == &who; });
    if (at == entries_.end()) return;
    gone = std::move(*at);
    entries_.erase(at);
  }
  for (const int fd : gone.fds) {
    const auto at = std::find(watched_.begin(), watched_.end(), fd);
    if (at != watched_.end()) watched_.erase(at);
    if (std::find(watched_.begin(), watched_.end(), fd) == watched_.end())
      (void)::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, fd, nullptr);
  }
}

void SessionThread::run() {
  (void)::pthread_setname_np(::pthread_self(), "twinpath-proxy");
  (void)::prctl(PR_SET_TIMERSLACK, 1000UL);  // ns; the default of 50 us is most of the bound
  EventWait waiter("the thread that notices failed ports");
  std::array<epoll_event, 16> events;
  std::int64_t next = 0;
  bool watching = false;
  for (int idle = 0;;) {
    // Read before asleep_ is set: a wake_up after that changes it, and no sleep begins.
    const std::uint32_t calls = calls_.load(std::memory_order_acquire);
    bool sleep = false;
    if (lock_.try_lock()) {
      const std::lock_guard hold(lock_, std::adopt_lock);
      if (stop_) return;
      idle = turn_() ? 0 : std::min(idle + 1, kIdleTurns);
      sleep = asleep_ = idle == kIdleTurns;
      watching = watching_;
      turns_.fetch_add(1, std::memory_order_relaxed);
    }
    if (watching) {
      const int n = waiter.wait(epoll_.get(), events, sleep ? limit_us(next) : 0);
      std::uint64_t rung = 0;
      if (n > 0) (void)!::read(bell_.get(), &rung, sizeof rung);
      const bool others = n > 1 || (n == 1 && events[0].data.fd != bell_.get());
      const std::int64_t now = now_ns();
      if (others || called_.exchange(false, std::memory_order_acquire) ||
          (next != 0 && next <= now))
        next = look({events.data(), static_cast<std::size_t>(n)}, now);
    } else if (sleep) {
      calls_.wait(calls, std::memory_order_acquire);
    }
    const bool woken = calls_.load(std::memory_order_relaxed) != calls;
    if (sleep && !woken) continue;
    if (sleep) idle = 0;
    // What woke it has just been held.
    std::this_thread::sleep_for(std::chrono::microseconds(kTurnUs));
  }
}

std::int64_t SessionThread::look(std::span<const epoll_event> fired, std::int64_t now) {
  const std::lock_guard hold(lock_);
  // A look costs some system calls, and a host may have a thousand connections.
  const auto concerned = [&](const Entry& e) {
    return (e.next != 0 && e.next <= now) ||
           std::any_of(fired.begin(), fired.end(), [&](const epoll_event& event) {
             return std::find(e.fds.begin(), e.fds.end(), event.data.fd) != e.fds.end();
           });
  };
  std::int64_t next = 0;
  for (Entry& e : entries_) {
    if (concerned(e)) e.next = e.who->attend(now);
    if (e.next != 0 && (next == 0 || e.next < next)) next = e.next;
  }
  return next;
}

}  // namespace twinpath
