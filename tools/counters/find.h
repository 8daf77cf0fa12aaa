#pragma once
// The processes of this host whose counters may be read: their pages lie open in /proc/PID/fd,
// where the kernel shows them to the same user and to root, as long as the process lives.
#include <memory>
#include <string>
#include <vector>

#include "tools/counters/view.h"

namespace twinpath::tools {

struct FoundProcess {
  int pid = 0;
  unsigned uid = 0;
  std::string program;  // of /proc/PID/comm
  std::shared_ptr<CounterView> view;
  ProcessSample read() const;
};

// By ascending pid.  `only`: that process alone, 0 all.  `notes`: pages that cannot be read, and
// why.
std::vector<FoundProcess> find_processes(int only, std::vector<std::string>& notes);

}  // namespace twinpath::tools
