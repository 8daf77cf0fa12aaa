#include "topology/read/hwloc_reader.h"

#include <cstdlib>
#include <optional>
#include <string>

#include "topology/model/finish.h"
#include "topology/read/hwloc_walk.h"

namespace twinpath {
namespace {

// Owns a topology while it is read.
class Topology {
 public:
  explicit Topology(const HwlocLibrary& library) : library_(library) {
    if (library_.topology_init(&topology_) != 0) topology_ = nullptr;
  }
  Topology(const Topology&) = delete;
  Topology& operator=(const Topology&) = delete;
  ~Topology() {
    if (topology_ != nullptr) library_.topology_destroy(topology_);
  }

  // Everything that load() needs to know besides the source.  All I/O is kept: the data-direct
  // function has a class that hwloc thinks unimportant.
  bool prepare(bool other_machine) {
    if (topology_ == nullptr) return false;
    if (library_.topology_set_io_types_filter(topology_, HWLOC_TYPE_FILTER_KEEP_ALL) != 0)
      return false;
    const unsigned long wanted = HWLOC_TOPOLOGY_FLAG_INCLUDE_DISALLOWED;
    const unsigned long less_work = HWLOC_TOPOLOGY_FLAG_NO_DISTANCES |
                                    HWLOC_TOPOLOGY_FLAG_NO_MEMATTRS |
                                    HWLOC_TOPOLOGY_FLAG_NO_CPUKINDS;
    // Before 2.8 the library refuses the flags that save work.
    if (library_.topology_set_flags(topology_, wanted | less_work) != 0 &&
        library_.topology_set_flags(topology_, wanted) != 0)
      return false;
    // The first start GPU runtimes or X connections; x86 binds the calling thread to one CPU after
    // the other, for caches that we do not need.  A component that is not there cannot be refused
    // and need not be.
    for (const char* component : {"opencl", "gl", "cuda", "nvml", "rsmi", "levelzero", "x86"})
      exclude(component);
    if (other_machine) exclude("pci");  // libpciaccess looks at the machine we run on
    return true;
  }
  bool load() { return library_.topology_load(topology_) == 0; }
  hwloc_topology_t get() { return topology_; }

 private:
  void exclude(const char* component) {
    (void)library_.topology_set_components(topology_, HWLOC_TOPOLOGY_COMPONENTS_FLAG_BLACKLIST,
                                           component);
  }
  const HwlocLibrary& library_;
  hwloc_topology_t topology_ = nullptr;
};

std::optional<Machine> read(bool other_machine, const std::string& what, std::string& why) {
  const HwlocLibrary* library = hwloc_library(why);
  if (library == nullptr) return std::nullopt;
  Topology topology(*library);
  if (!topology.prepare(other_machine) || !topology.load()) {
    why = what + ": hwloc cannot read this topology";
    return std::nullopt;
  }
  Machine machine = walk_hwloc(*library, topology.get());
  finish_machine(machine);
  return machine;
}

// Sets an environment variable and puts the old value back.
class ScopedEnvironment {
 public:
  ScopedEnvironment(const char* name, const char* value) : name_(name) {
    if (const char* old = std::getenv(name)) old_ = old;
    setenv(name, value, 1);
  }
  ScopedEnvironment(const ScopedEnvironment&) = delete;
  ScopedEnvironment& operator=(const ScopedEnvironment&) = delete;
  ~ScopedEnvironment() {
    if (old_) {
      setenv(name_, old_->c_str(), 1);
    } else {
      unsetenv(name_);
    }
  }

 private:
  const char* name_;
  std::optional<std::string> old_;
};

// A variable that has hwloc read a file in place of this machine.  Its parser trusts such files: a
// damaged one ends the process.
const char* file_of_hwloc() {
  for (const char* name : {"HWLOC_XMLFILE", "HWLOC_SYNTHETIC", "HWLOC_FSROOT"})
    if (const char* value = std::getenv(name); value != nullptr && *value != '\0') return name;
  return nullptr;
}

}  // namespace

bool hwloc_available(std::string& why_not) { return hwloc_library(why_not) != nullptr; }

std::optional<Machine> read_hwloc_live(std::string& why) {
  if (const char* name = file_of_hwloc()) {
    why = std::string(name) + " has hwloc read another machine";
    return std::nullopt;
  }
  return read(false, "this machine", why);
}

std::optional<Machine> read_hwloc_folder(const std::string& root, std::string& why) {
  const ScopedEnvironment fsroot("HWLOC_FSROOT", root.c_str());
  const ScopedEnvironment thissystem("HWLOC_THISSYSTEM", "0");
  auto machine = read(true, root, why);
  if (machine) machine->sources.back() += " " + root;
  return machine;
}

}  // namespace twinpath
