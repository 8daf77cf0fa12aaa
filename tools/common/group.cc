#include "tools/common/group.h"

#include <poll.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>

#include "plugin/base/clock.h"
#include "tools/common/units.h"

namespace twinpath::tools {

int Group::link(int peer) const {
  return links_.at(rank_ == 0 ? static_cast<std::size_t>(peer) - 1 : 0).get();
}

Failure Group::gone(int peer) const {
  return Failure("rank " + std::to_string(rank_) + ": rank " + std::to_string(peer) +
                 " has gone; see the messages of that rank");
}

void Group::check_links() const {
  for (std::size_t i = 0; i < links_.size(); ++i) {
    char next = 0;
    const ssize_t n = recv(links_[i].get(), &next, 1, MSG_DONTWAIT | MSG_PEEK);
    if (n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR))
      throw gone(rank_ == 0 ? static_cast<int>(i) + 1 : 0);
  }
}

void Group::send_to(int peer, const void* data, std::size_t bytes) {
  const auto* at = static_cast<const char*>(data);
  while (bytes > 0) {
    const ssize_t n = send(link(peer), at, bytes, MSG_NOSIGNAL);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) {
      throw Failure("rank " + std::to_string(rank_) + " lost its control connection to rank " +
                    std::to_string(peer) + " (" + std::strerror(errno) +
                    "): see the messages of that rank");
    }
    at += n;
    bytes -= static_cast<std::size_t>(n);
  }
}

void Group::receive_from(int peer, void* data, std::size_t bytes) {
  auto* at = static_cast<char*>(data);
  const std::int64_t deadline = now_ns() + static_cast<std::int64_t>(timeout_s_ * 1e9);
  while (bytes > 0) {
    const ssize_t n = recv(link(peer), at, bytes, MSG_DONTWAIT);
    if (n > 0) {
      at += n;
      bytes -= static_cast<std::size_t>(n);
      continue;
    }
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) {
      const std::int64_t left = deadline - now_ns();
      if (left <= 0) {
        throw Failure("rank " + std::to_string(rank_) + " waited " + fixed(timeout_s_, 1) +
                      " s for rank " + std::to_string(peer) +
                      "; raise --timeout or see what that rank is doing");
      }
      pollfd p{link(peer), POLLIN, 0};
      (void)poll(&p, 1, static_cast<int>(left / kMillisecond) + 1);
      continue;
    }
    throw gone(peer);
  }
}

void Group::broadcast(void* data, std::size_t bytes) {
  if (rank_ != 0) return receive_from(0, data, bytes);
  for (int peer = 1; peer < size_; ++peer) send_to(peer, data, bytes);
}

void Group::gather(const void* mine, std::size_t bytes, void* all) {
  if (rank_ != 0) return send_to(0, mine, bytes);
  auto* out = static_cast<char*>(all);
  std::memcpy(out, mine, bytes);
  for (int peer = 1; peer < size_; ++peer) {
    receive_from(peer, out + static_cast<std::size_t>(peer) * bytes, bytes);
  }
}

void Group::all_gather(const void* mine, std::size_t bytes, void* all) {
  gather(mine, bytes, all);
  broadcast(all, bytes * static_cast<std::size_t>(size_));
}

void Group::barrier() {
  std::vector<char> all(static_cast<std::size_t>(size_));
  const char mine = 1;
  all_gather(&mine, 1, all.data());
}

std::vector<std::vector<UniqueFd>> Group::socket_pairs(int size) {
  std::vector<std::vector<UniqueFd>> links(static_cast<std::size_t>(size));
  for (std::size_t peer = 1; peer < links.size(); ++peer) {
    int ends[2];
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) {
      throw Failure("control sockets for " + std::to_string(size) +
                    " ranks: " + std::strerror(errno) + "; raise ulimit -n");
    }
    links[0].emplace_back(ends[0]);
    links[peer].emplace_back(ends[1]);
  }
  return links;
}

}  // namespace twinpath::tools
