#include "tools/info/settings.h"

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <sstream>

namespace twinpath::tools {
namespace {

constexpr const char* kBegin = "<!-- options:begin -->\n";
constexpr const char* kEnd = "<!-- options:end -->";

// The file, split around the text between the markers.
struct Parts {
  std::string before, table, after;
};

bool read_parts(const std::string& path, Parts& parts, std::string& why) {
  std::ifstream in(path, std::ios::binary);
  if (!in) {
    why = "cannot read " + path + ": " + std::strerror(errno);
    return false;
  }
  std::ostringstream all;
  all << in.rdbuf();
  const std::string text = all.str();
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
  const std::string beside = path + ".new";
  {
    std::ofstream out(beside, std::ios::binary);
    out << parts.before << with_newline(table) << parts.after;
    out.close();
    if (!out) {
      why = "cannot write " + beside + ": " + std::strerror(errno);
      return false;
    }
  }
  if (std::rename(beside.c_str(), path.c_str()) == 0) return true;
  why = "cannot replace " + path + ": " + std::strerror(errno);
  return false;
}

}  // namespace twinpath::tools
