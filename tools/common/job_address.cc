#include "tools/common/job_address.h"

#include <cstring>
#include <sstream>

#include "tools/common/address.h"
#include "tools/common/failure.h"

namespace twinpath::tools {
namespace {

std::string value(const Lookup& lookup, const char* name) {
  const char* text = lookup(name);
  return text != nullptr ? text : "";
}

bool from(const Place& place, const char* launcher) {
  return std::strcmp(place.from, launcher) == 0;
}

// srun --mpi=pmi2 tells ranks by PMI's variables, too.
bool by_slurm(const Place& place) { return from(place, "Slurm") || from(place, "PMI"); }

bool on_one_host(const Place& place, const Lookup& lookup) {
  const std::string ranks = std::to_string(place.size);
  if (from(place, "OpenMPI")) return value(lookup, "OMPI_COMM_WORLD_LOCAL_SIZE") == ranks;
  if (from(place, "MVAPICH")) return value(lookup, "MV2_COMM_WORLD_LOCAL_SIZE") == ranks;
  if (from(place, "jsrun")) return value(lookup, "JSM_NAMESPACE_LOCAL_SIZE") == ranks;
  if (from(place, "Flux")) return value(lookup, "FLUX_JOB_NNODES") == "1";
  return value(lookup, "MPI_LOCALNRANKS") == ranks || value(lookup, "PMI_LOCAL_SIZE") == ranks ||
         (by_slurm(place) && value(lookup, "SLURM_STEP_NUM_NODES") == "1");
}

std::string first_of(const Lookup& lookup, const char* name, const char* otherwise) {
  const std::string list = value(lookup, name);
  return first_node(list.empty() ? value(lookup, otherwise) : list);
}

// Open MPI 4: "4203.0;tcp://10.0.0.2,192.168.1.2:44659;tcp6://[fd00::2]:4467", mpirun's addresses.
std::vector<std::string> mpirun_addresses(const std::string& uri) {
  std::vector<std::string> out;
  std::istringstream parts(uri);
  for (std::string part; std::getline(parts, part, ';');) {
    const std::size_t begin = part.find("://"), end = part.rfind(':');
    if (begin == std::string::npos || end < begin + 3) continue;
    std::istringstream addresses(part.substr(begin + 3, end - begin - 3));
    for (std::string a; std::getline(addresses, a, ',');) {
      if (a.size() > 2 && a.front() == '[' && a.back() == ']') a = a.substr(1, a.size() - 2);
      if (!a.empty()) out.push_back(a);
    }
  }
  return out;
}

// Rank 0 of mpirun is beside it where that host takes part, on the first node of a Slurm job where
// it does not.
std::vector<std::string> open_mpi_hosts(const Place& place, const std::string& own_host,
                                        const Lookup& lookup) {
  const std::string node = first_of(lookup, "SLURM_JOB_NODELIST", "SLURM_NODELIST"),
                    mpirun = value(lookup, "OMPI_MCA_orte_hnp_uri");
  std::vector<std::string> out = mpirun_addresses(mpirun);
  const bool beside = !out.empty() && mpirun == value(lookup, "OMPI_MCA_orte_local_daemon_uri");
  if (!node.empty()) out.insert(out.begin(), node);
  const bool first = own_host.substr(0, own_host.find('.')) == node.substr(0, node.find('.'));
  if (!out.empty() && place.rank == 0 && !beside && !first)
    throw BadUsage(
        "rank 0 runs on " + own_host +
        ", and the others look for it where mpirun runs; start mpirun there, or give every rank "
        "--rendezvous HOST:PORT");
  return out;
}

}  // namespace

std::string first_node(const std::string& list) {
  const std::size_t bracket = list.find('['), comma = list.find(',');
  if (bracket == std::string::npos || comma < bracket) return list.substr(0, comma);
  const std::size_t end = list.find_first_of(",-]", bracket);
  const std::size_t close = list.find(']', bracket);
  if (end == std::string::npos || close == std::string::npos) return "";
  // What follows may have brackets of its own: "rack[0-3]node[1,2]".
  const std::string rest = list.substr(close + 1);
  const std::string tail = first_node(rest);
  if (tail.empty() && !rest.empty() && rest.front() != ',') return "";
  return list.substr(0, bracket) + list.substr(bracket + 1, end - bracket - 1) + tail;
}

std::uint64_t job_hash(const Place& place, const Lookup& lookup) {
  const auto text = [&](const char* name) { return value(lookup, name); };
  std::string id;
  if (from(place, "OpenMPI")) id = text("PMIX_NAMESPACE") + text("OMPI_MCA_ess_base_jobid");
  if (from(place, "MVAPICH")) id = text("PMI_JOBID");
  if (from(place, "jsrun")) id = text("LSB_JOBID") + "." + text("PMIX_NAMESPACE");
  if (from(place, "Flux")) id = text("FLUX_JOB_ID");
  if (from(place, "torchrun")) id = text("TORCHELASTIC_RUN_ID") + "." + text("MASTER_PORT");
  if (by_slurm(place)) id = text("SLURM_JOB_ID") + "." + text("SLURM_STEP_ID") + text("PMI_JOBID");
  std::uint64_t h = 14695981039346656037U;
  for (const char c : id) h = (h ^ static_cast<unsigned char>(c)) * 1099511628211U;
  return h;
}

JobAddress job_address(const Place& place, const std::string& option, const std::string& own_host,
                       const Lookup& lookup) {
  std::string why;
  if (!option.empty()) {
    const auto given = parse_host_port(option, 1, why);
    if (!given) throw BadUsage("--rendezvous: " + why);
    return {{given->host}, given->port};
  }
  JobAddress out{{}, std::to_string(20000 + job_hash(place, lookup) % 12000)};
  // torchrun itself listens on MASTER_PORT.
  const std::string port = value(lookup, "MASTER_PORT"), host = value(lookup, "MASTER_ADDR");
  if (!port.empty() && !from(place, "torchrun")) {
    why = port_complaint(port, 1);
    if (!why.empty()) throw BadUsage("MASTER_PORT: " + why + "; or give --rendezvous HOST:PORT");
    out.port = port;
  }
  if (!host.empty()) {
    out.hosts = {host};
  } else if (on_one_host(place, lookup)) {
    out.hosts = {"127.0.0.1"};
  } else if (from(place, "OpenMPI")) {
    out.hosts = open_mpi_hosts(place, own_host, lookup);
  } else if (by_slurm(place)) {
    const std::string node = first_of(lookup, "SLURM_STEP_NODELIST", "SLURM_NODELIST");
    if (!node.empty()) out.hosts = {node};
  }
  if (!out.hosts.empty()) return out;
  if (from(place, "--rank"))
    throw BadUsage(
        "--rank needs --rendezvous HOST:PORT, an address of rank 0's host and a free "
        "port, the same for every rank (or MASTER_ADDR and MASTER_PORT)");
  throw BadUsage(std::string(place.from) + " started " + std::to_string(place.size) +
                 " ranks, but where rank 0 runs is not known; give every rank --rendezvous "
                 "HOST:PORT, or set MASTER_ADDR and MASTER_PORT (or --no-mpi for one host without "
                 "it)");
}

}  // namespace twinpath::tools
