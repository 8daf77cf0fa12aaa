#include "proxy/connect/attendant.h"

#include <pthread.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <span>
#include <string>
#include <system_error>
#include <utility>

#include "plugin/base/blocked_signals.h"
#include "plugin/base/clock.h"
#include "plugin/base/event_wait.h"
#include "plugin/base/log.h"
#include "plugin/base/refused.h"

namespace twinpath {

// The log has it once, however many connections go without.
void Attendant::say_missing(const char* what, const std::string& why) {
  if (std::exchange(said_missing_, true)) return;
  TP_WARN("a failed port is noticed only by callers that wait: %s: %s", what, why.c_str());
}

bool Attendant::start() {
  if (thread_.joinable() || stop_) return !stop_;
  const auto do_without = [this](const char* what, const std::string& why) {
    say_missing(what, why);
    stop_ = true;  // for good
    return false;
  };
  epoll_ = UnsharedFd::make([] { return ::epoll_create1(EPOLL_CLOEXEC); });
  bell_ = UnsharedFd::make([] { return ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK); });
  if (!epoll_ || !bell_) return do_without("epoll_create1 or eventfd", why_no_memory(errno));
  epoll_event e{};
  e.events = EPOLLIN | EPOLLET;
  e.data.fd = bell_.get();
  if (::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, bell_.get(), &e) != 0)
    return do_without("epoll_ctl", why_not_watched(errno));
  const BlockedSignals blocked;
  try {
    thread_ = std::thread([this] { run(); });
  } catch (const std::system_error& error) {
    return do_without("no thread can be started", why_no_thread(error.code().value()));
  }
  return true;
}

Attendant::~Attendant() {
  if (!thread_.joinable()) return;
  {
    std::lock_guard hold(lock_);
    stop_ = true;
  }
  wake();
  thread_.join();
}

void Attendant::wake() {
  if (!bell_) return;
  const std::uint64_t one = 1;
  (void)!::write(bell_.get(), &one, sizeof one);
}

void Attendant::call(const Attended& who) {
  for (Entry& e : entries_)
    if (e.who == &who) e.next = 1;
  wake();
}

void Attendant::add(Attended& who, const std::vector<int>& fds) {
  const std::lock_guard changes(changes_);
  if (!start()) return;
  // First: what the descriptors tell is for somebody.
  {
    const std::lock_guard hold(lock_);
    entries_.push_back({&who, fds, 1});
  }
  // Told once of each change: who does not read all of it has others that will.
  for (const int fd : fds) {
    epoll_event e{};
    e.events = EPOLLIN | EPOLLRDHUP | EPOLLET;
    e.data.fd = fd;
    if (std::find(watched_.begin(), watched_.end(), fd) == watched_.end() &&
        ::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &e) != 0)
      say_missing("epoll_ctl", why_not_watched(errno));
    watched_.push_back(fd);
  }
  wake();
}

void Attendant::remove(Attended& who) {
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

void Attendant::run() {
  (void)::pthread_setname_np(::pthread_self(), "twinpath-attend");
  EventWait waiter("the thread that notices failed ports");
  int wait_us = -1;
  for (;;) {
    std::array<epoll_event, 16> events;
    const int n = waiter.wait(epoll_.get(), events, wait_us);
    const std::span fired(events.data(), static_cast<std::size_t>(n));
    std::uint64_t rung = 0;
    (void)!::read(bell_.get(), &rung, sizeof rung);
    const std::int64_t now = now_ns();
    std::int64_t next = 0;
    {
      const std::lock_guard hold(lock_);
      if (stop_) return;
      // A look costs some system calls, and a host may have a thousand connections.
      const auto concerned = [&](const Entry& e) {
        return (e.next != 0 && e.next <= now) ||
               std::any_of(fired.begin(), fired.end(), [&](const epoll_event& event) {
                 return std::find(e.fds.begin(), e.fds.end(), event.data.fd) != e.fds.end();
               });
      };
      for (Entry& e : entries_) {
        if (concerned(e)) e.next = e.who->attend(now);
        if (e.next != 0 && (next == 0 || e.next < next)) next = e.next;
      }
    }
    constexpr std::int64_t kMinute = 60'000'000;
    wait_us =
        next == 0
            ? -1
            : static_cast<int>(std::clamp<std::int64_t>((next - now) / 1000 + 1, 1000, kMinute));
  }
}

}  // namespace twinpath
