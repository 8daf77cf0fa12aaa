#include "proxy/wire/hello_pair.h"

#include <algorithm>
#include <cstring>
#include <span>

#include "proxy/wire/failover.h"
#include "proxy/wire/stripe.h"

namespace twinpath {
namespace {

std::span<const HelloRail> regular(const Hello& hello) {
  return std::span(hello.rails).first(static_cast<std::size_t>(hello.ends().regular));
}

bool same_address(const HelloRail& a, const HelloRail& b) {
  return std::memcmp(a.gid.raw, b.gid.raw, sizeof a.gid.raw) == 0;
}

std::string named(const HelloRail& rail, const Hello& hello) {
  return rail.port + " of " + hello.host;
}

const char* network(const HelloRail& rail) { return rail.roce ? "Ethernet" : "InfiniBand"; }

}  // namespace

Status HelloPair::check_rails(bool two_hosts, std::string& why) const {
  for (const HelloRail& a : regular(mine)) {
    for (const HelloRail& b : regular(theirs)) {
      if (a.roce != b.roce) {
        why = named(a, mine) + " is " + network(a) + " but " + named(b, theirs) + " is " +
              network(b) + "; choose ports of one kind with NCCL_IB_HCA";
        return Status::unsupported;
      }
      // An adapter takes its own address for itself: the queues would write to this host, and
      // wait for ever.
      if (!two_hosts || !a.roce || !same_address(a, b)) continue;
      why = named(a, mine) + " and " + named(b, theirs) + " have the same address " +
            gid_text(a.gid) + " (GID index " + std::to_string(a.gid_index) + " and " +
            std::to_string(b.gid_index) +
            "), which reaches neither from the other; choose another with NCCL_IB_ADDR_RANGE or "
            "NCCL_IB_GID_INDEX, or take it off the interfaces";
      return Status::system;
    }
  }
  return Status::ok;
}

int HelloPair::regular_queues() const {
  return queues_for(mine.qps_per_connection, theirs.qps_per_connection, mine.ends().regular,
                    theirs.ends().regular);
}

int HelloPair::shared_pairs() const { return std::min(mine.shared_pairs, theirs.shared_pairs); }

QueuePaths HelloPair::paths() const {
  EndRails here = mine.ends(), there = theirs.ends();
  if (!both_can_fail_over()) here.standby = there.standby = 0;
  return choose_paths(regular_queues(), here, there, [this](int local, int remote) {
    const HelloRail& a = mine.rails[static_cast<std::size_t>(local)];
    const HelloRail& b = theirs.rails[static_cast<std::size_t>(remote)];
    // Two hosts with one address: see check_rails().
    return a.roce == b.roce &&
           (mine.host == theirs.host || !same_address(a, b) || a.gid.global.interface_id == 0);
  });
}

bool HelloPair::both_can_fail_over() const {
  return (mine.capabilities & theirs.capabilities & kCanFailOver) != 0;
}

// With one path there is nothing to go to.
bool HelloPair::can_fail_over() const {
  return both_can_fail_over() && std::max(mine.rails.size(), theirs.rails.size()) > 1;
}

}  // namespace twinpath
