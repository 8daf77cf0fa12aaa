// What a job that is started here meets: limits, processors, libraries, settings, addresses.
#include <algorithm>

#include "tools/topo/check.h"
#include "tools/topo/names.h"

namespace twinpath::tools::topo {
namespace {

std::string limit_text(std::uint64_t n) { return n == kNoLimit ? "unlimited" : std::to_string(n); }

void limits(const JobFacts& j, Checks& out) {
  // A rank has a socket or two for each peer and channel, and NCCL some more: a thousand are gone
  // with some tens of peers.
  constexpr std::uint64_t kEnough = 4096;
  if (!j.descriptors) {
    out.add("descriptors", "", Level::unknown, "the limit of open files was not readable",
            "`ulimit -n` should print 4096 or more");
  } else if (*j.descriptors >= kEnough) {
    out.add("descriptors", "", Level::ok, limit_text(*j.descriptors) + " open files");
  } else {
    const std::uint64_t most = j.most_descriptors.value_or(*j.descriptors);
    out.add("descriptors", "", Level::warn,
            "a process may have " + limit_text(*j.descriptors) +
                " files and sockets open: few for a job of many ranks",
            most >= kEnough ? "`ulimit -n " + (most == kNoLimit ? "65536" : limit_text(most)) +
                                  "` before the job"
                            : "raise the hard limit of " + limit_text(most) +
                                  " (/etc/security/limits.conf, or --ulimit nofile=65536)");
  }
  constexpr std::uint64_t kThreads = 1024;
  if (!j.processes) {
    out.add("processes", "", Level::unknown, "the limit of processes was not readable",
            "`ulimit -u` should print 1024 or more");
  } else if (*j.processes >= kThreads) {
    out.add("processes", "", Level::ok, limit_text(*j.processes) + " processes and threads");
  } else {
    out.add("processes", "", Level::warn,
            limit_text(*j.processes) + " processes and threads may run, those of others included",
            "`ulimit -u`; in a container --pids-limit, pids.max");
  }
  // Text of the plugin's own: fact, and behind the first semicolon what to do.
  const std::size_t remedy = j.held.find("; ");
  if (j.held.empty())
    out.add("processors", "", Level::ok, "enough for NCCL's threads");
  else
    out.add(
        "processors", "", Level::warn, j.held.substr(0, remedy),
        remedy == std::string::npos ? "bind ranks to four or to none" : j.held.substr(remedy + 2));
}

void libraries(const JobFacts& j, Checks& out) {
  if (!j.no_plugin.empty()) {
    out.add("plugin", "", Level::fail, j.no_plugin,
            "install it, or give its path in NCCL_NET_PLUGIN");
  } else if (j.plugin_version.empty()) {
    out.add("plugin", "", Level::warn, j.plugin + " is not Twinpath's",
            "NCCL_NET_PLUGIN=twinpath, or the path of libnccl-net-twinpath.so");
  } else if (j.plugin_version != j.own_version) {
    out.add("plugin", "", Level::warn,
            j.plugin + " is " + j.plugin_version + ", this program " + j.own_version,
            "install both from one package; what is said here may not hold for that plugin");
  } else {
    out.add("plugin", "", Level::ok, j.plugin_version + ", " + j.plugin);
  }
  if (!j.nccl_version.empty())
    out.add("nccl", "", Level::ok, j.nccl_version + " is what the loader finds");
  else
    out.add("nccl", "", Level::unknown, j.no_nccl,
            "none if the program brings its own (PyTorch: torch.cuda.nccl.version())");
}

// Settings of which one makes the other void, or both mean what cannot be.
struct Rule {
  const char* name;
  const char* value;  // the value that it is about; null: any
  const char* other;  // set as well; null: nothing else is needed
  const char* other_value;
  const char* fact;
  const char* remedy;
};
constexpr Rule kRules[] = {
    {"NCCL_NET_PLUGIN", "none", nullptr, nullptr, "NCCL loads no network plugin", "unset it"},
    {"NCCL_NET", "IB", nullptr, nullptr, "NCCL takes its own transport instead of the plugin",
     "unset it, or NCCL_NET=Twinpath"},
    {"NCCL_NET", "Socket", nullptr, nullptr, "NCCL takes sockets instead of the plugin",
     "unset it, or NCCL_NET=Twinpath"},
    {"NCCL_IB_DISABLE", "1", "NCCL_IB_HCA", nullptr,
     "adapters are chosen, and all are switched off", "unset one of the two"},
    {"NCCL_IB_DISABLE", "1", "TWINPATH_FABRIC", "verbs",
     "real adapters are asked for, and all are switched off", "unset NCCL_IB_DISABLE"},
    {"NCCL_IB_GID_INDEX", nullptr, "NCCL_IB_ADDR_RANGE", nullptr,
     "the index goes before the range, which does not count", "unset one of the two"},
    {"NCCL_IB_GID_INDEX", nullptr, "NCCL_IB_ADDR_FAMILY", nullptr,
     "the index goes before the family, which does not count", "unset one of the two"},
    {"NCCL_IB_GID_INDEX", nullptr, "NCCL_IB_ROCE_VERSION_NUM", nullptr,
     "the index goes before the version, which does not count", "unset one of the two"},
    {"NCCL_IB_PKEY", nullptr, "NCCL_IB_PKEY_VALUE", nullptr,
     "the key's value goes before its index", "unset NCCL_IB_PKEY"},
    {"NCCL_DMABUF_ENABLE", "0", nullptr, nullptr,
     "NCCL registers GPU memory by nvidia_peermem only", "unset it where dma-buf works"},
    {"NCCL_NET_GDR_LEVEL", "LOC", "TWINPATH_MODE", "gda",
     "GPU memory may not be reached, and is to be sent by the GPU", "unset one of the two"},
    {"NCCL_NET_GDR_LEVEL", "0", "TWINPATH_MODE", "gda",
     "GPU memory may not be reached, and is to be sent by the GPU", "unset one of the two"},
    {"TWINPATH_MODE", "stage", nullptr, nullptr, "all GPU data goes through host memory",
     "unset it unless that is meant"},
};

// The setting's value; null: not set.  Blank is not set, as in NCCL.
const std::string* set_to(const JobFacts& j, const char* name) {
  const auto it = j.environment.find(name);
  if (it == j.environment.end() || it->second.find_first_not_of(" \t") == std::string::npos)
    return nullptr;
  return &it->second;
}
bool holds(const JobFacts& j, const char* name, const char* value) {
  const std::string* now = set_to(j, name);
  if (now == nullptr || value == nullptr) return now != nullptr;
  return std::equal(now->begin(), now->end(), value, value + std::char_traits<char>::length(value),
                    [](char a, char b) { return std::tolower(a) == std::tolower(b); });
}

void settings(const JobFacts& j, Checks& out) {
  const int before = out.count(Level::warn);
  for (const Contradiction& c : j.contradictions)
    out.add("settings", c.name, Level::warn,
            c.file + " says '" + c.in_file + "', '" + c.in_effect + "' holds",
            "remove one; NCCL takes the environment, then its own file, then /etc/nccl.conf");
  for (const std::string& r : j.refused)
    out.add("settings", "", Level::warn, r, "correct or unset it (twinpath-info --options)");
  for (const std::string& u : j.unread)
    out.add("settings", "", Level::warn, u, "correct or unset it");
  for (const Rule& r : kRules) {
    if (!holds(j, r.name, r.value) || (r.other != nullptr && !holds(j, r.other, r.other_value)))
      continue;
    std::string object = std::string(r.name) + "=" + *set_to(j, r.name);
    if (r.other != nullptr) object += " " + std::string(r.other) + "=" + *set_to(j, r.other);
    out.add("settings", std::move(object), Level::warn, r.fact, r.remedy);
  }
  if (out.count(Level::warn) == before)
    out.add("settings", "", Level::ok, "none contradicts another");
}

void addresses(const JobFacts& j, Checks& out) {
  if (j.rails.empty()) {
    out.add("rails", "", Level::fail,
            "NCCL would get no adapter" + (j.no_rails.empty() ? "" : ": " + j.no_rails),
            "see the ports above and twinpath-info; without adapters TWINPATH_FABRIC=soft");
    return;
  }
  const bool others = std::any_of(j.rails.begin(), j.rails.end(),
                                  [](const RailFacts& r) { return r.network.has_value(); });
  for (const RailFacts& r : j.rails) {
    if (r.gid.empty())
      out.add("address", r.name, Level::fail,
              r.complaint.empty() ? "no GID that can be used" : r.complaint,
              "give its interface an address; NCCL_IB_GID_INDEX");
    else if (!r.complaint.empty())
      out.add("address", r.name, Level::warn, r.complaint, "correct or unset that setting");
    else if (r.roce && !r.network && others && r.gid.starts_with("fe80:"))
      // Then connections go by network only if the user says so, and leave this port out.
      out.add("address", r.name, Level::warn,
              "its GID " + r.gid + " is link-local, while other rails have addresses",
              "give its interface an address of the network at the other end of its cable");
    else
      out.add("address", r.name, Level::ok, "found");
  }
}

// Whether all of them lie in networks of their own, told apart by so many bits (-1: of each its
// own).
bool all_apart(const std::vector<const RailFacts*>& rails, int prefix) {
  for (std::size_t a = 0; a < rails.size(); ++a)
    for (std::size_t b = 0; b < a; ++b)
      if (on_one_network(*rails[a]->network, *rails[b]->network,
                         prefix >= 0 ? prefix : rails[a]->network->prefix))
        return false;
  return true;
}

void networks(const JobFacts& j, const Config& config, Checks& out) {
  std::vector<const RailFacts*> rails;
  int longest = 0;
  for (const RailFacts& r : j.rails) {
    if (!r.network) continue;
    rails.push_back(&r);
    if (r.network->family == AF_INET) longest = std::max(longest, r.network->prefix);
  }
  if (rails.size() < 2) return;
  const int bits = config.ib_subnet_prefix;
  if (!all_apart(rails, -1)) {
    out.add("networks", "", Level::ok, "rails share a network: each can reach each");
  } else if (!all_apart(rails, bits)) {
    // Only the choice by network goes by that number.
    const Level level = config.ib_subnet_aware ? Level::fail : Level::unknown;
    out.add("networks", "", level,
            "each rail has a network of its own, of up to " + std::to_string(longest) +
                " bits; NCCL_IB_SUBNET_PREFIX_LEN=" + std::to_string(bits) + " takes some for one",
            "if they are cabled directly: NCCL_IB_SUBNET_AWARE_ROUTING=1 and "
            "NCCL_IB_SUBNET_PREFIX_LEN=" +
                std::to_string(longest) + " on all hosts");
  } else if (config.ib_subnet_aware) {
    out.add("networks", "", Level::ok,
            std::string("each rail has a network of its own") +
                (j.by_network ? " and no router" : ", and NCCL_IB_SUBNET_AWARE_ROUTING=1") +
                ": connections take the one that the peer is on");
  } else {
    out.add("networks", "", Level::unknown,
            "each rail has a network of its own: whether routers join them is not seen from here",
            "ports cabled to each other directly, or no routers: "
            "NCCL_IB_SUBNET_AWARE_ROUTING=1 on all hosts; `check --hosts` tries every pair");
  }
}

}  // namespace

void check_job(const Report& r, Checks& out) {
  if (!r.job) return;
  const JobFacts& j = *r.job;
  out.begin("a job started here");
  limits(j, out);
  libraries(j, out);
  settings(j, out);
  addresses(j, out);
  networks(j, r.settings.config, out);
  if (!j.gdr_not_tried.empty())
    out.add("gdr-tried", "", Level::unknown,
            "registering GPU memory was not tried: " + j.gdr_not_tried,
            "run where the GPU's driver is");
  check_gdrcopy(r, out);
}

}  // namespace twinpath::tools::topo
