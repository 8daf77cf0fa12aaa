#include "plugin/rdma/modify_retry.h"

#include <cerrno>

namespace twinpath {

RetrySettings retry_settings(const Config& config) {
  return {config.ib_mqp_retry_cnt, config.ib_mqp_retry_sleep_ms * kMillisecond,
          config.ib_mqp_retry_all, config.connect_timeout_ms * kMillisecond / 4 * 3};
}

bool ModifyRetry::failed(int error, std::int64_t now) {
  if (error != ETIMEDOUT && !settings_.any_error) return false;
  if (failures_ == 0) first_ = now;
  if (++failures_ > settings_.count) return false;
  next_ = now + failures_ * settings_.pause_ns;
  return next_ - first_ < settings_.limit_ns;
}

int call_error(int result) {
  if (result >= 0) return result;
  if (result < -1) return -result;
  return errno != 0 ? errno : -1;
}

int move_pair(const Verbs& verbs, ibv_qp* qp, ibv_qp_attr& attr, int mask) {
  errno = 0;
  return call_error(verbs.modify_qp(qp, &attr, mask));
}

}  // namespace twinpath
