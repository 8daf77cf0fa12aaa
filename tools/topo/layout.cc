// Lines and columns.
#include <algorithm>

#include "tools/topo/names.h"
#include "tools/topo/text.h"

namespace twinpath::tools::topo {

std::string wrapped(const std::string& text, std::size_t indent) {
  std::string out, line;
  // The first line keeps its own blanks at the left.
  const std::size_t start = std::min(text.find_first_not_of(' '), text.size());
  line = text.substr(0, start);
  bool fresh = true;  // nothing but blanks in `line`
  for (std::size_t at = start; at < text.size();) {
    // Runs of blanks inside the text keep columns apart: they stay with the word after them.
    const std::size_t word = std::min(text.find_first_not_of(' ', at), text.size());
    const std::size_t end = std::min(text.find(' ', word), text.size());
    const std::string blanks = text.substr(at, word - at);
    const std::string piece = text.substr(word, end - word);
    if (!fresh && line.size() + blanks.size() + piece.size() > kColumns) {
      out += line + "\n";
      line = std::string(indent, ' ') + piece;
    } else {
      line += blanks + piece;
    }
    fresh = false;
    at = end;
  }
  return out + line + "\n";
}

std::string columns(const std::vector<std::vector<std::string>>& rows, std::size_t indent) {
  std::vector<std::size_t> widths;
  for (const auto& row : rows) {
    if (widths.size() < row.size()) widths.resize(row.size(), 0);
    for (std::size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  std::string out;
  for (const auto& row : rows) {
    std::string line(indent, ' ');
    for (std::size_t i = 0; i < row.size(); ++i) line += padded(row[i], widths[i] + 2);
    line.erase(line.find_last_not_of(' ') + 1);
    out += line + "\n";
  }
  return out;
}

}  // namespace twinpath::tools::topo
