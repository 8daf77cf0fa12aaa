#include "tools/common/job.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <fstream>

#include "tools/common/failure.h"

namespace twinpath::tools {
namespace {

constexpr long kMostRanks = 1 << 20;

std::optional<int> whole_number(const std::string& text) {
  if (text.empty()) return std::nullopt;
  char* end = nullptr;
  const long n = std::strtol(text.c_str(), &end, 10);
  if (*end != '\0' || n < 0 || n > kMostRanks) return std::nullopt;
  return static_cast<int>(n);
}

// Whoever started this process itself stands before what that was started in: torchrun and mpirun
// run inside Slurm's steps, and steps inside allocations, whose variables are all still set.
struct Launcher {
  const char *from, *rank, *size, *local, *needs;
};
constexpr Launcher kLaunchers[] = {
    // The first three are names that others use, too: an id of its own tells torchrun.
    {"torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK", "TORCHELASTIC_RUN_ID"},
    {"OpenMPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
     nullptr},
    {"MVAPICH", "MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE", "MV2_COMM_WORLD_LOCAL_RANK", nullptr},
    // Cray's PALS; Hydra, Intel MPI.
    {"PMI", "PMI_RANK", "PMI_SIZE", "PMI_LOCAL_RANK", "PMI_LOCAL_RANK"},
    {"PMI", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", nullptr},
    {"jsrun", "JSM_NAMESPACE_RANK", "JSM_NAMESPACE_SIZE", "JSM_NAMESPACE_LOCAL_RANK", nullptr},
    {"Flux", "FLUX_TASK_RANK", "FLUX_JOB_SIZE", "FLUX_TASK_LOCAL_ID", nullptr},
    // SLURM_PROCID alone is also set in a batch script, which runs once: a step id is what srun
    // adds.
    {"Slurm", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", "SLURM_STEP_ID"},
    {"Slurm", "SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", "SLURM_STEP_ID"}};

// Batch scripts, the shell that salloc opens and their like: one process each, under ids from
// 0xfffffff0 on (SLURM_BATCH_SCRIPT and the others of slurm.h).
bool is_special_step(const std::string& id) {
  char* end = nullptr;
  const unsigned long long n = std::strtoull(id.c_str(), &end, 10);
  return !id.empty() && *end == '\0' && n >= 0xfffffff0u;
}

// What tells one host, and one network namespace of it, from another.
struct Identity {
  std::array<char, 64> name{};
  std::array<char, 64> boot{};
  std::array<char, 64> network{};
  bool same_host(const Identity& o) const { return boot == o.boot && network == o.network; }
};

Identity own_identity() {
  Identity id;
  (void)gethostname(id.name.data(), id.name.size() - 1);
  std::string boot;
  std::getline(std::ifstream("/proc/sys/kernel/random/boot_id"), boot);
  if (boot.empty()) boot = id.name.data();
  boot.copy(id.boot.data(), id.boot.size() - 1);
  (void)!readlink("/proc/self/ns/net", id.network.data(), id.network.size() - 1);
  return id;
}

}  // namespace

std::optional<Place> job_place(const Lookup& lookup) {
  const auto text = [&](const char* name) {
    const char* value = lookup(name);
    return std::string(value == nullptr ? "" : value);
  };
  for (const Launcher& l : kLaunchers) {
    if (l.needs != nullptr && text(l.needs).empty()) continue;
    const auto rank = whole_number(text(l.rank)), size = whole_number(text(l.size));
    if (!rank || !size) continue;
    // The process is alone in its step, whatever it is a part of.
    if (*size < 2) return std::nullopt;
    if (std::strcmp(l.from, "Slurm") == 0 && is_special_step(text("SLURM_STEP_ID")))
      return std::nullopt;
    if (*rank >= *size)
      throw BadUsage(std::string(l.rank) + "=" + std::to_string(*rank) + " is not below " + l.size +
                     "=" + std::to_string(*size) +
                     "; start with --no-mpi to ignore the environment");
    return Place{*rank, *size, whole_number(text(l.local)).value_or(-1), l.from};
  }
  return std::nullopt;
}

Place parse_place(const std::string& text) {
  const std::size_t slash = text.find('/');
  const auto rank = whole_number(text.substr(0, slash));
  const auto size =
      slash == std::string::npos ? std::nullopt : whole_number(text.substr(slash + 1));
  if (!rank || !size || *size < 2 || *rank >= *size)
    throw BadUsage("--rank \"" + text + "\" is not RANK/RANKS; use for example 0/2 and 1/2");
  return {*rank, *size, -1, "--rank"};
}

std::optional<Place> find_place(const std::string& rank_option, bool ignore_launcher) {
  if (!rank_option.empty()) return parse_place(rank_option);
  return ignore_launcher ? std::nullopt
                         : job_place([](const char* name) { return std::getenv(name); });
}

Hosts::Hosts(Group& group) : host_(static_cast<std::size_t>(group.size())) {
  const Identity mine = own_identity();
  std::vector<Identity> all(host_.size());
  group.all_gather(&mine, sizeof mine, all.data());
  for (std::size_t r = 0; r < all.size(); ++r) {
    all[r].name.back() = '\0';
    names_.emplace_back(all[r].name.data());
    std::size_t first = 0;
    while (!all[first].same_host(all[r])) ++first;
    host_[r] = static_cast<int>(first);
    if (first == r) ++count_;
  }
}

int Hosts::ranks_beside(int rank) const {
  return static_cast<int>(
      std::count(host_.begin(), host_.end(), host_.at(static_cast<std::size_t>(rank))));
}

int Hosts::local_rank(int rank) const {
  const auto own = host_.begin() + rank;
  return static_cast<int>(std::count(host_.begin(), own, *own));
}

}  // namespace twinpath::tools
