#pragma once
// Processes that are none of the job: another user's, and one of ours that keeps to no protocol.
#include <sys/types.h>

#include <string>
#include <vector>

namespace twinpath::test {

inline constexpr uid_t kNobody = 65534;

// Roles of child processes (child_process.h).
//   squat NAME   as nobody: listens at an abstract name; tells how many descriptors it was given
//                when the parent says so, having cut each short that it could
//   crowd JOB    as nobody: listens at every name that a process of root's and of that job could be
//                expected to choose; tells how many; stays until the parent goes on
bool is_stranger(const std::string& role);
int stranger_main(const std::string& role, int parent);

// Abstract names at which a process listens, without the leading zero byte.
std::vector<std::string> listens_at(pid_t pid);
// A connected socket to one, or -1.
int connect_to(const std::string& name);

}  // namespace twinpath::test
