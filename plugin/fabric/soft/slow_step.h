#pragma once
// Names control-path steps that took longer than a user would expect: they wait for the CUDA
// driver or for a peer, and a slow teardown or first message is otherwise hard to explain.
#include "plugin/base/clock.h"
#include "plugin/base/log.h"

namespace twinpath::soft {

class SlowStep {
 public:
  explicit SlowStep(const char* what) : what_(what), begin_(now_ns()) {}
  ~SlowStep() {
    const std::int64_t ms = (now_ns() - begin_) / kMillisecond;
    if (ms >= 100) TP_INFO(net, "soft HCA: %s took %ld ms", what_, static_cast<long>(ms));
  }
  SlowStep(const SlowStep&) = delete;
  SlowStep& operator=(const SlowStep&) = delete;

 private:
  const char* what_;
  std::int64_t begin_;
};

}  // namespace twinpath::soft
