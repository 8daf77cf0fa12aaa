#pragma once
// The control network is cut: every TCP socket that this process has now gets a filter that drops
// what arrives, so that nothing is heard or acknowledged here any more, and peers hear nothing.
// Sockets that are made later are not cut.  Needs no privilege.
#include <linux/filter.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <vector>

namespace twinpath::test {

// Descriptors of this process that are TCP sockets.  Calls nothing that allocates but the vector.
inline std::vector<int> tcp_sockets() {
  std::vector<int> found;
  for (int fd = 0; fd < 4096; ++fd) {
    int protocol = 0;
    socklen_t length = sizeof protocol;
    if (::getsockopt(fd, SOL_SOCKET, SO_PROTOCOL, &protocol, &length) == 0 &&
        protocol == IPPROTO_TCP)
      found.push_back(fd);
  }
  return found;
}

class Outage {
 public:
  explicit Outage(std::vector<int> sockets = tcp_sockets()) : sockets_(std::move(sockets)) {
    sock_filter nothing{BPF_RET | BPF_K, 0, 0, 0};
    const sock_fprog program{1, &nothing};
    for (const int fd : sockets_)
      works_ &= ::setsockopt(fd, SOL_SOCKET, SO_ATTACH_FILTER, &program, sizeof program) == 0;
  }
  ~Outage() { end(); }
  Outage(const Outage&) = delete;
  Outage& operator=(const Outage&) = delete;
  // Whether the kernel took the filters, and there was something to cut.
  explicit operator bool() const { return works_ && !sockets_.empty(); }
  void end() {
    const int none = 0;
    for (const int fd : sockets_)
      (void)::setsockopt(fd, SOL_SOCKET, SO_DETACH_FILTER, &none, sizeof none);
    sockets_.clear();
  }

 private:
  std::vector<int> sockets_;
  bool works_ = true;
};

}  // namespace twinpath::test
