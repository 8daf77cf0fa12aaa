#include "plugin/base/links.h"

#include <linux/if_link.h>
#include <linux/netlink.h>
#include <linux/rtnetlink.h>
#include <sys/socket.h>
#include <sys/time.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

#include "plugin/base/unshared_fd.h"

namespace twinpath {
namespace {

constexpr std::size_t kAnswerBytes = 32768;  // what the kernel puts into one datagram at most

std::string text_of(const rtattr* a) {
  const auto* text = static_cast<const char*>(RTA_DATA(a));
  return {text, strnlen(text, RTA_PAYLOAD(a))};
}

template <class Visit>
void each_attribute(const rtattr* first, int bytes, const Visit& visit) {
  for (const rtattr* a = first; RTA_OK(a, bytes); a = RTA_NEXT(a, bytes)) visit(a);
}

Link read_link(const nlmsghdr* message) {
  const auto* info = static_cast<const ifinfomsg*>(NLMSG_DATA(message));
  Link link;
  link.index = info->ifi_index;
  each_attribute(IFLA_RTA(info), static_cast<int>(IFLA_PAYLOAD(message)), [&](const rtattr* a) {
    if (a->rta_type == IFLA_IFNAME) link.name = text_of(a);
    if (a->rta_type == IFLA_MASTER && RTA_PAYLOAD(a) >= sizeof link.master)
      std::memcpy(&link.master, RTA_DATA(a), sizeof link.master);
    if (a->rta_type != IFLA_LINKINFO) return;
    each_attribute(static_cast<const rtattr*>(RTA_DATA(a)), static_cast<int>(RTA_PAYLOAD(a)),
                   [&](const rtattr* of) {
                     if (of->rta_type == IFLA_INFO_KIND) link.kind = text_of(of);
                   });
  });
  return link;
}

// False when the answer is complete, or bad.
bool read_answer(const std::uint8_t* bytes, std::size_t size, std::vector<Link>& out) {
  auto left = static_cast<unsigned>(size);
  for (const auto* m = reinterpret_cast<const nlmsghdr*>(bytes); NLMSG_OK(m, left);
       m = NLMSG_NEXT(m, left)) {
    if (m->nlmsg_type == NLMSG_DONE || m->nlmsg_type == NLMSG_ERROR) return false;
    if (m->nlmsg_type == RTM_NEWLINK && m->nlmsg_len >= NLMSG_LENGTH(sizeof(ifinfomsg)))
      out.push_back(read_link(m));
  }
  return true;
}

}  // namespace

std::vector<Link> system_links() {
  std::vector<Link> out;
  const UnsharedFd fd =
      UnsharedFd::make([] { return ::socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_ROUTE); });
  if (!fd) return out;
  // The kernel answers within the call; the limit is for one that does not.
  const timeval limit{1, 0};
  (void)::setsockopt(fd.get(), SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
  struct {
    nlmsghdr head;
    ifinfomsg body;
  } ask{};
  ask.head.nlmsg_len = sizeof ask;
  ask.head.nlmsg_type = RTM_GETLINK;
  ask.head.nlmsg_flags = NLM_F_REQUEST | NLM_F_DUMP;
  ask.body.ifi_family = AF_UNSPEC;
  if (::send(fd.get(), &ask, sizeof ask, 0) != static_cast<ssize_t>(sizeof ask)) return out;
  alignas(nlmsghdr) std::array<std::uint8_t, kAnswerBytes> buffer{};
  for (;;) {
    const ssize_t got = ::recv(fd.get(), buffer.data(), buffer.size(), 0);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0 || !read_answer(buffer.data(), static_cast<std::size_t>(got), out)) return out;
  }
}

bool is_aside(const std::vector<Link>& links, const std::string& name) {
  const auto link =
      std::find_if(links.begin(), links.end(), [&](const Link& l) { return l.name == name; });
  if (link == links.end()) return false;
  if (link->kind == "dummy") return true;
  return link->kind == "bridge" && std::all_of(links.begin(), links.end(), [&](const Link& l) {
           return l.master != link->index || l.kind == "veth" || l.kind == "tun" ||
                  l.kind == "dummy";
         });
}

}  // namespace twinpath
