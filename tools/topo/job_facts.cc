#include "tools/topo/job_facts.h"

#include <dlfcn.h>
#include <sys/resource.h>

#include <algorithm>
#include <cstdarg>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <regex>

#include "plugin/base/cpus.h"
#include "plugin/base/file.h"
#include "plugin/base/log.h"
#include "plugin/base/options.h"
#include "plugin/base/version.h"
#include "plugin/fabric/by_network.h"
#include "plugin/fabric/fabric.h"
#include "plugin/fabric/gid.h"
#include "tools/common/circumstances.h"
#include "tools/common/nccl_conf.h"
#include "tools/common/nccl_library.h"
#include "tools/common/net_plugin.h"

namespace twinpath::tools::topo {
namespace {

std::optional<std::uint64_t> value_of(rlim_t limit) {
  return limit == RLIM_INFINITY ? kNoLimit : static_cast<std::uint64_t>(limit);
}

// pids.max of the control group (v2) that this process is in.
std::optional<std::uint64_t> most_pids() {
  std::string why;
  const auto own = read_file("/proc/self/cgroup", 1 << 16, why);
  if (!own) return std::nullopt;
  const std::size_t at = own->find("0::");
  if (at == std::string::npos) return std::nullopt;
  const std::string group = own->substr(at + 3, own->find('\n', at) - at - 3);
  const auto text = read_file("/sys/fs/cgroup" + group + "/pids.max", 64, why);
  if (!text || text->starts_with("max")) return std::nullopt;
  return std::strtoull(text->c_str(), nullptr, 10);
}

void read_limits(JobFacts& out) {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) == 0) {
    out.descriptors = value_of(limit.rlim_cur);
    out.most_descriptors = value_of(limit.rlim_max);
  }
  if (getrlimit(RLIMIT_NPROC, &limit) == 0) out.processes = value_of(limit.rlim_cur);
  if (const auto pids = most_pids()) out.processes = std::min(*pids, out.processes.value_or(*pids));
  out.held = held_on_few();
}

void read_plugin(JobFacts& out) {
  out.own_version = built_from();
  out.plugin = find_plugin("");
  std::string why = "is not in the loader's search path";
  std::string file = out.plugin;
  if (file.find('/') == std::string::npos) {
    // Where the loader finds it; opening it starts nothing.
    void* library = dlopen(file.c_str(), RTLD_LAZY | RTLD_LOCAL);
    void* table = library == nullptr ? nullptr : dlsym(library, "ncclNetPlugin_v8");
    Dl_info info{};
    file = table != nullptr && dladdr(table, &info) != 0 ? info.dli_fname : "";
    if (library != nullptr && file.empty()) why = "is no net plugin that this program knows";
  }
  constexpr std::size_t kMost = std::size_t{256} << 20;
  const auto bytes = file.empty() ? std::nullopt : read_file(file, kMost, why);
  if (!bytes) {
    out.no_plugin = out.plugin + " " + why;
    return;
  }
  out.plugin = file;
  out.plugin_version = version_in(*bytes);
}

void read_nccl(JobFacts& out) {
  try {
    const NcclLibrary library("", "2.0", "it is opened as the loader finds it");
    int (*get_version)(int*) = nullptr;
    library.find("ncclGetVersion", get_version);
    int version = 0;
    if (get_version(&version) == 0) out.nccl_version = nccl_version_text(version);
  } catch (const Failure& failure) {
    out.no_nccl = failure.what();
  }
}

void read_settings(JobFacts& out) {
  out.unread = environment_complaints();
  for (const OverruledSetting& o : nccl_conf().overruled) {
    const char* now = std::getenv(o.name.c_str());
    out.contradictions.push_back({o.name, o.file, o.value, now == nullptr ? "" : now});
  }
  out.environment = relevant_environment();
  std::vector<OptionState> states;
  (void)read_config([](const char* name) { return std::getenv(name); }, &states);
  for (const OptionState& s : states)
    if (!s.error.empty())
      out.refused.push_back(std::string(s.option->name) + ": " + s.error + "; the default " +
                            s.default_value + " is used");
}

RailFacts rail_of(const Port& port, const Config& config, const std::vector<OwnNetwork>& networks) {
  RailFacts r;
  r.name = port.name;
  r.roce = port.roce;
  r.mbps = port.speed_mbps;
  r.mtu = 128 << static_cast<int>(port.active_mtu);  // IBV_MTU_256 is 1
  auto gid = choose_gid(port, config, r.complaint);
  if (!gid || is_zero(gid->gid)) return r;
  char text[INET6_ADDRSTRLEN] = {};
  (void)inet_ntop(family_of(gid->gid), address_in(gid->gid), text, sizeof text);
  r.gid = text;
  const auto network = port.roce ? network_of(gid->gid, networks) : std::nullopt;
  if (network) r.network = network->range;
  return r;
}

// The plugin warns of what it leaves out; the first of it is the cause.  A sink is a plain
// function, so what it writes to must be static.
std::string& first_warning() {
  static std::string text;
  return text;
}
void keep_first(LogLevel level, unsigned long, const char*, int, const char* format, ...) {
  if (level != LogLevel::warn || !first_warning().empty()) return;
  char text[1024];
  va_list args;
  va_start(args, format);
  std::vsnprintf(text, sizeof text, format, args);
  va_end(args);
  first_warning() = text;
}

void read_rails(const Config& config, JobFacts& out) {
  first_warning().clear();
  const LogSink before = set_log_sink(keep_first);
  {
    const auto fabric = open_fabric(config);
    if (fabric) {
      const auto networks = own_networks();
      for (const Port& p : (*fabric)->ports) out.rails.push_back(rail_of(p, config, networks));
      const Config chosen = with_choice_by_network(
          config, (*fabric)->ports, networks, [](const char* name) { return std::getenv(name); });
      if (chosen.ib_subnet_aware && !config.ib_subnet_aware)
        out.by_network = chosen.ib_subnet_prefix;
    }
  }
  (void)set_log_sink(before);
  if (!out.rails.empty()) return;
  constexpr std::string_view kPrefix = "NET/Twinpath: ";
  out.no_rails = first_warning();
  if (out.no_rails.starts_with(kPrefix)) out.no_rails.erase(0, kPrefix.size());
}

}  // namespace

std::string version_in(std::string_view bytes) {
  // A release, and behind it what it was built from (plugin/base/version.cc).
  static const std::regex kVersion(
      R"([0-9]{1,4}\.[0-9]{1,4}\.[0-9]{1,4} \(([0-9a-f]{12}(-dirty)?|no commit)\))");
  constexpr std::string_view kNumber = "0123456789.";
  for (std::size_t at = bytes.find(" ("); at != std::string_view::npos;
       at = bytes.find(" (", at + 1)) {
    if (at == 0 || kNumber.find(bytes[at - 1]) == std::string_view::npos) continue;
    const std::size_t before = bytes.find_last_not_of(kNumber, at - 1);
    const std::size_t begin = before == std::string_view::npos ? 0 : before + 1;
    const std::size_t end = bytes.find(')', at);
    if (end == std::string_view::npos || end - begin > 48) continue;
    const std::string candidate(bytes.substr(begin, end + 1 - begin));
    if (std::regex_match(candidate, kVersion)) return candidate;
  }
  return {};
}

bool on_one_network(const IpRange& a, const IpRange& b, int prefix) {
  IpRange network = a;
  network.prefix = a.family == AF_INET ? prefix : 64;
  return network.contains(b.family, b.address.data());
}

JobFacts read_job_facts(const Config& config) {
  JobFacts out;
  read_limits(out);
  read_plugin(out);
  read_nccl(out);
  read_settings(out);
  read_rails(config, out);
  return out;
}

}  // namespace twinpath::tools::topo
