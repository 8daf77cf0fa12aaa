#pragma once
// A text table: right-aligned columns under a heading.  print() for all rows at the end, or
// header() and row() as results come, when widths are known beforehand.
#include <cstdio>
#include <string>
#include <vector>

namespace twinpath::tools {

class Table {
 public:
  struct Column {
    std::string title;
    std::string unit = {};  // second heading line; may be empty
    int width = 0;          // least width
    bool left = false;
    int spare = 0;  // for fit(): columns with the highest go first; 0: stays
  };
  explicit Table(std::vector<Column> columns);
  void add(std::vector<std::string> cells);  // missing cells print as "-"
  // Leaves out columns until the rows added so far fit into so many characters; 0: no limit.
  void fit(std::size_t characters);
  void print(std::FILE* out);  // widens columns to fit, then prints everything

  void header(std::FILE* out) const;
  void row(std::FILE* out, const std::vector<std::string>& cells) const;

 private:
  void widen();
  std::size_t width() const;
  std::string line(const std::vector<std::string>& cells) const;
  std::vector<Column> columns_;
  std::vector<std::vector<std::string>> rows_;
};

}  // namespace twinpath::tools
