#include "plugin/fabric/soft/wire.h"

#include <fcntl.h>
#include <linux/sockios.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>

#include "plugin/base/log.h"

namespace twinpath::soft {
namespace {

constexpr std::size_t kMaxWaiting = 4096;
// Descriptors that a message may bring and that are closed here.  The kernel allows 253 in one and
// closes by itself those that have no room.
constexpr std::size_t kAnyFds = 16;

Status try_to_send(int socket, const Message& m, const std::array<int, kMessageFds>& fds) {
  iovec iov{const_cast<Message*>(&m), sizeof m};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof fds)] = {};
  msghdr h{};
  h.msg_iov = &iov;
  h.msg_iovlen = 1;
  std::size_t count = 0;
  while (count < fds.size() && fds[count] >= 0) ++count;
  if (count != 0) {
    h.msg_control = control;
    h.msg_controllen = CMSG_SPACE(count * sizeof(int));
    cmsghdr* c = CMSG_FIRSTHDR(&h);
    c->cmsg_level = SOL_SOCKET;
    c->cmsg_type = SCM_RIGHTS;
    c->cmsg_len = CMSG_LEN(count * sizeof(int));
    std::memcpy(CMSG_DATA(c), fds.data(), count * sizeof(int));
  }
  ssize_t n = 0;
  do {
    n = sendmsg(socket, &h, MSG_NOSIGNAL | MSG_DONTWAIT);
  } while (n < 0 && errno == EINTR);
  if (n == static_cast<ssize_t>(sizeof m)) return Status::ok;
  if (n < 0 && errno == ETOOMANYREFS)
    TP_WARN(
        "soft HCA: more descriptors than may be open are on their way to processes that do not "
        "read; raise the limit of open files (ulimit -n)");
  return n < 0 && (errno == EAGAIN || errno == ENOBUFS) ? Status::again : Status::closed;
}

}  // namespace

void Wire::watch(bool for_room) const {
  epoll_event e{};
  e.events = for_room ? EPOLLIN | EPOLLOUT : EPOLLIN;
  e.data.fd = fd();
  (void)epoll_ctl(epoll_, EPOLL_CTL_MOD, fd(), &e);
}

bool Wire::keep(const Message& message, const std::array<int, kMessageFds>& fds) {
  if (waiting_.size() >= kMaxWaiting) return false;
  Waiting w{message, {}};
  for (std::size_t i = 0; i < fds.size(); ++i) {
    if (fds[i] < 0) continue;
    w.fds[i] = UniqueFd(fcntl(fds[i], F_DUPFD_CLOEXEC, 0));
    if (!w.fds[i]) return false;
  }
  waiting_.push_back(std::move(w));
  return true;
}

bool Wire::send(const Message& message, std::array<int, kMessageFds> fds) {
  Message m = message;
  m.magic = kMessageMagic;
  const std::lock_guard hold(lock_);
  if (broken_) return false;
  if (waiting_.empty()) {
    const Status s = try_to_send(fd(), m, fds);
    if (s != Status::again) return s == Status::ok;
  }
  if (keep(m, fds)) {
    if (waiting_.size() == 1) watch(true);
    return true;
  }
  // What comes later must not overtake what is missing now.
  TP_WARN(
      "soft HCA: %zu messages wait for a process that reads none, and no more can be kept; its "
      "connections end",
      waiting_.size());
  broken_ = true;
  return false;
}

void Wire::send_wake(std::uint32_t slot) const {
  Message m{};
  m.magic = kMessageMagic;
  m.kind = MessageKind::wake;
  m.slot = slot;
  // A full socket means that its engine has enough to wake up for.
  (void)try_to_send(fd(), m, {-1, -1});
}

bool Wire::is_read() const {
  int unread = 0;  // linux: net/unix/af_unix.c, unix_outq_len()
  return ::ioctl(fd(), SIOCOUTQ, &unread) != 0 || unread == 0;
}

bool Wire::flush() {
  const std::lock_guard hold(lock_);
  while (!broken_ && !waiting_.empty()) {
    const Waiting& w = waiting_.front();
    const Status s = try_to_send(fd(), w.message, {w.fds[0].get(), w.fds[1].get()});
    if (s == Status::again) return true;
    if (s != Status::ok) broken_ = true;
    waiting_.pop_front();
  }
  if (broken_) return false;
  watch(false);
  return true;
}

Status Wire::receive(Received& into) const {
  iovec iov{&into.message, sizeof into.message};
  alignas(cmsghdr) char control[CMSG_SPACE(kAnyFds * sizeof(int))] = {};
  msghdr h{};
  h.msg_iov = &iov;
  h.msg_iovlen = 1;
  h.msg_control = control;
  h.msg_controllen = sizeof control;
  const ssize_t n = recvmsg(fd(), &h, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  if (n < 0) return errno == EAGAIN || errno == EINTR ? Status::again : Status::closed;
  std::size_t came = 0;
  for (cmsghdr* c = CMSG_FIRSTHDR(&h); c != nullptr; c = CMSG_NXTHDR(&h, c)) {
    if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS) continue;
    const std::size_t count = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (std::size_t i = 0; i < count; ++i) {
      int got = -1;
      std::memcpy(&got, CMSG_DATA(c) + i * sizeof got, sizeof got);
      UniqueFd owned(got);  // all that came are ours to close
      if (came < into.fds.size()) into.fds[came] = std::move(owned);
      ++came;
    }
  }
  if (n == 0) return Status::closed;
  if (n != static_cast<ssize_t>(sizeof into.message) || into.message.magic != kMessageMagic ||
      came > into.fds.size())
    return Status::closed;
  if ((h.msg_flags & MSG_CTRUNC) != 0) {
    TP_WARN(
        "soft HCA: descriptors of process %d could not be taken; raise the limit of open files "
        "(ulimit -n)",
        into.message.pid);
    return Status::closed;
  }
  return Status::ok;
}

}  // namespace twinpath::soft
