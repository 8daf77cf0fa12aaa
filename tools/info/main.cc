// twinpath-info: version, fabrics and devices, and every option with its value and where the
// value comes from.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <cstdlib>

#include "plugin/base/options.h"
#include "plugin/base/text.h"
#include "plugin/base/version.h"
#include "tools/common/arguments.h"
#include "tools/common/circumstances.h"
#include "tools/common/nccl_conf.h"
#include "tools/common/output.h"
#include "tools/counters/show.h"
#include "tools/info/counters.h"
#include "tools/info/fabrics.h"
#include "tools/info/settings.h"

namespace {

using namespace twinpath;
using namespace twinpath::tools;

// Of the JSON document: tools/JSON.md says when it changes.
constexpr int kSchema = 2;

constexpr const char* kExamples = R"(Examples:
  twinpath-info                          what the plugin would use here, and why
  TWINPATH_FABRIC=soft twinpath-info     the same with the software HCA
  twinpath-info --options                every setting, its value and its origin
  twinpath-info --json | jq .fabrics
  NCCL_CONF_FILE=job.conf twinpath-info  what a job with this file would use
  twinpath-info --counters               what your processes have counted

Settings are those of the environment and, as in a job, of NCCL's files:
NCCL_CONF_FILE, else ~/.nccl.conf, and /etc/nccl.conf.

Exit status: 0 all right, 1 a check failed, a setting was refused, or --counters
found no process; 2 bad arguments.)";

std::string origin(const OptionState& s) {
  if (!s.error.empty()) return "default (refused)";
  if (!s.from_environment) return "default";
  const auto file = nccl_conf().origins.find(std::string(s.option->name));
  return file == nccl_conf().origins.end() ? "environment" : file->second;
}

void print_options(const std::vector<OptionState>& states) {
  std::string_view group;
  for (const OptionState& s : states) {
    if (s.option->group != group) {
      group = s.option->group;
      std::printf("\n%.*s\n", static_cast<int>(group.size()), group.data());
    }
    const std::string value = s.value.empty() ? "(empty)" : printable(s.value);
    std::printf("  %-34.*s %-18s %-18s %.*s\n", static_cast<int>(s.option->name.size()),
                s.option->name.data(), value.c_str(), origin(s).c_str(),
                static_cast<int>(s.option->values.size()), s.option->values.data());
    if (!s.error.empty()) std::printf("    refused: %s\n", s.error.c_str());
  }
  for (const UnsupportedOption& u : unsupported_options())
    if (counts_as_set(std::getenv(std::string(u.name).c_str())))
      std::printf("  %-34.*s is set but has no effect: %.*s\n", static_cast<int>(u.name.size()),
                  u.name.data(), static_cast<int>(u.reason.size()), u.reason.data());
}

nlohmann::json options_json(const std::vector<OptionState>& states) {
  nlohmann::json all = nlohmann::json::array();
  for (const OptionState& s : states)
    all.push_back({{"name", s.option->name},
                   {"group", s.option->group},
                   {"values", s.option->values},
                   {"doc", s.option->doc},
                   {"value", s.value},
                   {"default", s.default_value},
                   {"origin", s.error.empty() ? origin(s) : "default"},
                   {"error", s.error}});
  return all;
}

int show_counters(const std::string& sysfs, bool json) {
  const Summary s = look_at_counters(sysfs);
  if (json) {
    nlohmann::json all =
        json_envelope("twinpath-info", {{"once", true}, {"pid", 0}, {"interval", 0}}, nullptr);
    all.erase("results");
    all["schema"] = json_schema("twinpath-top", kTopSchema);
    all.update(summary_json(s));
    std::printf("%s\n", all.dump(2).c_str());
  } else {
    std::printf("%s", describe(circumstances()).c_str());
    print_counters(s);
  }
  return s.processes.empty() ? 1 : 0;
}

int run(int argc, char** argv) {
  CLI::App app{"twinpath-info: what the Twinpath plugin finds and how it is set\n",
               "twinpath-info"};
  set_form(app);
  app.footer(kExamples);
  app.set_version_flag("--version", std::string("twinpath-info ") + built_from());
  bool options = false, json = false, markdown = false, verbose = false, counted = false;
  std::string check, update, sysfs = "/sys";
  app.add_flag("--options", options, "list every option, its value and its origin");
  app.add_flag("--counters", counted,
               "what running processes have counted since they began; with --json the document of "
               "twinpath-top");
  app.add_option("--sysfs", sysfs, "FOLDER to read adapters' counters from [/sys]")
      ->check(is_folder());
  app.add_flag("--json", json, "everything as one JSON document");
  app.add_flag("--markdown", markdown, "the table of settings of plugin/SETTINGS.md");
  app.add_flag("-v,--verbose", verbose, "show what was logged while looking for devices");
  // The second names are older: the table stood in the README.
  app.add_option("--check-settings,--check-readme", check,
                 "FILE: fail when its table of settings is not up to date");
  app.add_option("--update-settings,--update-readme", update,
                 "FILE: rewrite its table of settings");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& e) {
    return app.exit(e) == 0 ? 0 : 2;
  }

  std::string why;
  if ((!update.empty() && !update_settings(update, options_markdown(), why)) ||
      (!check.empty() && !check_settings(check, options_markdown(), why))) {
    std::fprintf(stderr, "twinpath-info: %s\n", why.c_str());
    return 1;
  }
  if (markdown) std::printf("%s", options_markdown().c_str());
  if (markdown || !check.empty() || !update.empty()) return 0;

  // Before anything reads a setting.
  for (const std::string& text : environment_complaints())
    std::fprintf(stderr, "twinpath-info: %s\n", text.c_str());
  if (counted) return show_counters(sysfs, json);

  std::vector<OptionState> states;
  const Config config = read_config([](const char* name) { return std::getenv(name); }, &states);
  bool refused = false;
  for (const OptionState& s : states) refused = refused || !s.error.empty();
  // What only opening a fabric finds: a list of adapters that cannot be read, a file that is none.
  std::vector<std::string> refusals;
  if (json) {
    const std::vector<FabricReport> fabrics = look_at_fabrics(config);
    refusals = refused_settings(fabrics);
    nlohmann::json all = json_envelope("twinpath-info", options_json(states), nullptr, kSchema);
    all.erase("results");
    all["fabrics"] = fabrics_json(fabrics);
    all["refused"] = refusals;
    std::printf("%s\n", all.dump(2).c_str());
  } else {
    std::printf("%s", describe(circumstances()).c_str());
    if (options) {
      print_options(states);
    } else {
      const std::vector<FabricReport> fabrics = look_at_fabrics(config);
      refusals = refused_settings(fabrics);
      print_fabrics(fabrics, config, verbose);
    }
  }
  for (const OptionState& s : states)
    if (!s.error.empty())
      std::fprintf(stderr, "twinpath-info: %.*s: %s; the default %s is used\n",
                   static_cast<int>(s.option->name.size()), s.option->name.data(), s.error.c_str(),
                   s.default_value.c_str());
  for (const std::string& text : refusals)
    std::fprintf(stderr, "twinpath-info: %s\n", text.c_str());
  return refused || !refusals.empty() ? 1 : 0;
}

}  // namespace

int main(int argc, char** argv) {
  return run_tool("twinpath-info", 1, [&] { return run(argc, argv); });
}
