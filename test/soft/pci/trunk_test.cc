// Who may connect to a subnet, and what is taken from him.
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>

#include <cstddef>
#include <cstring>
#include <fstream>

#include "test/soft/pci/subnet_process.h"
#include "test/support/needs.h"

namespace twinpath::softhca::pci {
namespace {

using test::eventually;
using test::kGuid;
using test::new_job;
using test::Process;

// A name at which a process of that job listens.
std::string name_of(const std::string& job) {
  std::ifstream list("/proc/net/unix");
  for (std::string line; std::getline(list, line);) {
    const auto at = line.find('@');
    if (at != std::string::npos && line.find("/" + job + "-") != std::string::npos)
      return line.substr(at + 1);
  }
  return {};
}
UniqueFd connect_to(const std::string& name) {
  UniqueFd socket(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path + 1, name.data(), name.size());
  const auto bytes = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  const int done = ::connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), bytes);
  return done == 0 ? std::move(socket) : UniqueFd();
}
// Whether the other end closes within 20 s; what it tells before that is taken.
bool is_closed(int socket) {
  const timeval limit{20, 0};
  (void)setsockopt(socket, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
  char bytes[8192];
  ssize_t got = 1;
  while (got > 0) got = recv(socket, bytes, sizeof bytes, 0);
  return got == 0 || errno == ECONNRESET;
}

TEST_CASE("who keeps to no protocol is left out, and the others go on") {
  const std::string job = new_job();
  Process a(job, 0x11);
  const std::string name = name_of(job);
  REQUIRE_FALSE(name.empty());
  // What it tells, of which one word at a time is made wrong: magic, slot, ports, groups.
  UniqueFd good = connect_to(name);
  std::vector<std::uint8_t> told(8192);
  const ssize_t bytes = recv(good.get(), told.data(), told.size(), 0);
  REQUIRE(bytes > 64);
  told.resize(static_cast<std::size_t>(bytes));
  constexpr std::uint16_t kTold = 0x51;
  const PortNames other{kTold, kGuid + kTold};
  std::memcpy(&told[told.size() - sizeof other], &other, sizeof other);
  REQUIRE(send(good.get(), told.data(), told.size(), 0) == bytes);
  const auto is_refused = [&](const std::vector<std::uint8_t>& packet) {
    const UniqueFd socket = connect_to(name);
    REQUIRE(send(socket.get(), packet.data(), packet.size(), 0) ==
            static_cast<ssize_t>(packet.size()));
    return is_closed(socket.get());
  };
  for (const std::size_t word : {0u, 1u, 2u, 3u}) {
    for (const std::size_t byte : {0u, 3u}) {
      auto wrong = told;
      wrong[4 * word + byte] ^= 0x21;
      CHECK(is_refused(wrong));
    }
  }
  auto longer = told;
  longer.push_back(0);
  CHECK(is_refused(longer));
  longer.resize(6000);
  CHECK(is_refused(longer));
  longer[16] = 1;  // a datagram
  CHECK(is_refused(longer));
  CHECK(is_refused({1, 2, 3}));
  // The one that told it right is still there.  Two sockets of one process, as those have that
  // start at once: each datagram comes once, and only what is for it.
  const UniqueFd second = connect_to(name);
  REQUIRE(send(second.get(), told.data(), told.size(), 0) == bytes);
  REQUIRE(eventually([&] { return a.knows_path_to(kTold); }));
  a.send(0x77, 1);
  a.send(kTold, 2);
  a.send(0xc001, 3);
  std::string came;
  for (const int socket : {good.get(), second.get()}) {
    pollfd input{socket, POLLIN, 0};
    std::uint8_t packet[8192];
    while (::poll(&input, 1, 100) == 1) {
      const ssize_t got = recv(socket, packet, sizeof packet, 0);
      REQUIRE(got > 0);
      if (got < bytes) came += static_cast<char>('0' + packet[got - 1]);
    }
  }
  CHECK(came == "23");
}

TEST_CASE("another user's process is not let in") {
  NEEDS(geteuid() == 0, "only root can play another user");
  const std::string job = new_job();
  const Process a(job, 0x11);
  const std::string name = name_of(job);
  REQUIRE_FALSE(name.empty());
  const pid_t child = fork();
  if (child == 0) {
    constexpr uid_t kNobody = 65534;
    if (setuid(kNobody) != 0) _exit(2);
    const UniqueFd socket = connect_to(name);
    char byte = 0;
    _exit(socket && recv(socket.get(), &byte, 1, 0) <= 0 ? 0 : 1);
  }
  int status = -1;
  REQUIRE(waitpid(child, &status, 0) == child);
  CHECK(status == 0);
}

}  // namespace
}  // namespace twinpath::softhca::pci
