#include "tools/common/progress_bar.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>

#include "plugin/base/clock.h"

namespace twinpath::tools {

ProgressBar::ProgressBar(bool enabled) : enabled_(enabled && isatty(STDERR_FILENO) == 1) {}

void ProgressBar::update(double fraction, const std::string& what) {
  if (!enabled_) return;
  const std::int64_t now = now_ns();
  if (now < next_ns_) return;
  next_ns_ = now + 100 * kMillisecond;
  constexpr int kWidth = 30;
  const int full = static_cast<int>(std::clamp(fraction, 0.0, 1.0) * kWidth);
  const std::string bar = std::string(static_cast<std::size_t>(full), '#') +
                          std::string(static_cast<std::size_t>(kWidth - full), '.');
  std::fprintf(stderr, "\r\033[K[%s] %3.0f %% %s", bar.c_str(), fraction * 100, what.c_str());
  std::fflush(stderr);
  drawn_ = true;
}

void ProgressBar::clear() {
  if (drawn_) std::fprintf(stderr, "\r\033[K");
  drawn_ = false;
}

}  // namespace twinpath::tools
