#include "tools/common/channel.h"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "plugin/base/clock.h"
#include "tools/common/failure.h"

namespace twinpath::tools {

std::pair<Channel, Channel> Channel::pair() {
  int fds[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds) != 0)
    throw Failure(std::string("socketpair: ") + std::strerror(errno));
  return {Channel(UniqueFd(fds[0])), Channel(UniqueFd(fds[1]))};
}

void Channel::send(const void* data, std::size_t bytes) {
  const auto* p = static_cast<const char*>(data);
  while (bytes != 0) {
    const ssize_t n = ::send(fd_.get(), p, bytes, MSG_NOSIGNAL);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) throw Failure("the other process is gone");
    p += n;
    bytes -= static_cast<std::size_t>(n);
  }
}

void Channel::receive(void* data, std::size_t bytes, std::int64_t deadline_ns,
                      const std::string& what) {
  auto* p = static_cast<char*>(data);
  while (bytes != 0) {
    const std::int64_t left_ms = (deadline_ns - now_ns()) / kMillisecond;
    if (left_ms <= 0)
      throw Failure("timed out waiting for " + what + "; raise --timeout, or see what they say");
    pollfd wait{fd_.get(), POLLIN, 0};
    if (poll(&wait, 1, static_cast<int>(std::min<std::int64_t>(left_ms, 1000))) <= 0) continue;
    const ssize_t n = recv(fd_.get(), p, bytes, 0);
    if (n < 0 && (errno == EINTR || errno == EAGAIN)) continue;
    if (n <= 0) throw Failure("the other process is gone; was waiting for " + what);
    p += n;
    bytes -= static_cast<std::size_t>(n);
  }
}

void Channel::send_line(const nlohmann::json& j) {
  const std::string line = j.dump() + "\n";
  send(line.data(), line.size());
}

std::optional<nlohmann::json> Channel::poll_line(bool& closed) {
  closed = false;
  while (true) {
    if (const auto end = pending_.find('\n'); end != std::string::npos) {
      auto j = nlohmann::json::parse(pending_.substr(0, end), nullptr, false);
      pending_.erase(0, end + 1);
      return j;
    }
    char buffer[65536];
    const ssize_t n = recv(fd_.get(), buffer, sizeof buffer, MSG_DONTWAIT);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && errno == EAGAIN) return std::nullopt;
    if (n <= 0) {
      closed = true;
      return std::nullopt;
    }
    pending_.append(buffer, static_cast<std::size_t>(n));
  }
}

}  // namespace twinpath::tools
