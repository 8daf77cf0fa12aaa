#pragma once
// The processes of this host whose counters may be read: their pages lie open in /proc/PID/fd,
// where the kernel shows them to the same user and to root, as long as the process lives.
//
// Root looks into what other users made.  So nothing is opened but memory of the right name
// (open_foreign_memory), one page is mapped at a time, a page is read once however often it is
// open, and each user has a budget: whoever goes beyond it is left out, and nobody else.
#include <cstddef>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "tools/counters/view.h"

namespace twinpath::tools {

// Of one user and one look.  A connection costs readers some 8 KiB while they digest its process.
struct LookLimits {
  std::size_t processes = 256;
  std::size_t connections = 8 * counters::kMaxConnections;
  std::size_t descriptors = 1u << 20;
  std::size_t process_descriptors = 1u << 16;
  std::size_t process_pages = 16;  // of parents that it was forked from, or of copies of the plugin
};

// For who keeps what was read.
inline constexpr LookLimits kKeptLimits{.connections = 4 * counters::kMaxConnections};

// Whom a process counts to, nullopt if it has ended: who started it, which is its real user.  The
// owner of its folder is the effective one: root where anybody runs a program that is set so.
std::optional<unsigned> user_of(int pid);

// Reads the processes by ascending pid.  `only`: that process alone, 0 all.  `notes`: what was left
// out, and why.
void read_processes(int only, std::vector<std::string>& notes,
                    const std::function<void(ProcessSample)>& take, const LookLimits& limits = {});

}  // namespace twinpath::tools
