#pragma once
// The other end of a control socket, as a plain one.
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cstdint>
#include <vector>

#include "plugin/base/socket.h"
#include "test/support/catch.h"

namespace twinpath {

struct FarEnd {
  using Bytes = std::vector<std::uint8_t>;
  std::array<int, 2> fds{};
  FarEnd() { REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, fds.data()) == 0); }
  ~FarEnd() { ::close(fds[1]); }
  FarEnd(const FarEnd&) = delete;
  FarEnd& operator=(const FarEnd&) = delete;
  TcpSocket near_end() {
    return TcpSocket(UnsharedFd::make([&] { return fds[0]; }), SocketAddress());
  }
  void say(const std::uint8_t* bytes, std::size_t n) {
    REQUIRE(::send(fds[1], bytes, n, MSG_NOSIGNAL) == static_cast<ssize_t>(n));
  }
  void say(const Bytes& bytes) { say(bytes.data(), bytes.size()); }
  Bytes hear() {
    Bytes all;
    std::array<std::uint8_t, 4096> some;
    for (ssize_t n = 0; (n = ::recv(fds[1], some.data(), some.size(), 0)) > 0;)
      all.insert(all.end(), some.begin(), some.begin() + n);
    return all;
  }
};

}  // namespace twinpath
