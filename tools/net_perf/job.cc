#include "tools/net_perf/job.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>

#include "plugin/base/clock.h"
#include "tools/common/failure.h"
#include "tools/net_perf/compare.h"
#include "tools/net_perf/run.h"

namespace twinpath::tools {
namespace {

using Nonce = std::array<std::uint8_t, 16>;

// An address with its port, IPv4 or IPv6, as sockets have it.
struct Address {
  sockaddr_storage storage{};
  socklen_t bytes = 0;

  bool loopback() const {
    if (storage.ss_family == AF_INET) {
      const auto& in = reinterpret_cast<const sockaddr_in&>(storage);
      return (ntohl(in.sin_addr.s_addr) >> 24) == 127;
    }
    const in6_addr& in6 = reinterpret_cast<const sockaddr_in6&>(storage).sin6_addr;
    return IN6_IS_ADDR_LOOPBACK(&in6) || (IN6_IS_ADDR_V4MAPPED(&in6) && in6.s6_addr[12] == 127);
  }
  // sin_port and sin6_port lie at the same place.
  in_port_t& port() { return reinterpret_cast<sockaddr_in&>(storage).sin_port; }
};

Address address(int fd, int (*ask)(int, sockaddr*, socklen_t*)) {
  Address a;
  a.bytes = sizeof a.storage;
  if (ask(fd, reinterpret_cast<sockaddr*>(&a.storage), &a.bytes) != 0)
    throw Failure(std::string("a control socket has no address: ") + std::strerror(errno));
  return a;
}

std::string errno_text(const char* what) { return std::string(what) + ": " + std::strerror(errno); }

// The even worker's listener for its partner, on a port that the kernel chooses.
UniqueFd listen_anywhere(int family, in_port_t& port) {
  UniqueFd fd(socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  Address any;
  any.storage.ss_family = static_cast<sa_family_t>(family);
  any.bytes = family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
  if (bind(fd.get(), reinterpret_cast<sockaddr*>(&any.storage), any.bytes) != 0 ||
      listen(fd.get(), 16) != 0)
    throw Failure(errno_text("cannot listen for the other worker of the pair"));
  port = address(fd.get(), getsockname).port();
  return fd;
}

UniqueFd accept_partner(const UniqueFd& listener, const Nonce& nonce, std::int64_t deadline) {
  for (;;) {
    pollfd p{listener.get(), POLLIN, 0};
    const std::int64_t left = deadline - now_ns();
    if (left <= 0)
      throw Failure(
          "the other worker of the pair did not come in time; see what it says, or raise "
          "--timeout");
    if (poll(&p, 1, static_cast<int>(left / kMillisecond) + 1) <= 0) continue;
    UniqueFd fd(accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
    if (!fd) continue;
    // Anyone may knock here; the partner knows what rank 0 told the job.
    Channel channel(std::move(fd));
    Nonce theirs{};
    try {
      channel.receive(theirs.data(), theirs.size(), now_ns() + 2 * kSecond, "a greeting");
    } catch (const Failure&) {
      continue;
    }
    if (theirs == nonce) return channel.take_fd();
  }
}

UniqueFd connect_partner(const Address& to, const Nonce& nonce) {
  UniqueFd fd(socket(to.storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (connect(fd.get(), reinterpret_cast<const sockaddr*>(&to.storage), to.bytes) != 0 ||
      send(fd.get(), nonce.data(), nonce.size(), MSG_NOSIGNAL) !=
          static_cast<ssize_t>(nonce.size()))
    throw Failure(errno_text("cannot reach the other worker of the pair"));
  return fd;
}

// A socket between the workers of each pair.  Rank 0 alone knows addresses: those by which the
// others came, and those by which they reached it.
Channel connect_pair(Group& group, double timeout_s) {
  const auto ranks = static_cast<std::size_t>(group.size());
  const auto me = static_cast<std::size_t>(group.rank());
  const bool listens = me % 2 == 0;
  const std::int64_t deadline = now_ns() + static_cast<std::int64_t>(timeout_s * 1e9);
  const Address own = address(group.links()[0].get(), getsockname);
  in_port_t port = 0;
  UniqueFd listener;
  if (listens) listener = listen_anywhere(own.storage.ss_family, port);
  std::vector<in_port_t> ports(ranks);
  group.gather(&port, sizeof port, ports.data());
  struct Word {
    Nonce nonce;
    Address to;
  };
  std::vector<Word> words(ranks);
  if (group.rank() == 0) {
    for (std::size_t r = 1; r < ranks; r += 2) {
      const int link = group.links()[r - 1].get();
      Address& to = words[r].to;
      // A partner on this host is known to us by an address that is none elsewhere.
      if (r > 1) to = address(group.links()[r - 2].get(), getpeername);
      if (r == 1 || to.loopback()) to = address(link, getsockname);
      to.port() = ports[r - 1];
      if (getrandom(words[r].nonce.data(), words[r].nonce.size(), 0) < 0)
        throw Failure(errno_text("getrandom"));
      words[r - 1].nonce = words[r].nonce;
    }
    for (int r = 1; r < group.size(); ++r)
      group.send_to(r, &words[static_cast<std::size_t>(r)], sizeof(Word));
  } else {
    group.receive_from(0, &words[me], sizeof(Word));
  }
  UniqueFd fd = listens ? accept_partner(listener, words[me].nonce, deadline)
                        : connect_partner(words[me].to, words[me].nonce);
  const int on = 1;
  setsockopt(fd.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  return Channel(std::move(fd));
}

// Workers with other sizes or counts would wait for each other.  Devices and files may differ.
void expect_same_options(Group& group, const Options& options, const Hosts& hosts) {
  nlohmann::json j = options_json(options);
  for (const char* free : {"plugin", "against", "devices", "gpus", "yield_every", "timeout_s"})
    j.erase(free);
  const std::uint64_t mine = std::hash<std::string>{}(j.dump());
  std::vector<std::uint64_t> all(static_cast<std::size_t>(group.size()));
  group.all_gather(&mine, sizeof mine, all.data());
  for (std::size_t r = 0; r < all.size(); ++r)
    if (all[r] != all[0])
      throw BadUsage("rank " + std::to_string(r) + " on " + hosts.names()[r] +
                     " was started with other options than rank 0; give all the same");
}

// What a rank other than 0 does while its worker works.  Lines go up, barriers come down.
class Relay {
 public:
  Relay(Channel up, Channel worker, pid_t pid)
      : up_(std::move(up)), worker_(std::move(worker)), pid_(pid) {}
  ~Relay() {
    if (pid_ <= 0) return;
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }
  Relay(const Relay&) = delete;
  Relay& operator=(const Relay&) = delete;

  int run(std::int64_t deadline) {
    while (now_ns() < deadline) {
      std::array<pollfd, 2> fds{{{worker_.fd(), POLLIN, 0}, {up_.fd(), POLLIN, 0}}};
      if (poll(fds.data(), fds.size(), 200) <= 0) continue;
      if (fds[1].revents != 0) {
        char barrier = 0;
        if (recv(up_.fd(), &barrier, 1, 0) != 1) return 1;  // rank 0 has ended, and said why
        worker_.send(&barrier, 1);
      }
      if (fds[0].revents == 0) continue;
      bool closed = false;
      while (auto line = worker_.poll_line(closed)) {
        // Rank 0 hears of the end when the process has ended, too.
        if (line->contains("done")) return end_well();
        if (line->contains("phase")) phase_ = (*line)["phase"].get<std::string>();
        up_.send_line(*line);
        if (line->contains("error")) return 1;
      }
      if (closed) return fail(worker_death(pid_) + " in phase '" + phase_ + "'");
    }
    return fail("did not end in time, in phase '" + phase_ + "'; raise --timeout");
  }

 private:
  int fail(const std::string& why) {
    up_.send_line({{"error", why}});
    return 1;
  }
  int end_well() {
    const std::string why = end_worker(pid_);
    if (!why.empty()) return fail(why);
    up_.send_line({{"done", true}});
    return 0;
  }

  Channel up_, worker_;
  pid_t pid_;
  std::string phase_ = "starting";
};

int relay(int argc, char** argv, const Options& options, int rank, Channel up, Channel peer) {
  auto [mine, its] = Channel::pair();
  const pid_t pid = start_worker(argc, argv, options, rank, its, peer);
  its.close();
  peer.close();
  // Its worker knows the deadline, and so does rank 0; this one counts when both are gone.
  return Relay(std::move(up), std::move(mine), pid)
      .run(now_ns() + static_cast<std::int64_t>(options.timeout_s * 1e9) + 5 * kSecond);
}

// Makes this process part of the job; `options` learn how many ranks are where.
Abroad join(Options& options, const Place& place) {
  Group group(place.rank, place.size, rendezvous(place, options.rendezvous, options.timeout_s),
              options.timeout_s);
  const Hosts hosts(group);
  take_job(options, {place.size, hosts.ranks_beside(place.rank), hosts.count()});
  expect_same_options(group, options, hosts);
  Abroad abroad{{}, connect_pair(group, options.timeout_s), hosts.names()};
  for (UniqueFd& link : group.take_links()) abroad.controls.emplace_back(std::move(link));
  return abroad;
}

int follow(int argc, char** argv, Options options, const Place& place) {
  Abroad abroad = join(options, place);
  return relay(argc, argv, options, place.rank, std::move(abroad.controls[0]),
               std::move(abroad.peer));
}

}  // namespace

int run_job(int argc, char** argv, Options& options, const Place& place) {
  take_job(options, {place.size, place.size, 1});  // complains early
  const bool compares = !options.against.empty();
  if (place.rank != 0 && compares)
    return follow_comparison(options,
                             [&](const Options& turn) { return follow(argc, argv, turn, place); });
  if (place.rank != 0) return follow(argc, argv, options, place);
  if (!compares) {
    Abroad abroad = join(options, place);
    return run_workers(argc, argv, options, &abroad);
  }
  return run_comparison(options, [&](const Options& turn, Report& report, std::string& why) {
    Options mine = turn;
    Abroad abroad = join(mine, place);
    return run_once(argc, argv, mine, &abroad, report, why);
  });
}

}  // namespace twinpath::tools
