#include "plugin/nccl/tuning.h"

#include <strings.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <span>
#include <string_view>
#include <utility>

#include "plugin/base/log.h"
#include "plugin/nccl/environment.h"

namespace twinpath {
namespace {

// Where a setting is the user's already, or one of `about`, which speak of the same thing, it is
// left alone.
struct Rule {
  const char* name;
  const char* value;
  std::array<const char*, 5> about;  // as many as there are; null behind them
};

// When NCCL reads these, by its source (2.19.3 to 2.30.7; newer ones were not looked at): a
// communicator's commAlloc starts the net plugin (ncclNetInit), and all of the settings below are
// read later in the same communicator's initTransportsRank, each once a process (NCCL_PARAM and
// ncclGetLevel keep the first value): the GDR level in ncclTopoCheckGdr, channels in
// ncclTopoPostset and ncclTopoComputeP2pChannels, sizes in computeBuffSizes.  The tuner's name is
// read there, too (2.22.3 to 2.32.3: ncclTunerPluginLoad).  Files of settings (nccl.conf) are in
// the environment before.
constexpr Rule kRules[] = {
    // For NCCL the adapter, which has no place on the PCI bus, is too far from every GPU.
    {"NCCL_NET_GDR_LEVEL", "SYS", {}},
    // One block a channel feeds about 20 GB/s; NCCL takes 4 channels for one GPU and one adapter
    // whatever the adapter's speed.  Our tuner takes fewer for small collectives.
    {"NCCL_MIN_NCHANNELS",
     "16",
     {"NCCL_MAX_NCHANNELS", "NCCL_MIN_NRINGS", "NCCL_MAX_NRINGS", "NCCL_MIN_CTAS",
      "NCCL_MAX_CTAS"}},
    // Steps of 2 MiB, which the copy engines move in batches.  It costs GPU memory: a connection
    // has 16 MiB a channel.
    {"NCCL_BUFFSIZE", "16777216", {}},
    // NCCL takes no more than an eighth of NCCL_BUFFSIZE: that must not be a smaller one of the
    // user's.
    {"NCCL_P2P_NET_CHUNKSIZE", "524288", {"NCCL_BUFFSIZE"}},
    {"NCCL_MIN_P2P_NCHANNELS", "16", {"NCCL_MAX_P2P_NCHANNELS"}},
    // Up to 2.27.7.  From 2.28.3 on it belongs to the communicator's configuration, which is read,
    // and kept, before the plugin is opened: to set it then is of no use and does no harm.
    {"NCCL_NCHANNELS_PER_NET_PEER", "16", {"NCCL_MIN_P2P_NCHANNELS", "NCCL_MAX_P2P_NCHANNELS"}},
    // From 2.29.2 on: channels for a peer are its bandwidth, 48 GB/s with a GPU on 16 lanes of
    // PCIe 5, divided by this.  2.28 has nothing that can be set this late.
    {"NCCL_P2P_PER_CHANNEL_NET_BW",
     "3",
     {"NCCL_NCHANNELS_PER_NET_PEER", "NCCL_MIN_P2P_NCHANNELS", "NCCL_MAX_P2P_NCHANNELS"}},
};

// Where the soft HCA has host memory only.  Steps of 1 MiB: each thread that copies has one of its
// own (test/MEASUREMENTS.md).
constexpr Rule kHostRules[] = {{"NCCL_BUFFSIZE", "8388608", {}}};

bool is_set(const EnvLookup& user, const char* name) {
  const char* value = user(name);
  return value != nullptr && *value != '\0';
}

// A user who gave the adapters places wants them judged by these.
bool have_places(const Config& config) {
  return config.soft_hcas.find("pci=") != std::string::npos ||
         config.soft_hcas.find("place=") != std::string::npos;
}

std::span<const Rule> rules_for(const Config& config) {
  if (config.soft_cuda == SoftCuda::off) return kHostRules;
  // GPU buffers pass through host memory whatever NCCL is told; nothing was measured for that.
  if (config.mode == ModeChoice::stage) return {};
  return kRules;
}

constexpr const char* kTuner = "libnccl-tuner-twinpath.so";

// NCCL's names of the level, for this purpose: GPU memory is reached wherever the GPU is.
bool is_everywhere(const char* level) {
  return level != nullptr && (::strcasecmp(level, "SYS") == 0 || std::strcmp(level, "5") == 0);
}

// It was measured with the channels chosen above and with GPU memory within reach, or with host
// memory only, where it leaves channels alone; whoever chose otherwise wants that.
void add_tuner(const Config& config, const EnvLookup& user,
               const std::function<std::string()>& find_tuner, Tuning& out) {
  const auto chosen = [&](const char* name) {
    return std::any_of(out.settings.begin(), out.settings.end(),
                       [&](const Setting& s) { return std::string_view(s.name) == name; });
  };
  const bool reached = chosen("NCCL_NET_GDR_LEVEL") || is_everywhere(user("NCCL_NET_GDR_LEVEL"));
  if (config.soft_cuda != SoftCuda::off && (!reached || !chosen("NCCL_MIN_NCHANNELS"))) return;
  if (is_set(user, "NCCL_TUNER_PLUGIN")) {
    out.kept.push_back(std::string("NCCL_TUNER_PLUGIN=") + user("NCCL_TUNER_PLUGIN"));
  } else if (std::string path = find_tuner(); !path.empty()) {
    out.settings.push_back({"NCCL_TUNER_PLUGIN", std::move(path)});
  }
}

}  // namespace

const char* Tuning::gdr_level() const {
  for (const Setting& s : settings) {
    if (std::string_view(s.name) == "NCCL_NET_GDR_LEVEL") return s.value.c_str();
  }
  return nullptr;
}

Tuning choose_tuning(const Config& config, const EnvLookup& user,
                     const std::function<std::string()>& find_tuner) {
  Tuning out;
  if (config.tune == TuneChoice::off || config.fabric != FabricChoice::soft || config.ib_disable) {
    return out;
  }
  for (const Rule& rule : rules_for(config)) {
    if (std::string_view(rule.name) == "NCCL_NET_GDR_LEVEL" && have_places(config)) {
      continue;
    }
    const char* in_the_way = is_set(user, rule.name) ? rule.name : nullptr;
    for (const char* name : rule.about) {
      if (in_the_way == nullptr && name != nullptr && is_set(user, name)) in_the_way = name;
    }
    if (in_the_way == nullptr) {
      out.settings.push_back({rule.name, rule.value});
      continue;
    }
    const std::string kept = std::string(in_the_way) + "=" + user(in_the_way);
    if (out.kept.empty() || out.kept.back() != kept) out.kept.push_back(kept);
  }
  add_tuner(config, user, find_tuner, out);
  return out;
}

std::string find_tuner(const std::string& folder) {
  std::string path = folder + "/" + kTuner;
  if (::access(path.c_str(), R_OK) == 0) return path;
  TP_WARN(
      "%s is not there: NCCL uses the soft HCA less well, and hangs if other ranks have it; put it "
      "beside the plugin, or set TWINPATH_TUNE=off on all ranks",
      path.c_str());
  return {};
}

void apply_tuning(const Tuning& tuning) {
  if (tuning.settings.empty()) return;
  if (!add_to_environment(tuning.settings)) {
    TP_INFO(env, "NCCL's settings for the soft HCA are not set: the environment keeps changing");
    return;
  }
  std::string names, kept;
  for (const Setting& s : tuning.settings) names += std::string(" ") + s.name + "=" + s.value;
  for (const std::string& k : tuning.kept) kept += " " + k;
  TP_INFO(env, "set for NCCL on the soft HCA:%s%s%s (TWINPATH_TUNE=off leaves them)", names.c_str(),
          kept.empty() ? "" : "; kept:", kept.c_str());
}

}  // namespace twinpath
