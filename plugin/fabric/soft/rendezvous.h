#pragma once
// Where the processes of one user and job find each other.
//
// Each listens on an abstract UNIX socket named "twinpath-USER-JOB-SLOT-RANDOM" (the kernel removes
// the name when the process dies, however it dies).  The slot is the upper part of its QP numbers,
// so a QP number says whom to ask; the 128 random bits keep others from taking the names first, and
// the kernel's own list of sockets (/proc/net/unix) announces them.  A name proves nothing: who
// answers under it is asked for its user (SO_PEERCRED), on both ends.
//
// Threads: any.
#include <sys/types.h>

#include <cstdint>
#include <string>
#include <vector>

#include "plugin/base/owned.h"
#include "plugin/base/status.h"

namespace twinpath::soft {

// Whether the process at the other end of a connected UNIX socket is our user's; `user` is its.
bool is_own_user(int socket, uid_t& user);

class Rendezvous {
 public:
  Rendezvous(const std::string& job, std::uint32_t slots);
  // What is the same for all processes of this user and job.
  const std::string& prefix() const { return prefix_; }

  // Takes a slot that no other process has, and listens there; non-blocking.  `why`: for the user.
  Result<UniqueFd> claim(std::uint32_t& slot, std::string& why) const;
  // A socket to the process of a slot.  Waits only while its backlog is full, and 5 s at most.
  // closed: there is none; other errors: there is, but not for us.
  Result<UniqueFd> reach(std::uint32_t slot, std::string& why) const;

 private:
  struct Name {
    std::string text;
    std::uint32_t slot = 0;
  };
  // All names of this user and job that somebody listens at, whoever that is.
  Result<std::vector<Name>> names(std::string& why) const;
  // Whether a process of ours answers under a name of that slot, `own` apart.  `trusting`: one that
  // is too busy to answer counts as ours.
  bool is_taken(std::uint32_t slot, const std::vector<Name>& names, const std::string& own,
                bool trusting) const;

  std::string prefix_;
  std::uint32_t slots_;
};

}  // namespace twinpath::soft
