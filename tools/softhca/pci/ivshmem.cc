#include "tools/softhca/pci/ivshmem.h"

#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <utility>

namespace twinpath::softhca::pci {
namespace {

constexpr std::int64_t kVersion = 0, kOwnId = 0, kMemory = -1;

bool send(int socket, std::int64_t value, int descriptor = -1) {
  iovec data{&value, sizeof value};
  msghdr message{};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  if (descriptor >= 0) {
    message.msg_control = control;
    message.msg_controllen = sizeof control;
    cmsghdr* const header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int));
    std::memcpy(CMSG_DATA(header), &descriptor, sizeof descriptor);
  }
  return sendmsg(socket, &message, MSG_NOSIGNAL) == sizeof value;
}

}  // namespace

Ivshmem::Ivshmem(std::string path, UniqueFd listener, int memory, std::vector<UniqueFd> vectors)
    : path_(std::move(path)),
      listener_(std::move(listener)),
      memory_(memory),
      vectors_(std::move(vectors)) {}

Ivshmem::Ivshmem(Ivshmem&& o) noexcept
    : path_(std::exchange(o.path_, {})),
      listener_(std::move(o.listener_)),
      machine_(std::move(o.machine_)),
      memory_(o.memory_),
      vectors_(std::move(o.vectors_)) {}

Ivshmem::~Ivshmem() {
  if (!path_.empty()) (void)unlink(path_.c_str());
}

Result<Ivshmem> Ivshmem::listen(const std::string& path, int memory, unsigned vectors) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof address.sun_path) {
    std::fprintf(stderr,
                 "softhca: socket %s: the path is longer than %zu bytes; take a shorter one\n",
                 path.c_str(), sizeof address.sun_path - 1);
    return Status::bad_argument;
  }
  std::memcpy(address.sun_path, path.data(), path.size());
  UniqueFd listener(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!listener ||
      bind(listener.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0 ||
      ::listen(listener.get(), 1) != 0) {
    std::fprintf(stderr, "softhca: socket %s: %s\n", path.c_str(), std::strerror(errno));
    return Status::system;
  }
  std::vector<UniqueFd> made;
  for (unsigned i = 0; i < vectors; ++i) {
    made.emplace_back(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    if (!made.back()) return Status::system;
  }
  return Ivshmem(path, std::move(listener), memory, std::move(made));
}

bool Ivshmem::accept() {
  machine_ = UniqueFd(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
  if (!machine_) return false;
  bool sent = send(machine_.get(), kVersion) && send(machine_.get(), kOwnId) &&
              send(machine_.get(), kMemory, memory_);
  for (const UniqueFd& vector : vectors_) sent = sent && send(machine_.get(), kOwnId, vector.get());
  return sent;
}

void Ivshmem::interrupt(unsigned vector) const {
  (void)eventfd_write(vectors_[vector].get(), 1);  // full: it is pending anyhow
}

bool Ivshmem::gone() const {
  char byte = 0;
  const ssize_t got = recv(machine_.get(), &byte, 1, MSG_DONTWAIT | MSG_PEEK);
  return got == 0 || (got < 0 && errno != EAGAIN && errno != EINTR);
}

}  // namespace twinpath::softhca::pci
