#include "plugin/base/socket.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <net/if.h>
#include <netinet/tcp.h>
#include <poll.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

#include "plugin/base/clock.h"
#include "plugin/base/log.h"
#include "plugin/base/refused.h"

namespace twinpath {
namespace {

constexpr std::int64_t kRetryPause = 500 * kMillisecond;
constexpr int kGiveUpMs = 24 * 3600 * 1000;
constexpr int kLastWordsMs = 30 * 1000;
constexpr int kKeepIdleSeconds = 1, kKeepIntervalSeconds = 30;
// The kernel counts silence in its ticks, of 10 ms at most.
constexpr std::int64_t kTick = 10 * kMillisecond;

std::string error_text(int error) {
  std::array<char, 128> buffer{};
  return strerror_r(error, buffer.data(), buffer.size());
}

// Of a moment, not of the connection.
bool would_block(int error) {
  return error == EAGAIN || error == EWOULDBLOCK || error == EINTR || error == ENOBUFS ||
         error == ENOMEM;
}

void set_option(int fd, int level, int name, int value) {
  // Best effort: a kernel without the option only notices a dead peer later.
  (void)setsockopt(fd, level, name, &value, sizeof value);
}

UnsharedFd open_socket(const SocketAddress& address) {
  return UnsharedFd::make([&] {
    return ::socket(address.sa.sa_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  });
}

// Whether the other host was not reached, which may be different next time.
bool unanswered(int error) {
  return error == ETIMEDOUT || error == EHOSTUNREACH || error == EHOSTDOWN ||
         error == ENETUNREACH || error == ENETDOWN;
}

PeerSign sign_of(int code) {
  switch (code) {
    case SocketEnd::kEndOfFile:
      return PeerSign::ended;
    case ECONNRESET:
    case ECONNABORTED:
    case ENOTCONN:
    case EPIPE:
      return PeerSign::reset;
    default:
      return PeerSign::unreachable;
  }
}

// Of a call that is refused the peer knows nothing; told once.
Status note(int error, SocketEnd& end, const SocketAddress& peer) {
  const bool first = end.code() == 0;
  end.note(error);
  if (!is_refusal(error)) return Status::remote;
  if (first)
    TP_WARN("no bytes go to or come from %s: %s", peer.text().c_str(),
            why_no_network(error, "").c_str());
  return Status::system;
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

bool SpareFd::lend() {
  const std::lock_guard hold(mutex_);
  const bool had = static_cast<bool>(fd_);
  fd_.reset();
  return had;
}

void SpareFd::restore() {
  const std::lock_guard hold(mutex_);
  if (!fd_) fd_ = UnsharedFd::make([] { return ::open("/dev/null", O_RDONLY | O_CLOEXEC); });
}

Result<TcpListener> TcpListener::open(const Interface& interface) {
  TcpListener listener;
  listener.address_ = interface.address;
  const auto failed = [&](const char* what) {
    const std::string why = why_no_network(errno, "choose another with NCCL_SOCKET_IFNAME");
    TP_WARN("cannot listen on interface %s, %s: %s: %s", interface.name.c_str(),
            interface.address.text().c_str(), what, why.c_str());
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
    case ENFILE: {
      const std::string why = why_no_network(errno, "");
      // The system says so whether or not somebody waits.
      pollfd p{fd_.get(), POLLIN, 0};
      if (::poll(&p, 1, 0) == 0) return Status::again;
      TP_WARN("cannot accept a connection on %s: %s", address_.text().c_str(), why.c_str());
      return Status::no_memory;
    }
    default:
      TP_WARN("cannot accept a connection on %s: %s", address_.text().c_str(),
              why_no_network(errno, "see the kernel log (dmesg)").c_str());
      return Status::system;
  }
}

Result<TcpSocket> TcpSocket::connect(const SocketAddress& to) {
  if (to.sa.sa_family != AF_INET && to.sa.sa_family != AF_INET6) return Status::bad_argument;
  UnsharedFd fd = open_socket(to);
  if (!fd) {
    TP_WARN("cannot make a socket to reach %s: %s", to.text().c_str(),
            why_no_network(errno, "see the kernel log (dmesg)").c_str());
    return Status::system;
  }
  TcpSocket socket(std::move(fd), to);
  // How long is the caller's to say; the kernel is to go on asking (for ten minutes at least).
  set_option(socket.fd(), IPPROTO_TCP, TCP_SYNCNT, 12);
  // A refusal may already be known; finish_connect() reports it, so that callers have one place
  // where connecting fails.
  if (::connect(socket.fd(), &to.sa, to.length()) != 0 && errno != EINPROGRESS && errno != EINTR) {
    socket.connect_error_ = errno;
  }
  return socket;
}

Status TcpSocket::finish_connect(std::string& why, std::int64_t retry_until) {
  if (retry_at_ != 0) {
    if (now_ns() < retry_at_) return Status::again;
    auto anew = connect(peer_);
    if (!anew) return anew.status();
    *this = std::move(anew).take();
  }
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
    why = why_no_network(connect_error_, "");
    const std::int64_t now = now_ns();
    if (!unanswered(connect_error_) || now >= retry_until) return Status::remote;
    retry_at_ = now + kRetryPause;
    fd_.reset();
    return Status::again;
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

void TcpSocket::connect_anew() {
  fd_.reset();
  connect_error_ = 0;
  retry_at_ = now_ns() + kRetryPause;
}

Status TcpSocket::send_part(std::span<const std::uint8_t> bytes, std::size_t& done) {
  while (done < bytes.size()) {
    const ssize_t n =
        ::send(fd_.get(), bytes.data() + done, bytes.size() - done, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n >= 0) {
      done += static_cast<std::size_t>(n);
    } else if (errno != EINTR) {
      const int error = errno;
      if (would_block(error)) return Status::again;
      const Status s = note(error, end_, peer_);
      return error == EPIPE ? Status::closed : s;
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
      end_.note(SocketEnd::kEndOfFile);
      return Status::closed;
    } else if (errno != EINTR) {
      const int error = errno;
      if (would_block(error)) return Status::again;
      return note(error, end_, peer_);
    }
  }
  return Status::ok;
}

PeerSign TcpSocket::look() const {
  // What came before an end is still there to be read.
  if (next_byte() >= 0) return PeerSign::talking;
  return end_.code() == 0 ? PeerSign::quiet : sign_of(end_.code());
}

int TcpSocket::next_byte() const {
  std::uint8_t byte = 0;
  const ssize_t n = ::recv(fd_.get(), &byte, 1, MSG_PEEK | MSG_DONTWAIT);
  if (n > 0) return byte;
  if (n == 0) {
    end_.note(SocketEnd::kEndOfFile);
  } else if (const int error = errno; !would_block(error)) {
    end_.note(error);
  }
  return -1;
}

std::int64_t TcpSocket::silence_ms() const {
  tcp_info info{};
  socklen_t length = sizeof info;
  if (::getsockopt(fd_.get(), IPPROTO_TCP, TCP_INFO, &info, &length) != 0) return 0;
  return std::min(info.tcpi_last_ack_recv, info.tcpi_last_data_recv);
}

void TcpSocket::ask(std::int64_t now, std::int64_t every_ns) const {
  const std::int64_t silence = silence_ms() * kMillisecond;
  const bool owed = asked_.get() != 0 && now - silence < asked_.get() - kTick;
  // A question may be lost, or its answer.
  const std::int64_t pause = owed ? std::min(every_ns, kSecond) : every_ns;
  if (silence < kKeepIdleSeconds * kSecond || now - last_asked_.get() < pause) return;
  if (!owed) asked_.set(now);
  last_asked_.set(now);
  // Setting the idle time, to whatever value, has Linux look at its keepalive timer anew
  // (tcp_sock_set_keepidle_locked): the host has been silent for longer, so it is asked at once.
  // After that one the interval holds (tcp_keepalive_timer).
  set_option(fd_.get(), IPPROTO_TCP, TCP_KEEPIDLE, kKeepIdleSeconds);
}

std::int64_t TcpSocket::owed_ms(std::int64_t now) const {
  const std::int64_t asked = asked_.get();
  if (asked == 0 || now - silence_ms() * kMillisecond >= asked - kTick) return 0;
  return (now - asked) / kMillisecond;
}

std::string TcpSocket::end_text() const {
  return end_.code() > 0 ? error_text(end_.code()) : std::string();
}

std::string TcpSocket::local_text() const {
  SocketAddress local;
  socklen_t length = sizeof(sockaddr_in6);
  if (::getsockname(fd_.get(), &local.sa, &length) != 0) return "an unknown interface";
  return interface_text(local);
}

void TcpSocket::leave(std::span<const std::uint8_t> words) {
  if (!is_open()) return;
  set_option(fd_.get(), IPPROTO_TCP, TCP_USER_TIMEOUT, kLastWordsMs);
  std::size_t done = 0;
  (void)send_part(words, done);
}

void TcpSocket::end_words() const {
  if (is_open()) (void)::shutdown(fd_.get(), SHUT_WR);
}

void TcpSocket::set_control_options() {
  const int fd = fd_.get();
  set_option(fd, IPPROTO_TCP, TCP_NODELAY, 1);
  set_option(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
  set_option(fd, IPPROTO_TCP, TCP_KEEPINTVL, kKeepIntervalSeconds);
  set_option(fd, IPPROTO_TCP, TCP_KEEPIDLE, kKeepIdleSeconds);
  // The user timeout stands above the number of probes.
  set_option(fd, IPPROTO_TCP, TCP_KEEPCNT, 127);
  set_option(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, kGiveUpMs);
}

}  // namespace twinpath
