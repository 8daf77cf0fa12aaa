#include "proxy/connect/stranger_log.h"

#include "plugin/base/clock.h"
#include "plugin/base/log.h"

namespace twinpath {
namespace {

constexpr std::int64_t kLinesApart = 60 * kSecond;

}  // namespace

void StrangerLog::tell(const std::string& what, std::int64_t now) {
  unsigned long before = 0;
  {
    const std::lock_guard hold(mutex_);
    if (told_at_ != 0 && now - told_at_ < kLinesApart) {
      ++untold_;
      return;
    }
    told_at_ = now;
    before = untold_;
    untold_ = 0;
  }
  if (before == 0) {
    TP_WARN("%s; more of this kind are told once a minute", what.c_str());
  } else {
    TP_WARN("%lu connections by strangers were dropped since the last line; the latest: %s", before,
            what.c_str());
  }
}

}  // namespace twinpath
