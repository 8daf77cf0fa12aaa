#include "tools/common/circumstances.h"

#include <sched.h>
#include <sys/utsname.h>

#include <ctime>
#include <fstream>

#include "plugin/base/version.h"
#include "tools/common/nccl_conf.h"

extern char** environ;

namespace twinpath::tools {
namespace {

std::string first_line(const char* path) {
  std::string line;
  std::getline(std::ifstream(path) >> std::ws, line);
  return line;
}

std::string cpu_model() {
  std::ifstream in("/proc/cpuinfo");
  for (std::string line; std::getline(in, line);)
    if (line.starts_with("model name"))
      if (const auto colon = line.find(": "); colon != std::string::npos)
        return line.substr(colon + 2);
  utsname u{};
  return uname(&u) == 0 ? u.machine : "unknown";
}

}  // namespace

int usable_cores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  return sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
}

std::map<std::string, std::string> relevant_environment() {
  std::map<std::string, std::string> out;
  for (char** e = environ; *e != nullptr; ++e) {
    const std::string entry = *e;
    if (!entry.starts_with("TWINPATH_") && !entry.starts_with("NCCL_")) continue;
    const auto equals = entry.find('=');
    out.emplace(entry.substr(0, equals), entry.substr(equals + 1));
  }
  return out;
}

Circumstances circumstances() {
  Circumstances c;
  c.version = built_version();
  c.commit = built_commit();
  c.build_type = TWINPATH_BUILD_TYPE;
#ifdef __clang__
  c.compiler = "clang " __clang_version__;
#else
  c.compiler = "g++ " __VERSION__;
#endif
  if (utsname u{}; uname(&u) == 0) {
    c.host = u.nodename;
    c.kernel = u.release;
  }
  c.cpu = cpu_model();
  c.governor = first_line("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor");
  c.cores = usable_cores();
  const std::time_t now = std::time(nullptr);
  std::tm utc{};
  gmtime_r(&now, &utc);
  char text[32];
  std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &utc);
  c.time = text;
  c.files = nlohmann::json::object();
  for (const auto& [name, file] : nccl_conf().origins) c.files[name] = file;
  c.environment = relevant_environment();
  return c;
}

std::string describe(const Circumstances& c) {
  std::string text = "# Twinpath " + c.version + " (" + c.commit + ", " + c.build_type + ", " +
                     c.compiler + "), " + c.time + "\n# " + c.host + ": " +
                     std::to_string(c.cores) + " cores of " + c.cpu + ", Linux " + c.kernel +
                     (c.governor.empty() ? "" : ", governor " + c.governor) + "\n";
  if (!c.environment.empty()) {
    text += "#";
    for (const auto& [name, value] : c.environment.items())
      text += " " + name + "=" + value.get<std::string>() +
              (c.files.contains(name) ? " (" + c.files[name].get<std::string>() + ")" : "");
    text += "\n";
  }
  return text;
}

void to_json(nlohmann::json& j, const Circumstances& c) {
  j = {{"version", c.version},
       {"commit", c.commit},
       {"build_type", c.build_type},
       {"compiler", c.compiler},
       {"host", c.host},
       {"kernel", c.kernel},
       {"cpu", c.cpu},
       {"governor", c.governor},
       {"cores", c.cores},
       {"time", c.time},
       {"environment", c.environment},
       {"files", c.files}};
}

std::string json_schema(const std::string& name, int version) {
  return name + "/" + std::to_string(version);
}

nlohmann::json json_envelope(const std::string& tool, nlohmann::json options,
                             nlohmann::json results, int version) {
  return {{"tool", tool},
          {"schema", json_schema(tool, version)},
          {"circumstances", circumstances()},
          {"options", std::move(options)},
          {"results", std::move(results)}};
}

}  // namespace twinpath::tools
