// Control sockets for ranks that mpirun, srun or a person started: rank 0 listens, the others
// connect and say who they are.  job_address.h says where.
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "plugin/base/clock.h"
#include "tools/common/failure.h"
#include "tools/common/job.h"
#include "tools/common/job_address.h"
#include "tools/common/units.h"

namespace twinpath::tools {
namespace {

struct Hello {
  char magic[8];
  std::uint64_t job;
  std::uint32_t size, rank;
};
constexpr char kMagic[8] = {'t', 'p', 'c', 'o', 'l', 'l', '0', '1'};

std::string address_text(const std::string& host, const std::string& port) {
  return (host.find(':') == std::string::npos ? host : "[" + host + "]") + ":" + port;
}

int look_up(const std::string& host, const std::string& port, bool listen, addrinfo** out) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = listen ? AI_PASSIVE : 0;
  return getaddrinfo(host.empty() ? nullptr : host.c_str(), port.c_str(), &hints, out);
}

[[noreturn]] void refuse(const std::string& host, const std::string& port, int result) {
  throw BadUsage("rendezvous " + address_text(host, port) + ": " + gai_strerror(result) +
                 "; give --rendezvous HOST:PORT");
}

addrinfo* resolve_to_listen(const std::string& host, const std::string& port) {
  addrinfo* out = nullptr;
  if (const int result = look_up(host, port, true, &out); result != 0) refuse(host, port, result);
  return out;
}

bool receive_hello(int fd, Hello& hello) {
  pollfd p{fd, POLLIN, 0};
  std::size_t have = 0;
  while (have < sizeof hello) {
    if (poll(&p, 1, 2000) <= 0) return false;
    const ssize_t n = recv(fd, reinterpret_cast<char*>(&hello) + have, sizeof hello - have, 0);
    if (n <= 0) return false;
    have += static_cast<std::size_t>(n);
  }
  return std::memcmp(hello.magic, kMagic, sizeof kMagic) == 0;
}

// One socket for both families: which one a rank comes by is its resolver's choice.
UniqueFd listen_anywhere(const std::string& port) {
  sockaddr_in6 any{};
  any.sin6_family = AF_INET6;
  addrinfo* found = resolve_to_listen("", port);  // for the port, which may be a service's name
  const in_port_t number = found->ai_family == AF_INET6
                               ? reinterpret_cast<sockaddr_in6*>(found->ai_addr)->sin6_port
                               : reinterpret_cast<sockaddr_in*>(found->ai_addr)->sin_port;
  freeaddrinfo(found);
  any.sin6_port = number;
  const int on = 1, off = 0;
  UniqueFd fd(socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (fd && setsockopt(fd.get(), IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off) == 0) {
    setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (bind(fd.get(), reinterpret_cast<const sockaddr*>(&any), sizeof any) == 0) return fd;
    if (errno == EADDRINUSE || errno == EACCES) return {};
  }
  // A kernel without IPv6.
  sockaddr_in any4{};
  any4.sin_family = AF_INET;
  any4.sin_port = number;
  fd = UniqueFd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  if (bind(fd.get(), reinterpret_cast<const sockaddr*>(&any4), sizeof any4) == 0) return fd;
  return {};
}

UniqueFd listen_at(const std::string& host, const std::string& port) {
  addrinfo* found = resolve_to_listen(host, port);
  UniqueFd fd(socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const int on = 1;
  setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  const bool ok = bind(fd.get(), found->ai_addr, found->ai_addrlen) == 0;
  const int error = errno;
  freeaddrinfo(found);
  errno = error;
  return ok ? std::move(fd) : UniqueFd();
}

UniqueFd listen_on(const std::string& host, const std::string& port) {
  // A loopback rendezvous is not offered to the network.
  UniqueFd fd =
      host == "127.0.0.1" || host == "::1" ? listen_at(host, port) : listen_anywhere(port);
  if (!fd || listen(fd.get(), 256) != 0) {
    throw Failure("rank 0 cannot listen on port " + port + ": " + std::strerror(errno) +
                  "; give another one with --rendezvous HOST:PORT");
  }
  return fd;
}

// One line when it has waited for long enough to be wondered at.
class LongWait {
 public:
  // When to look again at the latest.
  std::int64_t next(std::int64_t deadline) const {
    return said_ ? deadline : std::min(deadline, at_);
  }
  void say(const Place& place, const std::string& text) {
    if (said_ || now_ns() < at_) return;
    said_ = true;
    const bool by_hand = std::strcmp(place.from, "--rank") == 0;
    std::fprintf(stderr, "rank %d of %d (%s) waits for %s%s\n", place.rank, place.size, place.from,
                 text.c_str(), by_hand ? "" : "; --no-mpi runs without the launcher's ranks");
  }

 private:
  static constexpr std::int64_t kLong = 3 * kSecond;
  const std::int64_t at_ = now_ns() + kLong;
  bool said_ = false;
};

// "ranks 1, 2, 3 and 5 others"
std::string missing_ranks(const std::vector<UniqueFd>& links) {
  constexpr int kNamed = 8;
  std::string out;
  int missing = 0;
  for (std::size_t i = 0; i < links.size(); ++i)
    if (!links[i] && ++missing <= kNamed) out += (missing == 1 ? "" : ", ") + std::to_string(i + 1);
  if (missing > kNamed) out += " and " + std::to_string(missing - kNamed) + " others";
  return (missing == 1 ? "rank " : "ranks ") + out;
}

// errno of the last try where none answers.
UniqueFd connect_to_one(const addrinfo* all, int& error) {
  for (const addrinfo* a = all; a != nullptr; a = a->ai_next) {
    UniqueFd fd(socket(a->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
    // A network that drops packets must not outlast --timeout.
    const timeval patience{2, 0}, none{};
    setsockopt(fd.get(), SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof patience);
    if (connect(fd.get(), a->ai_addr, a->ai_addrlen) == 0) {
      setsockopt(fd.get(), SOL_SOCKET, SO_SNDTIMEO, &none, sizeof none);
      return fd;
    }
    error = errno == EINPROGRESS ? ETIMEDOUT : errno;
  }
  return {};
}

// A socket to the first of rank 0's hosts that answers; without one `why` says what each did.
// Throws BadUsage where none of them has an address.
UniqueFd connect_to(const JobAddress& at, std::string& why) {
  int unknown = 0;
  std::size_t known = 0;
  why.clear();
  for (const std::string& host : at.hosts) {
    why += (why.empty() ? "" : ", ") + address_text(host, at.port) + ": ";
    addrinfo* all = nullptr;
    const int result = look_up(host, at.port, false, &all);
    if (result != 0) {
      unknown = result;
      why += gai_strerror(result);
      continue;
    }
    ++known;
    int error = EHOSTUNREACH;
    UniqueFd fd = connect_to_one(all, error);
    freeaddrinfo(all);
    if (fd) return fd;
    why += std::strerror(error);
  }
  if (known == 0) refuse(at.hosts.front(), at.port, unknown);
  return {};
}

}  // namespace

std::vector<UniqueFd> rendezvous(const Place& place, const std::string& option, double timeout_s) {
  const Lookup lookup = [](const char* name) { return std::getenv(name); };
  std::array<char, 256> own_host{};
  (void)gethostname(own_host.data(), own_host.size() - 1);
  const JobAddress at = job_address(place, option, own_host.data(), lookup);
  const std::uint64_t job = job_hash(place, lookup);
  const std::int64_t deadline = now_ns() + static_cast<std::int64_t>(timeout_s * 1e9);
  const auto size = static_cast<std::uint32_t>(place.size);
  std::vector<UniqueFd> links;
  const int on = 1;
  LongWait wait;
  if (place.rank == 0) {
    const UniqueFd listener = listen_on(at.hosts.size() == 1 ? at.hosts.front() : "", at.port);
    links.resize(size - 1);
    for (std::uint32_t missing = size - 1; missing > 0;) {
      pollfd p{listener.get(), POLLIN, 0};
      const std::int64_t left = wait.next(deadline) - now_ns();
      const bool knocked =
          poll(&p, 1, static_cast<int>(std::max<std::int64_t>(left, 0) / kMillisecond) + 1) > 0;
      if (!knocked && now_ns() < deadline) {
        wait.say(place, missing_ranks(links) + " on port " + at.port);
        continue;
      }
      if (!knocked) {
        throw Failure("rank 0 waited " + fixed(timeout_s, 1) + " s on port " + at.port + ", " +
                      std::to_string(missing) + " of " + std::to_string(size) +
                      " ranks did not come; check that they can reach " + at.hosts.front() +
                      ", or raise --timeout");
      }
      UniqueFd fd(accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
      Hello hello{};
      // Anyone may knock here; only ranks of this job with a free place come in.
      if (!fd || !receive_hello(fd.get(), hello) || hello.job != job || hello.size != size ||
          hello.rank == 0 || hello.rank >= size || links[hello.rank - 1]) {
        continue;
      }
      setsockopt(fd.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
      links[hello.rank - 1] = std::move(fd);
      --missing;
    }
    return links;
  }
  Hello hello{{}, job, size, static_cast<std::uint32_t>(place.rank)};
  std::memcpy(hello.magic, kMagic, sizeof kMagic);
  for (;;) {
    std::string why;
    UniqueFd fd = connect_to(at, why);
    if (fd && send(fd.get(), &hello, sizeof hello, MSG_NOSIGNAL) == sizeof hello) {
      setsockopt(fd.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
      links.push_back(std::move(fd));
      return links;
    }
    if (fd) why = at.hosts.front() + ": " + std::strerror(errno);
    wait.say(place, "rank 0 at " + why);
    if (now_ns() > deadline) {
      throw Failure("rank " + std::to_string(place.rank) + " cannot reach rank 0 at " + why +
                    "; give --rendezvous HOST:PORT, or raise --timeout");
    }
    usleep(50000);
  }
}

}  // namespace twinpath::tools
