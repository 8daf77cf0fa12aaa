#include "plugin/base/links.h"

#include <linux/if_link.h>

#include <algorithm>
#include <cstring>

#include "plugin/base/rtnetlink.h"

namespace twinpath {
namespace {

std::string text_of(const rtattr* a) {
  const auto* text = static_cast<const char*>(RTA_DATA(a));
  return {text, strnlen(text, RTA_PAYLOAD(a))};
}

}  // namespace

std::vector<Link> system_links() {
  std::vector<Link> out;
  const auto answer = netlink_dump(RTM_GETLINK);
  if (!answer) return out;
  const auto take = [&out](const ifinfomsg& info, const rtattr* first, int bytes) {
    Link link;
    link.index = info.ifi_index;
    each_attribute(first, bytes, [&link](const rtattr* a) {
      if (a->rta_type == IFLA_IFNAME) link.name = text_of(a);
      if (a->rta_type == IFLA_MASTER) link.master = number_in(a);
      if (a->rta_type != IFLA_LINKINFO) return;
      each_attribute_in(a, [&link](const rtattr* of) {
        if (of->rta_type == IFLA_INFO_KIND) link.kind = text_of(of);
      });
    });
    out.push_back(std::move(link));
  };
  each_message<ifinfomsg>(*answer, RTM_NEWLINK, take);
  return out;
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
