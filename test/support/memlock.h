#pragma once
// A limit of locked memory for the life of the object, whatever this machine's is.
#include <sys/resource.h>

namespace twinpath::test {

class LimitedMemlock {
 public:
  LimitedMemlock() {
    (void)::getrlimit(RLIMIT_MEMLOCK, &was_);
    const rlimit limited{.rlim_cur = 65536, .rlim_max = was_.rlim_max};
    (void)::setrlimit(RLIMIT_MEMLOCK, &limited);
  }
  ~LimitedMemlock() { (void)::setrlimit(RLIMIT_MEMLOCK, &was_); }
  LimitedMemlock(const LimitedMemlock&) = delete;
  LimitedMemlock& operator=(const LimitedMemlock&) = delete;

 private:
  rlimit was_{};
};

}  // namespace twinpath::test
