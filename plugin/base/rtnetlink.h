#pragma once
// What the kernel lists of its network by rtnetlink(7): links, addresses, routes.
//
// Threads: any.  Pure but for netlink_dump().
#include <linux/netlink.h>
#include <linux/rtnetlink.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace twinpath {

// All messages that answer `request` (RTM_GETLINK, RTM_GETADDR, RTM_GETROUTE) in this network
// namespace, one behind the other; nullopt where the kernel refuses or does not come to an end.
std::optional<std::vector<std::uint8_t>> netlink_dump(std::uint16_t request);

// Calls visit(Body, first attribute, bytes of attributes) for each message of `type`.
template <class Body, class Visit>
void each_message(std::span<const std::uint8_t> messages, std::uint16_t type, const Visit& visit) {
  auto left = static_cast<unsigned>(messages.size());
  for (const auto* m = reinterpret_cast<const nlmsghdr*>(messages.data()); NLMSG_OK(m, left);
       m = NLMSG_NEXT(m, left)) {
    constexpr std::size_t kFirst = NLMSG_SPACE(sizeof(Body));
    if (m->nlmsg_type != type || m->nlmsg_len < NLMSG_LENGTH(sizeof(Body))) continue;
    const auto* at = reinterpret_cast<const std::uint8_t*>(m);
    visit(*static_cast<const Body*>(NLMSG_DATA(m)), reinterpret_cast<const rtattr*>(at + kFirst),
          static_cast<int>(m->nlmsg_len) - static_cast<int>(kFirst));
  }
}

// Calls visit(attribute) for each of a list of so many bytes.
template <class Visit>
void each_attribute(const rtattr* first, int bytes, const Visit& visit) {
  for (const rtattr* a = first; RTA_OK(a, bytes); a = RTA_NEXT(a, bytes)) visit(a);
}
template <class Visit>
void each_attribute_in(const rtattr* list, const Visit& visit) {
  each_attribute(static_cast<const rtattr*>(RTA_DATA(list)), static_cast<int>(RTA_PAYLOAD(list)),
                 visit);
}

// The number in an attribute; 0 where it is shorter than one.
int number_in(const rtattr* attribute);

}  // namespace twinpath
