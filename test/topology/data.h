#pragma once
// Where the machines for the tests lie: our own small ones in test/golden/topology, and the shared
// set of captured ones when it is there.
#include <functional>
#include <optional>
#include <string>

#include "topology/model/machine.h"

namespace twinpath::test {

// The folder that TWINPATH_TOPOLOGY_DATA names, else shared/topology beside the sources; empty
// when there is none.
std::string shared_topologies();
// test/golden/topology.
std::string own_topologies();

std::string slurp(const std::string& path);
void spill(const std::string& path, const std::string& text);  // makes the folders

// A new folder that is removed with everything in it.
class TemporaryFolder {
 public:
  TemporaryFolder();
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  ~TemporaryFolder();
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

// Unpacks a .tar.bz2 into `folder` and returns the root inside (the folder that holds sys), or
// nothing when tar or bzip2 is missing.
std::optional<std::string> unpack(const std::string& archive, const std::string& folder);

// "GPU x HCA" classes of a machine as lines, for comparing two readings:
// "0000:0f:00.0 mlx5_0 PIX\n".
std::string matrix(const Machine& machine);

// Known and within 0.1.
inline bool near(std::optional<double> v, double wanted) {
  return v && *v > wanted - 0.1 && *v < wanted + 0.1;
}

}  // namespace twinpath::test
