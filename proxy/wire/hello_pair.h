#pragma once
// The hellos of both ends of a connection, and what follows from the two together.  Pure, and
// symmetric but for who is `mine`: both ends come to the same.
#include <string>

#include "plugin/base/status.h"
#include "proxy/wire/handshake.h"
#include "proxy/wire/paths.h"

namespace twinpath {

struct HelloPair {
  Hello mine, theirs;

  // Whether each end's regular rails can reach the other's, as far as the hellos tell; `why` is for
  // the user otherwise.  `two_hosts`: it is known that the ends are on different hosts.
  Status check_rails(bool two_hosts, std::string& why) const;
  // How many regular queues the connection has.
  int regular_queues() const;
  // The rails that each queue joins, those in reserve too.
  QueuePaths paths() const;
  // How many queue pairs it shares with others on each path; 0: it has its own.
  int shared_pairs() const;
  bool both_can_fail_over() const;
  // Whether the connection survives the failure of a queue.
  bool can_fail_over() const;
  // The process at the other end, for messages: "alpha pid 4711".
  std::string peer_process() const { return theirs.host + " pid " + std::to_string(theirs.pid); }
};

}  // namespace twinpath
