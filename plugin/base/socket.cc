#include "plugin/base/socket.h"

#include <arpa/inet.h>
#include <net/if.h>
#include <netinet/tcp.h>
#include <poll.h>

#include <array>
#include <cerrno>
#include <cstring>

#include "plugin/base/log.h"

namespace twinpath {
namespace {

std::string error_text(int error) {
  std::array<char, 128> buffer{};
  return strerror_r(error, buffer.data(), buffer.size());
}

bool would_block(int error) { return error == EAGAIN || error == EWOULDBLOCK || error == EINTR; }

void set_option(int fd, int level, int name, int value) {
  // Best effort: a kernel without the option only notices a dead peer later.
  (void)setsockopt(fd, level, name, &value, sizeof value);
}

UnsharedFd open_socket(const SocketAddress& address) {
  return UnsharedFd::make([&] {
    return ::socket(address.sa.sa_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  });
}

bool same_address(const SocketAddress& a, const SocketAddress& b) {
  if (a.sa.sa_family != b.sa.sa_family) return false;
  if (a.sa.sa_family == AF_INET) {
    return a.in4.sin_port == b.in4.sin_port && a.in4.sin_addr.s_addr == b.in4.sin_addr.s_addr;
  }
  return a.in6.sin6_port == b.in6.sin6_port &&
         std::memcmp(&a.in6.sin6_addr, &b.in6.sin6_addr, sizeof(in6_addr)) == 0;
}

}  // namespace

socklen_t SocketAddress::length() const {
  return sa.sa_family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
}

std::string SocketAddress::text() const {
  std::array<char, INET6_ADDRSTRLEN> host{};
  if (sa.sa_family == AF_INET) {
    inet_ntop(AF_INET, &in4.sin_addr, host.data(), host.size());
    return std::string(host.data()) + ":" + std::to_string(ntohs(in4.sin_port));
  }
  if (sa.sa_family != AF_INET6) return "(no address)";
  inet_ntop(AF_INET6, &in6.sin6_addr, host.data(), host.size());
  std::string out = "[" + std::string(host.data());
  if (in6.sin6_scope_id != 0) {
    std::array<char, IF_NAMESIZE> name{};
    out += '%';
    out += if_indextoname(in6.sin6_scope_id, name.data()) != nullptr
               ? std::string(name.data())
               : std::to_string(in6.sin6_scope_id);
  }
  return out + "]:" + std::to_string(ntohs(in6.sin6_port));
}

Result<TcpListener> TcpListener::open(const Interface& interface) {
  TcpListener listener;
  listener.address_ = interface.address;
  const auto failed = [&](const char* what) {
    const std::string why = error_text(errno);
    TP_WARN("cannot listen on interface %s, %s: %s: %s; choose another with NCCL_SOCKET_IFNAME",
            interface.name.c_str(), interface.address.text().c_str(), what, why.c_str());
    return Status::system;
  };
  listener.fd_ = open_socket(interface.address);
  if (!listener.fd_) return failed("socket");
  if (::bind(listener.fd(), &listener.address_.sa, listener.address_.length()) != 0) {
    return failed("bind");
  }
  // Every rank of a large job may connect to one listener at the same moment.
  if (::listen(listener.fd(), 1024) != 0) return failed("listen");
  socklen_t length = sizeof(sockaddr_in6);
  if (::getsockname(listener.fd(), &listener.address_.sa, &length) != 0) {
    return failed("getsockname");
  }
  return listener;
}

Result<TcpSocket> TcpListener::accept() {
  SocketAddress peer;
  socklen_t length = sizeof(sockaddr_in6);
  UnsharedFd fd = UnsharedFd::make(
      [&] { return ::accept4(fd_.get(), &peer.sa, &length, SOCK_NONBLOCK | SOCK_CLOEXEC); });
  if (fd) return TcpSocket(std::move(fd), peer);
  switch (errno) {
    // A connection that died in the queue, or a network error that Linux passes on from it, is
    // that peer's matter, not the listener's.
    case EAGAIN:
    case EINTR:
    case ECONNABORTED:
    case EPROTO:
    case ENETDOWN:
    case EHOSTDOWN:
    case EHOSTUNREACH:
    case ENETUNREACH:
      return Status::again;
    case EMFILE:
    case ENFILE:
      TP_WARN("cannot accept on %s: %s; raise the limit of open files (ulimit -n)",
              address_.text().c_str(), error_text(errno).c_str());
      return Status::system;
    default:
      TP_WARN("cannot accept on %s: %s", address_.text().c_str(), error_text(errno).c_str());
      return Status::system;
  }
}

Result<TcpSocket> TcpSocket::connect(const SocketAddress& to) {
  if (to.sa.sa_family != AF_INET && to.sa.sa_family != AF_INET6) return Status::bad_argument;
  UnsharedFd fd = open_socket(to);
  if (!fd) {
    TP_WARN("cannot make a socket to reach %s: %s; see the limit of open files (ulimit -n)",
            to.text().c_str(), error_text(errno).c_str());
    return Status::system;
  }
  TcpSocket socket(std::move(fd), to);
  // A refusal may already be known; finish_connect() reports it, so that callers have one place
  // where connecting fails.
  if (::connect(socket.fd(), &to.sa, to.length()) != 0 && errno != EINPROGRESS && errno != EINTR) {
    socket.connect_error_ = errno;
  }
  return socket;
}

Status TcpSocket::finish_connect(std::string& why) {
  if (connect_error_ == 0) {
    pollfd p{fd_.get(), POLLOUT, 0};
    const int ready = ::poll(&p, 1, 0);
    if (ready == 0 || (ready < 0 && errno == EINTR)) return Status::again;
    socklen_t length = sizeof connect_error_;
    if (ready < 0 || ::getsockopt(fd_.get(), SOL_SOCKET, SO_ERROR, &connect_error_, &length) != 0) {
      connect_error_ = errno;
    }
  }
  if (connect_error_ != 0) {
    why = error_text(connect_error_);
    return Status::remote;
  }
  // On one host a connect to a port that nobody listens on can meet itself, when the kernel
  // happens to pick that very port as the local one.
  SocketAddress local;
  socklen_t length = sizeof(sockaddr_in6);
  if (::getsockname(fd_.get(), &local.sa, &length) == 0 && same_address(local, peer_)) {
    connect_error_ = ECONNREFUSED;
    why = error_text(connect_error_);
    return Status::remote;
  }
  return Status::ok;
}

Status TcpSocket::send_part(std::span<const std::uint8_t> bytes, std::size_t& done) {
  while (done < bytes.size()) {
    const ssize_t n =
        ::send(fd_.get(), bytes.data() + done, bytes.size() - done, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n >= 0) {
      done += static_cast<std::size_t>(n);
    } else if (errno == EPIPE) {
      return Status::closed;
    } else if (errno != EINTR) {
      return would_block(errno) ? Status::again : Status::remote;
    }
  }
  return Status::ok;
}

Status TcpSocket::recv_part(std::span<std::uint8_t> bytes, std::size_t& done) {
  while (done < bytes.size()) {
    const ssize_t n = ::recv(fd_.get(), bytes.data() + done, bytes.size() - done, MSG_DONTWAIT);
    if (n > 0) {
      done += static_cast<std::size_t>(n);
    } else if (n == 0) {
      return Status::closed;
    } else if (errno != EINTR) {
      return would_block(errno) ? Status::again : Status::remote;
    }
  }
  return Status::ok;
}

Status TcpSocket::peek() const {
  std::uint8_t byte = 0;
  const ssize_t n = ::recv(fd_.get(), &byte, 1, MSG_PEEK | MSG_DONTWAIT);
  if (n > 0) return Status::again;
  if (n == 0) return Status::closed;
  return would_block(errno) ? Status::ok : Status::remote;
}

void TcpSocket::set_control_options() {
  const int fd = fd_.get();
  set_option(fd, IPPROTO_TCP, TCP_NODELAY, 1);
  // A host that vanished without a word is noticed within 5 seconds: by the probes when nothing
  // is under way, by the user timeout when unacknowledged data is.
  set_option(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
  set_option(fd, IPPROTO_TCP, TCP_KEEPIDLE, 1);
  set_option(fd, IPPROTO_TCP, TCP_KEEPINTVL, 1);
  set_option(fd, IPPROTO_TCP, TCP_KEEPCNT, 3);
  set_option(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, 4000);
}

}  // namespace twinpath
