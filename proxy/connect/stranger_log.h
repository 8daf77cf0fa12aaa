#pragma once
// Tells of connections by strangers without letting them write the log: the first at once, and
// those of the minute after it in one line.
//
// Threads: any.
#include <cstdint>
#include <mutex>
#include <string>

namespace twinpath {

class StrangerLog {
 public:
  // `what`: who it was and what it did.  `now`: now_ns().
  void tell(const std::string& what, std::int64_t now);

 private:
  std::mutex mutex_;
  std::int64_t told_at_ = 0;  // 0: never
  unsigned long untold_ = 0;
};

}  // namespace twinpath
