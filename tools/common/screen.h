#pragma once
// What a terminal has room for.
#include <cstddef>
#include <string>
#include <vector>

namespace twinpath::tools {

struct Screen {
  std::size_t columns = 0, lines = 0;  // 0: no limit
};

// Of the terminal behind a descriptor; no limit where there is none.
Screen screen_of(int fd);

// Lines of at most `columns` (0: no limit), broken at blanks; lines that the text has itself stay.
// A word that is longer has a line of its own.
std::vector<std::string> wrapped_lines(const std::string& text, std::size_t columns);

}  // namespace twinpath::tools
