#pragma once
// Every step that a user must take to have GPUDirect RDMA and GPU-initiated transfers, as far as
// this version does them, and what a job started here would meet, judged on what was read: OK,
// WARN, FAIL, or unknown where no source told.
//
// Pure.  Threads: any.
#include <string>
#include <vector>

#include "tools/topo/report.h"

namespace twinpath::tools::topo {

enum class Level { ok, unknown, warn, fail };
std::string_view name_of(Level level);  // "OK", "unknown", "WARN", "FAIL"

struct CheckItem {
  std::string group;                 // heading
  std::string id;                    // "memlock": stable
  std::vector<std::string> objects;  // "GPU0", "mlx5_0"; empty: the node
  Level level = Level::ok;
  std::string fact;
  std::string remedy;  // of all but OK
};

// One list; items with equal id, level, fact and remedy are one item of several objects.
class Checks {
 public:
  void begin(std::string group) { group_ = std::move(group); }
  void add(std::string id, std::string object, Level level, std::string fact,
           std::string remedy = {});
  const std::vector<CheckItem>& items() const { return items_; }
  int count(Level level) const;
  // 0 nothing found wrong, 1 warnings, 2 failures; `strict` counts unknown as a warning.
  int exit_code(bool strict) const;

 private:
  std::string group_;
  std::vector<CheckItem> items_;
};

Checks check(const Report& report);
std::string checks_text(const Checks& checks, bool strict);

// --- its parts
void check_gdr(const Report& report, Checks& out);        // check_host.cc
void check_doorbells(const Report& report, Checks& out);  // check_host.cc
void check_host(const Report& report, Checks& out);       // check_host.cc
void check_ports(const Report& report, Checks& out);      // check_ports.cc
void check_paths(const Report& report, Checks& out);      // check_paths.cc
void check_job(const Report& report, Checks& out);        // check_job.cc
void check_gdrcopy(const Report& report, Checks& out);    // check_gdrcopy.cc, of a job

}  // namespace twinpath::tools::topo
