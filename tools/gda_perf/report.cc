#include "tools/gda_perf/report.h"

#include <cstdio>
#include <cstring>

#include "tools/common/circumstances.h"
#include "tools/common/output.h"
#include "tools/common/units.h"
#include "tools/gda_perf/error.h"

namespace twinpath::gda_perf {
namespace {

nlohmann::json summary_json(const tools::Statistics& s) {
  return {{"count", s.count}, {"min", s.min}, {"median", s.median}, {"p99", s.p99},
          {"p999", s.p999},   {"max", s.max}, {"mean", s.mean}};
}

nlohmann::json options_json(const Options& o) {
  nlohmann::json tests = nlohmann::json::array();
  for (const Test test : o.tests) tests.push_back(name_of(test));
  return {{"tests", tests},
          {"iterations", o.iterations},
          {"warmup", o.warmup},
          {"contexts", o.contexts},
          {"window", o.window},
          {"volume", o.volume},
          {"repetitions", o.repetitions},
          {"wait_s", o.wait_s}};
}

double cores(const Row& row) { return row.wall_s > 0 ? row.cpu_s / row.wall_s : 0; }

nlohmann::json row_json(const Row& row) {
  nlohmann::json out = {
      {"test", row.test},         {"bytes", row.bytes},       {"blocks", row.blocks},
      {"contexts", row.contexts}, {"messages", row.messages}, {"wrong", row.wrong},
      {"cpu_s", row.cpu_s},       {"wall_s", row.wall_s},     {"cpu_cores", cores(row)}};
  if (!row.variant.empty()) out["variant"] = row.variant;
  if (row.us) out["us"] = summary_json(*row.us);
  if (row.times_ns.count() != 0) out["histogram_us"] = tools::buckets_json(row.times_ns, 1000);
  if (row.messages_per_s) out["messages_per_s"] = *row.messages_per_s;
  if (row.gb_per_s) out["gb_per_s"] = summary_json(*row.gb_per_s);
  return out;
}

ToolError unwritable(const std::string& file, int error) {
  return ToolError(kExitUsage, "--json " + file + " " + tools::why_unwritable(error));
}

tools::Table make_table() {
  return tools::Table({{.title = "test", .width = 22, .left = true},
                       {.title = "size", .unit = "B", .width = 5},
                       {.title = "blocks", .width = 6},
                       {.title = "median", .unit = "us", .width = 8},
                       {.title = "p99", .unit = "us", .width = 8},
                       {.title = "p99.9", .unit = "us", .width = 8},
                       {.title = "min", .unit = "us", .width = 8},
                       {.title = "rate", .unit = "Mmsg/s", .width = 8},
                       {.title = "median", .unit = "GB/s", .width = 8},
                       {.title = "worst", .unit = "GB/s", .width = 8},
                       {.title = "CPU", .unit = "cores", .width = 6},
                       {.title = "wrong", .width = 6}});
}

std::vector<std::string> cells(const Row& row) {
  const auto number = [](bool there, double value, int digits) {
    return there ? tools::fixed(value, digits) : std::string("-");
  };
  const tools::Statistics us = row.us.value_or(tools::Statistics{});
  const tools::Statistics gb = row.gb_per_s.value_or(tools::Statistics{});
  return {row.variant.empty() ? row.test : row.test + " " + row.variant,
          tools::format_bytes(row.bytes),
          std::to_string(row.blocks),
          number(row.us.has_value(), us.median, 2),
          number(row.us.has_value(), us.p99, 2),
          number(row.us.has_value(), us.p999, 2),
          number(row.us.has_value(), us.min, 2),
          number(row.messages_per_s.has_value(), row.messages_per_s.value_or(0) / 1e6, 3),
          number(row.gb_per_s.has_value(), gb.median, 2),
          number(row.gb_per_s.has_value(), gb.min, 2),
          tools::fixed(cores(row), 2),
          std::to_string(row.wrong)};
}

}  // namespace

Report::Report(const Options& options)
    : options_(options),
      table_(make_table()),
      bar_(!(options.json && options.json_file.empty())),
      facts_(nlohmann::json::object()),
      results_(nlohmann::json::array()) {
  // Known before minutes of measuring, not after.
  if (!options.json_file.empty()) {
    const int error = tools::make_output(options.json_file);
    if (error != 0) throw unwritable(options.json_file, error);
  }
  if (const std::string why = tools::plot_file_complaint(options.plot); !why.empty())
    throw ToolError(kExitUsage, why);
  if (!to_stdout()) std::fputs(tools::describe(tools::circumstances()).c_str(), stdout);
}

void Report::fact(const std::string& name, const nlohmann::json& value) {
  facts_[name] = value;
  if (to_stdout()) return;
  const std::string text = value.is_string() ? value.get<std::string>() : value.dump();
  std::printf("# %s: %s\n", name.c_str(), text.c_str());
  std::fflush(stdout);
}

void Report::progress(const std::string& what) {
  bar_.update(static_cast<double>(done_) / static_cast<double>(options_.points()), what);
}

void Report::row(const Row& row) {
  wrong_ += row.wrong;
  ++done_;
  results_.push_back(row_json(row));
  if (to_stdout()) return;
  bar_.clear();
  if (done_ == 1) table_.header(stdout);
  table_.row(stdout, cells(row));
}

nlohmann::json Report::document() const {
  nlohmann::json out = tools::json_envelope("gda_perf", options_json(options_), results_, kSchema);
  out.update(facts_);
  out["wrong"] = wrong_;
  return out;
}

bool Report::finish() {
  bar_.clear();
  if (to_stdout()) {
    std::printf("%s\n", document().dump(2).c_str());
  } else {
    std::printf("# wrong: %llu %s\n", static_cast<unsigned long long>(wrong_),
                wrong_ == 0 ? "OK" : "FAILED");
  }
  std::fflush(stdout);
  if (!options_.json_file.empty()) {
    const int error = tools::write_output(options_.json_file, document().dump(2) + "\n");
    if (error != 0) throw unwritable(options_.json_file, error);
  }
  if (options_.plot.empty() || results_.empty()) return wrong_ == 0;
  const tools::Circumstances c = tools::circumstances();
  std::vector<std::string> heading{"gda_perf"};
  for (const auto& [name, value] : facts_.items())
    heading.push_back(name + ": " + (value.is_string() ? value.get<std::string>() : value.dump()));
  heading.push_back("Twinpath " + c.version + " (" + c.commit + "), " + c.time + ", " + c.host);
  tools::write_plots(options_.plot, heading, plots());
  return wrong_ == 0;
}

std::vector<tools::PlotPanel> Report::plots() const {
  const tools::PlotAxis size{"bytes", true, true}, us{"us", true};
  tools::PlotPanel latency{"latency", size, us, {}},
      rate{"message rate", {"blocks"}, {"messages/s"}, {}},
      bandwidth{"bandwidth", size, {"GB/s"}, {}};
  const auto add = [](tools::PlotPanel& panel, const std::string& name, tools::PlotPoint point) {
    for (tools::PlotSeries& s : panel.series)
      if (s.name == name) return s.points.push_back(point);
    panel.series.push_back({name, {point}});
  };
  for (const nlohmann::json& r : results_) {
    const auto bytes = r["bytes"].get<double>(), blocks = r["blocks"].get<double>();
    const auto name = r["test"].get<std::string>() +
                      (r.contains("variant") ? " " + r["variant"].get<std::string>() : "");
    if (r.contains("us")) {
      const nlohmann::json& s = r["us"];
      add(latency, name, {bytes, s["median"].get<double>()});
      add(latency, name + " p99.9", {bytes, s["p999"].get<double>()});
    }
    if (r.contains("messages_per_s")) add(rate, name, {blocks, r["messages_per_s"].get<double>()});
    if (r.contains("gb_per_s")) {
      const nlohmann::json& s = r["gb_per_s"];
      add(bandwidth, name + ", " + std::to_string(r["blocks"].get<int>()) + " blocks",
          {bytes, s["median"].get<double>(), s["min"].get<double>(), s["max"].get<double>()});
    }
  }
  std::vector<tools::PlotPanel> out;
  for (tools::PlotPanel* panel : {&latency, &rate, &bandwidth})
    if (!panel->series.empty()) out.push_back(std::move(*panel));
  return out;
}

}  // namespace twinpath::gda_perf
