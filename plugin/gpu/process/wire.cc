// Messages between a program and its copy process, and sleeping across the two.
#include "plugin/gpu/process/wire.h"

#include <linux/futex.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <climits>
#include <cstring>

#include "plugin/gpu/process/rings.h"

namespace twinpath::gpu::process {

bool send_message(int socket, const void* message, std::size_t bytes, int fd, bool wait) {
  iovec part{const_cast<void*>(message), bytes};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof fd)] = {};
  msghdr h{};
  h.msg_iov = &part;
  h.msg_iovlen = 1;
  if (fd >= 0) {
    h.msg_control = control;
    h.msg_controllen = sizeof control;
    cmsghdr* c = CMSG_FIRSTHDR(&h);
    c->cmsg_level = SOL_SOCKET;
    c->cmsg_type = SCM_RIGHTS;
    c->cmsg_len = CMSG_LEN(sizeof fd);
    std::memcpy(CMSG_DATA(c), &fd, sizeof fd);
  }
  ssize_t n = 0;
  do {
    n = sendmsg(socket, &h, MSG_NOSIGNAL | (wait ? 0 : MSG_DONTWAIT));
  } while (n < 0 && errno == EINTR);
  return n == static_cast<ssize_t>(bytes);
}

Status receive_message(int socket, void* message, std::size_t bytes, UniqueFd* fd, bool wait) {
  iovec part{message, bytes};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr h{};
  h.msg_iov = &part;
  h.msg_iovlen = 1;
  h.msg_control = control;
  h.msg_controllen = sizeof control;
  ssize_t n = 0;
  do {
    n = recvmsg(socket, &h, (wait ? 0 : MSG_DONTWAIT) | MSG_CMSG_CLOEXEC);
  } while (n < 0 && errno == EINTR);
  if (n < 0) return errno == EAGAIN ? Status::again : Status::closed;
  if (cmsghdr* c = CMSG_FIRSTHDR(&h); c != nullptr && c->cmsg_type == SCM_RIGHTS) {
    int got = -1;
    std::memcpy(&got, CMSG_DATA(c), sizeof got);
    UniqueFd owned(got);
    if (fd != nullptr) *fd = std::move(owned);
  }
  return n == static_cast<ssize_t>(bytes) ? Status::ok : Status::closed;
}

void sleep_on(std::atomic<std::uint32_t>& word) {
  (void)::syscall(SYS_futex, &word, FUTEX_WAIT, 1u, nullptr, nullptr, 0);
}

void wake_up(std::atomic<std::uint32_t>& word) {
  word.store(0);
  (void)::syscall(SYS_futex, &word, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

}  // namespace twinpath::gpu::process
