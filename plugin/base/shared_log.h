#pragma once
// One log for two copies of this code in a process: a library of ours that has its own (the
// software HCA, plugin/fabric/soft_library.h) uses that of whoever opened it.  So a sink that NCCL
// hands over later reaches both, and warnings are counted once.
//
// Threads: use_log_of before the copy logs; the rest is log.h's.
#include <atomic>

#include "plugin/base/log.h"

namespace twinpath {

struct LogState {
  std::atomic<LogSink> sink{nullptr};
  std::atomic<unsigned long> warnings{0};
};

LogState& log_state();
// `host` outlives the process's last message.
void use_log_of(LogState& host);

}  // namespace twinpath
