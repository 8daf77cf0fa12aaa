#include "tools/topo/input.h"

#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>

#include "plugin/base/file.h"
#include "tools/common/cuda_api.h"
#include "tools/common/failure.h"
#include "tools/topo/tar.h"
#include "topology/probe/probe_gpus.h"
#include "topology/read/read_machine.h"

namespace twinpath::tools::topo {
namespace {

namespace fs = std::filesystem;

// The folder that holds `sys`: the given one or the only one in it; empty when there is none.
std::string find_root(const std::string& folder) {
  std::error_code error;
  if (fs::is_directory(folder + "/sys", error)) return folder;
  std::string found;
  for (const auto& e : fs::directory_iterator(folder, error)) {
    if (!fs::is_directory(e.path() / "sys", error)) continue;
    if (!found.empty()) return {};
    found = e.path().string();
  }
  return found;
}

bool is_compressed(const std::string& path) {
  std::string why;
  const std::string head = read_head(path, 4, why).value_or("");
  return head.starts_with("\x1f\x8b") || head.starts_with("BZh") ||
         head.starts_with(
             "\xfd"
             "7zX") ||
         head.starts_with("\x28\xb5\x2f\xfd");
}

// Names come from a file that may be anybody's, and go to a terminal.
void make_printable(std::string& text) {
  for (char& c : text)
    if (c < 0x20 || c > 0x7e) c = '?';
}
void make_printable(Machine& machine) {
  for (Hca& h : machine.hcas) {
    make_printable(h.name);
    make_printable(h.role_reason);
    for (HcaPort& p : h.ports) make_printable(p.netdev);
  }
  for (TopologyWarning& w : machine.warnings) make_printable(w.text);
  for (std::string* s :
       {&machine.host.hostname, &machine.host.kernel, &machine.host.product, &machine.host.vendor})
    make_printable(*s);
  for (auto* s : {&machine.host.nvidia_driver, &machine.host.nvidia_registry})
    if (*s) make_printable(**s);
}

// Sources name the folder that was read; the user knows the archive.
void rename_source(Machine& machine, const std::string& folder, const std::string& archive) {
  for (std::string& s : machine.sources)
    if (const auto at = s.find(folder); at != std::string::npos)
      s.replace(at, folder.size(), archive);
}

void ask_cuda(Input& input) {
  input.no_cuda = start_cuda();
  if (!input.no_cuda.empty()) return;
  const std::vector<CudaGpu> gpus = cuda_gpus();
  enter_cuda_gpus(input.machine, gpus);
  for (const CudaGpu& g : gpus)
    if (const Gpu* gpu = input.machine.find_gpu(g.bus); gpu != nullptr && g.ordered)
      input.ordered_gpus.push_back(gpu->index);
}

}  // namespace

ScratchFolder::ScratchFolder() {
  const char* base = std::getenv("TMPDIR");
  std::string path = std::string(base == nullptr ? "/tmp" : base) + "/twinpath-topo-XXXXXX";
  if (mkdtemp(path.data()) == nullptr)
    throw Failure(path + ": cannot be made: " + std::strerror(errno) + "; set TMPDIR");
  path_ = path;
}

ScratchFolder::~ScratchFolder() {
  std::error_code error;
  fs::remove_all(path_, error);
}

Input open_input(const InputOptions& options) {
  Input input;
  MachineInput from;
  from.use_hwloc = options.hwloc;
  from.placement = options.placement;
  from.host = options.host;
  from.path = options.path;
  const std::string given = std::string(options.option) + " " + options.path;
  std::string why;
  std::error_code error;
  // The reader of NCCL's XML knows how many are in it.
  if (options.host != 0 && !fs::is_regular_file(options.path, error))
    throw Failure("--host " + std::to_string(options.host) + ": " +
                  (options.path.empty() ? "this node" : given) +
                  " is one machine; --host is for an NCCL XML of several, given with --input");
  if (options.path.empty()) {
    input.live = true;
    input.root = "/";
  } else if (fs::is_directory(options.path, error)) {
    input.root = from.path = find_root(options.path);
    if (from.path.empty())
      throw Failure(given + ": no folder 'sys' in it; give the folder above sys and proc");
  } else if (looks_like_tar(options.path)) {
    if (options.host != 0)
      throw Failure("--host " + std::to_string(options.host) + ": " + given +
                    " is one machine; --host is for an NCCL XML of several");
    input.unpacked = std::make_shared<ScratchFolder>();
    try {
      unpack(read_tar(options.path), input.unpacked->path());
    } catch (const Failure& failure) {
      throw Failure(options.option + (" " + std::string(failure.what())));
    }
    input.root = from.path = find_root(input.unpacked->path());
    if (from.path.empty())
      throw Failure(given + ": no folder 'sys' in this archive; make one with `dump`");
  } else if (is_compressed(options.path)) {
    throw Failure(given + ": compressed; unpack it first (tar xf) and give the folder");
  }
  auto machine = read_machine(from, why);
  if (!machine) throw Failure(options.path.empty() ? why : options.option + (" " + why));
  input.machine = std::move(*machine);
  make_printable(input.machine);
  if (input.unpacked) rename_source(input.machine, input.root, options.path);
  if (!input.live) {
    input.no_cuda = "the machine is a captured one";
  } else if (!options.cuda) {
    input.no_cuda = "--no-cuda";
  } else {
    ask_cuda(input);
  }
  return input;
}

}  // namespace twinpath::tools::topo
