#pragma once
// Which messages a program and the copies of itself that it starts have printed: every worker finds
// the same fault, the user reads it once.
//
// Threads and processes: any.
#include <string_view>

namespace twinpath::tools {

// A file descriptor for a child, closed on exec unless the caller sees to it; made when first asked
// for, to be asked for before any child is started.  -1: there is none, every process says its own.
int said_once_fd();
// In a child: what its parent and the others have said, by the descriptor that it inherited.
void join_said_once(int fd);
// Whether nobody has said this text yet; from now on somebody has.
bool first_to_say(std::string_view text);

}  // namespace twinpath::tools
