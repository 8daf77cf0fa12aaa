#include "tools/common/table.h"

#include <algorithm>

namespace twinpath::tools {

Table::Table(std::vector<Column> columns) : columns_(std::move(columns)) {
  for (Column& c : columns_)
    c.width =
        std::max({c.width, static_cast<int>(c.title.size()), static_cast<int>(c.unit.size())});
}

void Table::add(std::vector<std::string> cells) { rows_.push_back(std::move(cells)); }

std::string Table::line(const std::vector<std::string>& cells) const {
  std::string text;
  for (std::size_t i = 0; i < columns_.size(); ++i) {
    const std::string cell = i < cells.size() ? cells[i] : "-";
    const auto width = static_cast<std::size_t>(columns_[i].width);
    const std::string pad(width > cell.size() ? width - cell.size() : 0, ' ');
    if (i != 0) text += "  ";
    text += columns_[i].left ? cell + pad : pad + cell;
  }
  text.erase(text.find_last_not_of(' ') + 1);
  return text;
}

void Table::header(std::FILE* out) const {
  std::vector<std::string> titles, units;
  bool any_unit = false;
  for (const Column& c : columns_) {
    titles.push_back(c.title);
    units.push_back(c.unit);
    any_unit = any_unit || !c.unit.empty();
  }
  std::fprintf(out, "%s\n", line(titles).c_str());
  if (any_unit) std::fprintf(out, "%s\n", line(units).c_str());
}

void Table::row(std::FILE* out, const std::vector<std::string>& cells) const {
  std::fprintf(out, "%s\n", line(cells).c_str());
  std::fflush(out);
}

void Table::widen() {
  for (const auto& cells : rows_)
    for (std::size_t i = 0; i < columns_.size() && i < cells.size(); ++i)
      columns_[i].width = std::max(columns_[i].width, static_cast<int>(cells[i].size()));
}

std::size_t Table::width() const {
  std::size_t all = 0;
  for (const Column& c : columns_) all += static_cast<std::size_t>(c.width) + 2;
  return all == 0 ? 0 : all - 2;
}

void Table::fit(std::size_t characters) {
  widen();
  while (characters != 0 && width() > characters) {
    const auto first =
        std::max_element(columns_.begin(), columns_.end(),
                         [](const Column& a, const Column& b) { return a.spare < b.spare; });
    if (first == columns_.end() || first->spare == 0) return;
    const auto at = first - columns_.begin();
    for (auto& cells : rows_)
      if (static_cast<std::size_t>(at) < cells.size()) cells.erase(cells.begin() + at);
    columns_.erase(first);
  }
}

void Table::print(std::FILE* out) {
  widen();
  header(out);
  for (const auto& cells : rows_) row(out, cells);
}

}  // namespace twinpath::tools
