#include "plugin/base/rtnetlink.h"

#include <sys/socket.h>
#include <sys/time.h>

#include <array>
#include <cerrno>
#include <cstring>

#include "plugin/base/unshared_fd.h"

namespace twinpath {
namespace {

constexpr std::size_t kAnswerBytes = 32768;  // what the kernel puts into one datagram at most

enum class Part : std::uint8_t { more, last, refused };

Part part_of(std::span<const std::uint8_t> datagram) {
  auto left = static_cast<unsigned>(datagram.size());
  for (const auto* m = reinterpret_cast<const nlmsghdr*>(datagram.data()); NLMSG_OK(m, left);
       m = NLMSG_NEXT(m, left)) {
    if (m->nlmsg_type == NLMSG_DONE) return Part::last;
    if (m->nlmsg_type == NLMSG_ERROR) return Part::refused;
  }
  return Part::more;
}

}  // namespace

std::optional<std::vector<std::uint8_t>> netlink_dump(std::uint16_t request) {
  const UnsharedFd fd =
      UnsharedFd::make([] { return ::socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_ROUTE); });
  if (!fd) return std::nullopt;
  // The kernel answers within the call; the limit is for one that does not.
  const timeval limit{1, 0};
  (void)::setsockopt(fd.get(), SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
  // The body of each of these requests begins with the family, and no other field counts.
  struct {
    nlmsghdr head;
    ifinfomsg body;
  } ask{};
  ask.head.nlmsg_len = sizeof ask;
  ask.head.nlmsg_type = request;
  ask.head.nlmsg_flags = NLM_F_REQUEST | NLM_F_DUMP;
  ask.body.ifi_family = AF_UNSPEC;
  if (::send(fd.get(), &ask, sizeof ask, 0) != static_cast<ssize_t>(sizeof ask))
    return std::nullopt;
  std::vector<std::uint8_t> all;
  alignas(nlmsghdr) std::array<std::uint8_t, kAnswerBytes> buffer{};
  for (;;) {
    const ssize_t got = ::recv(fd.get(), buffer.data(), buffer.size(), 0);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return std::nullopt;
    const std::span datagram(buffer.data(), static_cast<std::size_t>(got));
    const Part part = part_of(datagram);
    if (part == Part::refused) return std::nullopt;
    all.insert(all.end(), datagram.begin(), datagram.end());
    if (part == Part::last) return all;
  }
}

int number_in(const rtattr* attribute) {
  int number = 0;
  if (RTA_PAYLOAD(attribute) >= sizeof number)
    std::memcpy(&number, RTA_DATA(attribute), sizeof number);
  return number;
}

}  // namespace twinpath
