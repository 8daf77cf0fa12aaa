#include "test/topology/data.h"

#include <stdlib.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <sstream>

#include "topology/model/distance_rule.h"

namespace twinpath::test {

namespace fs = std::filesystem;

std::string shared_topologies() {
  if (const char* set = std::getenv("TWINPATH_TOPOLOGY_DATA")) return set;
  const fs::path sibling = fs::path(TWINPATH_SOURCE_ROOT) / ".." / "shared" / "topology";
  return fs::exists(sibling / "golden.json") ? sibling.string() : std::string();
}

std::string own_topologies() { return std::string(TWINPATH_SOURCE_ROOT) + "/test/golden/topology"; }

std::string slurp(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream all;
  all << file.rdbuf();
  return std::move(all).str();
}

void spill(const std::string& path, const std::string& text) {
  fs::create_directories(fs::path(path).parent_path());
  std::ofstream(path, std::ios::binary) << text;
}

TemporaryFolder::TemporaryFolder() {
  // Machines are thousands of small files, which a disk takes twenty times as long to make.
  const fs::path memory = "/dev/shm";
  const bool in_memory = ::access(memory.c_str(), W_OK | X_OK) == 0;
  const fs::path place = in_memory ? memory : fs::temp_directory_path();
  std::string name = (place / "twinpath-topology-XXXXXX").string();
  path_ = ::mkdtemp(name.data()) == nullptr ? std::string() : name;
}

TemporaryFolder::~TemporaryFolder() {
  std::error_code ignored;
  if (!path_.empty()) fs::remove_all(path_, ignored);
}

std::optional<std::string> unpack(const std::string& archive, const std::string& folder) {
  const std::string command = "tar -xjf '" + archive + "' -C '" + folder + "' 2>/dev/null";
  if (std::system(command.c_str()) != 0) return std::nullopt;
  for (const fs::directory_entry& e : fs::directory_iterator(folder))
    if (fs::exists(e.path() / "sys")) return e.path().string();
  return std::nullopt;
}

std::string matrix(const Machine& machine) {
  std::string out;
  for (const Gpu& g : machine.gpus)
    for (const Hca& h : machine.hcas)
      out += g.pci.bus.text() + " " + h.name + " " +
             std::string(name_of(gpu_to_hca(machine, g, h).distance)) + "\n";
  return out;
}

}  // namespace twinpath::test
