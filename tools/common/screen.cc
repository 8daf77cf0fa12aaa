#include "tools/common/screen.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>

namespace twinpath::tools {

Screen screen_of(int fd) {
  winsize size{};
  if (isatty(fd) != 1 || ioctl(fd, TIOCGWINSZ, &size) != 0) return {};
  return {size.ws_col, size.ws_row};
}

std::vector<std::string> wrapped_lines(const std::string& text, std::size_t columns) {
  std::vector<std::string> out(1);
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = std::min(text.find_first_of(" \n", at), text.size());
    std::string& line = out.back();
    const bool full = columns != 0 && line.size() + 1 + (end - at) > columns;
    if (!line.empty() && full)
      out.emplace_back();
    else if (!line.empty())
      line += ' ';
    out.back().append(text, at, end - at);
    if (end < text.size() && text[end] == '\n') out.emplace_back();
    at = end + 1;
  }
  return out;
}

}  // namespace twinpath::tools
