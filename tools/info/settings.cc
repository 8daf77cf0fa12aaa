#include "tools/info/settings.h"

#include <cstring>
#include <sstream>

#include "plugin/base/file.h"

namespace twinpath::tools {
namespace {

constexpr std::size_t kMostBytes = 16u << 20;
constexpr const char* kBegin = "<!-- options:begin -->\n";
constexpr const char* kEnd = "<!-- options:end -->";

// The file, split around the text between the markers.
struct Parts {
  std::string before, table, after;
};

bool read_parts(const std::string& path, Parts& parts, std::string& why) {
  const auto read = read_file(path, kMostBytes, why);
  if (!read) {
    why = path + ": " + why;
    return false;
  }
  const std::string& text = *read;
  const auto begin = text.find(kBegin);
  const auto end = begin == std::string::npos ? begin : text.find(kEnd, begin);
  if (end == std::string::npos) {
    why = path +
          " has no lines '<!-- options:begin -->' and '<!-- options:end -->'; add them "
          "where the table of settings belongs";
    return false;
  }
  const auto table = begin + std::strlen(kBegin);
  parts = {text.substr(0, table), text.substr(table, end - table), text.substr(end)};
  return true;
}

std::string with_newline(std::string table) {
  if (table.empty() || table.back() != '\n') table += '\n';
  return table;
}

}  // namespace

bool check_settings(const std::string& path, const std::string& table, std::string& why) {
  Parts parts;
  if (!read_parts(path, parts, why)) return false;
  if (parts.table == with_newline(table)) return true;
  std::istringstream have(parts.table), want(with_newline(table));
  std::string a, b;
  int line = 0;
  do {
    ++line;
    a.clear();
    b.clear();
    std::getline(have, a);
    std::getline(want, b);
  } while (a == b && (have || want));
  why = path + ": the table of settings is not up to date; its line " + std::to_string(line) +
        " is\n  " + a + "\nand should be\n  " + b + "\nrun twinpath-info --update-settings " + path;
  return false;
}

bool update_settings(const std::string& path, const std::string& table, std::string& why) {
  Parts parts;
  if (!read_parts(path, parts, why)) return false;
  if (replace_file(path, parts.before + with_newline(table) + parts.after, 0644, why)) return true;
  why = path + ": " + why;
  return false;
}

}  // namespace twinpath::tools
