#include "plugin/fabric/soft/peer.h"

#include <sys/mman.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>

namespace twinpath::soft {

Peer::~Peer() {
  if (shared != nullptr) munmap(shared, sizeof(SharedTables));
}

std::shared_ptr<ImportedAllocation> Peer::allocation(std::uint64_t alloc_id, std::uint32_t key,
                                                     bool& failed) {
  std::lock_guard hold(lock);
  auto& slot_of = allocations[alloc_id];
  if (!slot_of) {
    slot_of = std::make_shared<RemoteAllocation>();
    Message m{};
    m.kind = MessageKind::export_request;
    m.a = alloc_id;
    m.b = key;
    if (!send_message(socket.get(), m)) {
      slot_of->state.store(RemoteAllocation::State::failed, std::memory_order_release);
    }
  }
  switch (slot_of->state.load(std::memory_order_acquire)) {
    case RemoteAllocation::State::requested:
      return nullptr;
    case RemoteAllocation::State::failed:
      failed = true;
      return nullptr;
    case RemoteAllocation::State::ready:
      break;
  }
  return slot_of->mapping;
}

bool send_message(int socket, const Message& message, int fd) {
  Message m = message;
  m.magic = kMessageMagic;
  iovec iov{&m, sizeof m};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr h{};
  h.msg_iov = &iov;
  h.msg_iovlen = 1;
  if (fd >= 0) {
    h.msg_control = control;
    h.msg_controllen = sizeof control;
    cmsghdr* c = CMSG_FIRSTHDR(&h);
    c->cmsg_level = SOL_SOCKET;
    c->cmsg_type = SCM_RIGHTS;
    c->cmsg_len = CMSG_LEN(sizeof(int));
    std::memcpy(CMSG_DATA(c), &fd, sizeof fd);
  }
  // The socket's buffer holds hundreds of these; a full one means that the peer's engine has
  // stopped, so a short blocking send is the right back-pressure.
  return sendmsg(socket, &h, MSG_NOSIGNAL) == static_cast<ssize_t>(sizeof m);
}

void send_wake(int socket, std::uint32_t slot) {
  Message m{};
  m.magic = kMessageMagic;
  m.kind = MessageKind::wake;
  m.slot = slot;
  // A full socket means that its engine has enough to wake up for.
  (void)!send(socket, &m, sizeof m, MSG_NOSIGNAL | MSG_DONTWAIT);
}

Status receive_message(int socket, Message& m, UniqueFd& fd) {
  iovec iov{&m, sizeof m};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr h{};
  h.msg_iov = &iov;
  h.msg_iovlen = 1;
  h.msg_control = control;
  h.msg_controllen = sizeof control;
  ssize_t n = recvmsg(socket, &h, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  if (n < 0) return errno == EAGAIN || errno == EINTR ? Status::again : Status::closed;
  for (cmsghdr* c = CMSG_FIRSTHDR(&h); c != nullptr; c = CMSG_NXTHDR(&h, c)) {
    if (c->cmsg_level == SOL_SOCKET && c->cmsg_type == SCM_RIGHTS &&
        c->cmsg_len == CMSG_LEN(sizeof(int))) {
      int got = -1;
      std::memcpy(&got, CMSG_DATA(c), sizeof got);
      fd = UniqueFd(got);
    }
  }
  if (n != static_cast<ssize_t>(sizeof m) || m.magic != kMessageMagic) return Status::closed;
  return Status::ok;
}

}  // namespace twinpath::soft
