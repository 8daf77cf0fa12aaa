#include "tools/topo/check.h"

#include <algorithm>

#include "tools/topo/names.h"
#include "tools/topo/text.h"

namespace twinpath::tools::topo {

std::string_view name_of(Level level) {
  switch (level) {
    case Level::ok:
      return "OK";
    case Level::unknown:
      return "unknown";
    case Level::warn:
      return "WARN";
    case Level::fail:
      break;
  }
  return "FAIL";
}

void Checks::add(std::string id, std::string object, Level level, std::string fact,
                 std::string remedy) {
  for (CheckItem& i : items_) {
    if (i.group != group_ || i.id != id || i.level != level || i.fact != fact ||
        i.remedy != remedy || object.empty() || i.objects.empty())
      continue;
    i.objects.push_back(std::move(object));
    return;
  }
  CheckItem item{group_, std::move(id), {}, level, std::move(fact), std::move(remedy)};
  if (!object.empty()) item.objects.push_back(std::move(object));
  items_.push_back(std::move(item));
}

int Checks::count(Level level) const {
  return static_cast<int>(std::count_if(items_.begin(), items_.end(),
                                        [&](const CheckItem& i) { return i.level == level; }));
}

int Checks::exit_code(bool strict) const {
  if (count(Level::fail) > 0) return 2;
  return count(Level::warn) > 0 || (strict && count(Level::unknown) > 0) ? 1 : 0;
}

Checks check(const Report& report) {
  Checks out;
  check_gdr(report, out);
  check_doorbells(report, out);
  check_host(report, out);
  check_ports(report, out);
  check_paths(report, out);
  check_job(report, out);
  return out;
}

std::string checks_text(const Checks& checks, bool strict) {
  std::string out, group;
  for (const CheckItem& i : checks.items()) {
    if (i.group != group) out += (group = i.group) + "\n";
    std::string line = "  " + padded(std::string(name_of(i.level)), 8) + padded(i.id, 16) + " ";
    if (!i.objects.empty()) line += few(i.objects) + ": ";
    line += i.fact;
    if (!i.remedy.empty()) line += " -> " + i.remedy;
    out += wrapped(line, 27);
  }
  const auto part = [&](Level level) { return std::to_string(checks.count(level)); };
  out += part(Level::ok) + " OK, " + part(Level::warn) + " WARN, " + part(Level::fail) + " FAIL, " +
         part(Level::unknown) + " unknown: exit status " +
         std::to_string(checks.exit_code(strict)) + "\n";
  return out;
}

}  // namespace twinpath::tools::topo
