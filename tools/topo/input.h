#pragma once
// Where a machine comes from: this node, a folder, a dump, a file of hwloc or NCCL.
#include <memory>
#include <string>

#include "topology/model/machine.h"

namespace twinpath::tools::topo {

struct InputOptions {
  const char* option = "--input";  // which gave the path: for messages
  std::string path;                // empty: this node
  bool hwloc = true;               // look through hwloc as well, and compare (this node only)
  bool cuda = true;                // ask the CUDA driver (this node only)
  std::string placement;           // NCCL_TOPO_FILE
  int host = 0;                    // of a file that holds several
};

// A folder that goes with the last who holds it.
class ScratchFolder {
 public:
  ScratchFolder();
  ~ScratchFolder();
  ScratchFolder(const ScratchFolder&) = delete;
  ScratchFolder& operator=(const ScratchFolder&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

struct Input {
  Machine machine;
  bool live = false;
  std::string root;  // folder above sys and proc; empty for an XML file
  std::shared_ptr<ScratchFolder> unpacked;
  std::vector<int> ordered_gpus;  // see Settings
  std::string no_cuda;            // why the CUDA driver told nothing; empty when it did
};

// Throws Failure (object, cause, remedy in one line).
Input open_input(const InputOptions& options);

}  // namespace twinpath::tools::topo
