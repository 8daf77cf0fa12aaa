#pragma once
// Non-blocking TCP for the control connection of two peers: pick the interface as NCCL does,
// listen, connect, send and receive parts.  Nothing here blocks or sleeps.
//
// Threads: an object belongs to one thread at a time.
#include <netinet/in.h>
#include <sys/socket.h>

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "plugin/base/config.h"
#include "plugin/base/status.h"
#include "plugin/base/unshared_fd.h"

namespace twinpath {

struct SocketAddress {
  union {
    sockaddr sa;
    sockaddr_in in4;
    sockaddr_in6 in6;
  };
  SocketAddress() : in6{} {}
  socklen_t length() const;
  std::string text() const;  // "10.0.0.1:1234", "[fe80::1%eth0]:1234"
};

struct Interface {
  std::string name;
  SocketAddress address;  // port 0
};

// Interfaces that match NCCL_SOCKET_IFNAME ("eth", "=eth0", "^lo,docker", list) and
// NCCL_SOCKET_FAMILY.  Without a filter: any that is up except lo and docker*, and lo if there
// is nothing else.  Pure: `all` is what the system has.
std::vector<Interface> choose_interfaces(const std::vector<Interface>& all, const Config& config);
std::vector<Interface> system_interfaces();

// First chosen interface; logs what was asked for and what exists when none fits.
Result<Interface> control_interface(const Config& config);

class TcpListener {
 public:
  // Binds an ephemeral port on the interface; backlog 1024; non-blocking, close-on-exec.
  static Result<TcpListener> open(const Interface& interface);
  const SocketAddress& address() const { return address_; }
  // The next waiting connection, or Status::again.
  Result<class TcpSocket> accept();
  int fd() const { return fd_.get(); }

 private:
  UnsharedFd fd_;
  SocketAddress address_;
};

class TcpSocket {
 public:
  TcpSocket() = default;
  explicit TcpSocket(UnsharedFd fd, const SocketAddress& peer) : fd_(std::move(fd)), peer_(peer) {}
  // Starts connecting; finish_connect() says when it is done.
  static Result<TcpSocket> connect(const SocketAddress& to);
  // ok, again, or remote (refused, unreachable; `why` gets the system's text).
  Status finish_connect(std::string& why);
  // Sends/receives as much as goes; `done` counts bytes over calls.  ok when all went, again
  // when the rest must wait, closed on end of file, remote on error.
  Status send_part(std::span<const std::uint8_t> bytes, std::size_t& done);
  Status recv_part(std::span<std::uint8_t> bytes, std::size_t& done);
  // What the peer's end looks like without reading anything: ok (alive, nothing to read),
  // again (data waits), closed (end of file), remote (reset, keepalive failed).
  Status peek() const;
  // TCP_NODELAY, keepalive after 1 s idle, every 1 s, 3 probes; TCP_USER_TIMEOUT 4 s.
  void set_control_options();
  const SocketAddress& peer() const { return peer_; }
  int fd() const { return fd_.get(); }
  bool is_open() const { return static_cast<bool>(fd_); }
  void close() { fd_.reset(); }

 private:
  UnsharedFd fd_;
  SocketAddress peer_;
  int connect_error_ = 0;  // errno of a connect that failed
};

}  // namespace twinpath
