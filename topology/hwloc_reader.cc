#include "topology/hwloc_reader.h"

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <utility>

#include "topology/finish.h"
#include "topology/hwloc_walk.h"

namespace twinpath {
namespace {

constexpr std::size_t kLargestXml = 64u << 20;

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

std::optional<Machine> read(bool other_machine, const std::string& what, std::string& why,
                            const auto& set_source) {
  const HwlocLibrary* library = hwloc_library(why);
  if (library == nullptr) return std::nullopt;
  Topology topology(*library);
  if (!topology.prepare(other_machine) || !set_source(*library, topology.get()) ||
      !topology.load()) {
    why = what + ": hwloc cannot read this topology";
    return std::nullopt;
  }
  Machine machine = walk_hwloc(*library, topology.get());
  finish_machine(machine);
  return machine;
}

// What hwloc would only answer with "invalid argument" to.
bool readable_xml(std::string_view text, const std::string& what, std::string& why) {
  const std::size_t at = text.find("<topology");
  if (at == std::string_view::npos) {
    why = what + ": this is not an hwloc topology" +
          (text.find("<system") != std::string_view::npos ? "; it looks like NCCL's" : "");
    return false;
  }
  const std::string_view tag = text.substr(at, text.find('>', at) - at);
  const std::size_t version = tag.find("version=\"");
  if (version != std::string_view::npos && tag.substr(version + 9, 1) >= "3" &&
      tag.substr(version + 9, 1) <= "9") {
    why = what + ": hwloc XML of version 3 or newer cannot be read; write it with " +
          "`lstopo --export-xml-flags v2` or an hwloc 2 release";
    return false;
  }
  if (text.find("</topology>") == std::string_view::npos) {
    why = what + ": this hwloc topology is cut off; export it again";
    return false;
  }
  return true;
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

// The form that hwloc's own small parser takes: no comments, the document type line before the
// root.  The plugin for libxml2 is not always installed, and cannot be loaded by a library that was
// opened for our use only.
std::string plain_xml(std::string_view text) {
  std::string out =
      "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<!DOCTYPE topology SYSTEM \"hwloc2.dtd\">\n";
  text.remove_prefix(text.find("<topology"));
  while (!text.empty()) {
    const std::size_t comment = std::min(text.find("<!--"), text.size());
    out += text.substr(0, comment);
    text.remove_prefix(comment);
    const std::size_t end = text.find("-->");
    text.remove_prefix(end == std::string_view::npos ? text.size() : end + 3);
  }
  return out;
}

std::optional<Machine> read_text(std::string_view text, const std::string& what, std::string& why) {
  if (!readable_xml(text, what, why)) return std::nullopt;
  const std::string plain = plain_xml(text);
  return read(true, what, why, [&](const HwlocLibrary& library, hwloc_topology_t topology) {
    // hwloc wants the terminating zero counted.
    return library.topology_set_xmlbuffer(topology, plain.c_str(),
                                          static_cast<int>(plain.size() + 1)) == 0;
  });
}

}  // namespace

bool hwloc_available(std::string& why_not) { return hwloc_library(why_not) != nullptr; }

std::optional<Machine> read_hwloc_live(std::string& why) {
  return read(false, "this machine", why, [](auto&, auto) { return true; });
}

std::optional<Machine> read_hwloc_xml_text(std::string_view text, std::string& why) {
  return read_text(text, "hwloc XML", why);
}

std::optional<Machine> read_hwloc_xml(const std::string& path, std::string& why) {
  std::ifstream file(path, std::ios::binary);
  std::string text;
  if (file) {
    std::ostringstream all;
    all << file.rdbuf();
    text = std::move(all).str();
  }
  if (!file || text.empty() || text.size() > kLargestXml) {
    why = path + ": cannot be read, is empty or has more than 64 MiB";
    return std::nullopt;
  }
  auto machine = read_text(text, path, why);
  if (machine) machine->sources.back() += " " + path;
  return machine;
}

std::optional<Machine> read_hwloc_folder(const std::string& root, std::string& why) {
  const ScopedEnvironment fsroot("HWLOC_FSROOT", root.c_str());
  const ScopedEnvironment thissystem("HWLOC_THISSYSTEM", "0");
  auto machine = read(true, root, why, [](auto&, auto) { return true; });
  if (machine) machine->sources.back() += " " + root;
  return machine;
}

}  // namespace twinpath
