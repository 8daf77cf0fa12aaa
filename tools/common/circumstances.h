#pragma once
// Under what circumstances a figure was taken; printed with every result, so that a number
// never travels without them.
#include <map>
#include <nlohmann/json.hpp>
#include <string>

namespace twinpath::tools {

// Processors that this process may use.
int usable_cores();
// TWINPATH_* and NCCL_* variables that are set, by name.
std::map<std::string, std::string> relevant_environment();

struct Circumstances {
  std::string version, commit, build_type, compiler;
  std::string host, kernel, cpu, governor;  // governor: empty where the kernel tells none
  int cores = 0;                            // usable by this process
  std::string time;                         // UTC, ISO 8601
  nlohmann::json environment;               // TWINPATH_* and NCCL_* variables that are set
  nlohmann::json files;  // of these: the file of NCCL's that set it (nccl_conf.h)
};
Circumstances circumstances();

// Two or three lines, each beginning with "# ".
std::string describe(const Circumstances& c);
void to_json(nlohmann::json& j, const Circumstances& c);

// What every tool prints for --json: {"tool", "schema", "circumstances", "options", "results"},
// to which the tool may add keys of its own.  "schema" is "TOOL/VERSION"; tools/JSON.md says what
// each has, and when the version changes.
nlohmann::json json_envelope(const std::string& tool, nlohmann::json options,
                             nlohmann::json results, int version = 1);
// "net_perf/2": also for documents that are not of this form.
std::string json_schema(const std::string& name, int version);

}  // namespace twinpath::tools
