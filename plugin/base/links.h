#pragma once
// The kernel's network links, for what an address does not tell: whether a bridge has a way out of
// this host.
#include <string>
#include <vector>

namespace twinpath {

struct Link {
  int index = 0;
  int master = 0;    // index of the bridge or bond that it is a port of; 0: none
  std::string name;  // "br0"
  std::string kind;  // "bridge", "veth", "vlan"; empty for an adapter's own
};

// All of this network namespace (rtnetlink, RTM_GETLINK); empty where the kernel refuses.
std::vector<Link> system_links();

// Whether `name` is a dummy, or a bridge that leads to containers and virtual machines of this
// host only: none of its ports is anything else than their end of a cable.  Pure.
bool is_aside(const std::vector<Link>& links, const std::string& name);

}  // namespace twinpath
