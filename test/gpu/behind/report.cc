#include "test/gpu/behind/report.h"

#include <algorithm>
#include <cstdio>
#include <map>
#include <nlohmann/json.hpp>

#include "tools/common/circumstances.h"
#include "tools/common/table.h"
#include "tools/common/units.h"

namespace twinpath::behind {
namespace {

tools::Table make_table() {
  return tools::Table({{.title = "layout", .width = 9, .left = true},
                       {.title = "case", .width = 22, .left = true},
                       {.title = "size", .unit = "B", .width = 5},
                       {.title = "verdict", .width = 8},
                       {.title = "wrong", .width = 6},
                       {.title = "median", .unit = "us", .width = 9},
                       {.title = "max", .unit = "us", .width = 10},
                       {.title = "took", .unit = "s", .width = 6},
                       {.title = "", .left = true}});
}

std::vector<std::string> cells(const Result& r) {
  const tools::Statistics us = tools::summarize(r.call_us);
  const bool timed = us.count != 0;
  return {name_of(r.layout),
          r.which.call,
          tools::format_bytes(r.which.bytes),
          name_of(r.verdict),
          timed ? std::to_string(r.wrong) : "-",
          timed ? tools::fixed(us.median, 1) : "-",
          timed ? tools::fixed(us.max, 1) : "-",
          tools::fixed(r.seconds, 2),
          r.detail};
}

}  // namespace

const char* name_of(Verdict verdict) {
  switch (verdict) {
    case Verdict::ok:
      return "ok";
    case Verdict::wrong:
      return "WRONG";
    case Verdict::hung:
      return "HUNG";
    case Verdict::failed:
      return "FAILED";
    case Verdict::skipped:
      return "skipped";
    case Verdict::not_run:
      return "not run";
  }
  return "?";
}

bool is_good(Verdict verdict) { return verdict == Verdict::ok || verdict == Verdict::skipped; }

Report::Report(const Options& options, int gpus) : options_(options), gpus_(gpus) {
  std::FILE* out = options.json ? stderr : stdout;
  std::fputs(tools::describe(tools::circumstances()).c_str(), out);
  std::fprintf(out, "# %d GPUs, %d rounds a case, behind %s\n", gpus, options.rounds,
               options.work == Work::gin ? "all-reduces by GIN" : "ncclAllReduce");
  if (!options.json) make_table().header(stdout);
  std::fflush(out);
}

void Report::add(const Result& r) {
  if (!is_good(r.verdict)) ++bad_;
  results_.push_back(r);
  if (!options_.json) {
    make_table().row(stdout, cells(r));
    std::fflush(stdout);
    return;
  }
  const tools::Statistics us = tools::summarize(r.call_us);
  const nlohmann::json line = {{"layout", name_of(r.layout)},
                               {"case", r.which.call},
                               {"bytes", r.which.bytes},
                               {"verdict", name_of(r.verdict)},
                               {"behind", options_.work == Work::gin ? "gin" : "all-reduce"},
                               {"gpus", gpus_},
                               {"rounds", options_.rounds},
                               {"wrong", r.wrong},
                               {"median_us", us.median},
                               {"max_us", us.max},
                               {"seconds", r.seconds},
                               {"detail", r.detail}};
  std::printf("%s\n", line.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace).c_str());
  std::fflush(stdout);
}

void Report::finish() {
  std::FILE* out = options_.json ? stderr : stdout;
  if (options_.json) {
    tools::Table table = make_table();
    for (const Result& r : results_) table.add(cells(r));
    table.print(stderr);
  }
  std::map<std::string, int> counts;
  for (const Result& r : results_) ++counts[name_of(r.verdict)];
  std::string sums;
  for (const auto& [name, count] : counts) {
    sums += (sums.empty() ? "" : ", ") + std::to_string(count) + " " + name;
  }
  std::fprintf(out, "# %s\n", sums.empty() ? "nothing was run" : sums.c_str());
}

}  // namespace twinpath::behind
