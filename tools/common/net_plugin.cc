// One template adapts each table version to NetPlugin; see net_plugin.h.
#include "tools/common/net_plugin.h"

#include <dlfcn.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <filesystem>
#include <limits>
#include <mutex>
#include <sstream>
#include <utility>

#include "tools/common/net_abi.h"
#include "tools/common/said_once.h"

namespace twinpath::tools {
namespace {

constexpr int kWarning = 2;  // NCCL_LOG_WARN

// What a plugin said last, for when it offers nothing.  Its log function gets no argument of ours.
struct LastWords {
  static constexpr std::size_t kKept = 3;  // lines: the cause need not be the very last
  std::mutex mutex;                        // plugins may log from threads of their own
  bool warned = false;
  std::deque<std::string> lines;
};
LastWords& last_words() {
  static LastWords words;
  return words;
}

void remember(int level, const char* format, va_list args) {
  char text[1024];
  std::vsnprintf(text, sizeof text, format, args);
  LastWords& words = last_words();
  const std::lock_guard lock(words.mutex);
  words.warned = words.warned || level == kWarning;
  words.lines.emplace_back(text);
  if (words.lines.size() > LastWords::kKept) words.lines.pop_front();
}

// Why there is no device, as the plugin told.
std::string reason_for_nothing() {
  LastWords& words = last_words();
  const std::lock_guard lock(words.mutex);
  if (words.warned) return "its warning above says why";
  std::string out;
  for (const std::string& line : words.lines) out += (out.empty() ? "" : "; ") + line;
  return out.empty() ? "the plugin does not say why" : out;
}

void log_line(bool once, const char* level, const char* where, const char* format, va_list args) {
  char text[1024];
  std::vsnprintf(text, sizeof text, format, args);
  if (once && !first_to_say(text)) return;
  std::fprintf(stderr, "[%d] %s %s: %s\n", static_cast<int>(getpid()), level, where, text);
}
void log_warnings(int level, unsigned long, const char* where, int, const char* format, ...) {
  va_list args, again;
  va_start(args, format);
  va_copy(again, args);
  remember(level, format, again);
  va_end(again);
  if (level == kWarning) log_line(true, "WARN", where, format, args);
  va_end(args);
}
void log_all(int level, unsigned long, const char* where, int, const char* format, ...) {
  va_list args, again;
  va_start(args, format);
  va_copy(again, args);
  remember(level, format, again);
  va_end(again);
  log_line(false, level == kWarning ? "WARN" : "INFO", where, format, args);
  va_end(args);
}
// Of a thread's own: what others say at the time is not about its call.
std::string& kept_warning() {
  thread_local std::string text;
  return text;
}
void log_kept(int level, unsigned long, const char*, int, const char* format, ...) {
  if (level != kWarning) return;
  char text[1024];
  va_list args;
  va_start(args, format);
  std::vsnprintf(text, sizeof text, format, args);
  va_end(args);
  kept_warning() = text;
}

// NCCL's profiler callback when no profiler is loaded.
abi::Result no_profiler(void**, int, void*, std::int64_t, void*) { return 0; }

struct CloseLibrary {
  void operator()(void* library) const { dlclose(library); }
};
using Library = std::unique_ptr<void, CloseLibrary>;

template <int V>
class Adapter final : public NetPlugin {
 public:
  Adapter(Library library, const abi::Net<V>* net) : library_(std::move(library)), net_(net) {}
  ~Adapter() override {
    if constexpr (V >= 11)
      if (initialised_ && net_->finalize != nullptr) (void)net_->finalize(context_);
  }

  abi::Result init(abi::Logger logger, NetJob job) {
    abi::Result r;
    const auto communicator = job == NetJob::none ? 0 : static_cast<std::uint64_t>(getpid());
    if constexpr (V >= 11)
      r = net_->init(&context_, communicator, &config_, logger, no_profiler);
    else if constexpr (V == 10)
      r = net_->init(logger, no_profiler);
    else
      r = net_->init(logger);
    initialised_ = r == 0;
    return r;
  }

  int abi() const override { return V; }
  const char* name() const override { return net_->name; }
  NetResult devices(int& count) override { return net_->devices(&count); }

  NetResult properties(int device, NetProperties& out) override {
    abi::Props<V> p;
    std::memset(static_cast<void*>(&p), 0xa5, sizeof p);  // NCCL passes an uninitialised struct
    if (const NetResult r = net_->properties(device, &p); r != 0) return r;
    out = {};
    out.name = p.name == nullptr ? "" : p.name;
    out.pci_path = p.pci_path == nullptr ? "" : p.pci_path;
    out.guid = p.guid;
    out.memory = p.ptr_support;
    const abi::PropsMiddle* middle = nullptr;
    if constexpr (V == 8) {
      middle = &p;
      out.max_bytes = std::size_t{1} << 30;  // what NCCL assumes of a v8 plugin
    } else {
      middle = &p.middle;
      out.force_flush = p.force_flush == 1;
      out.max_bytes = p.max_p2p_bytes;
      out.members = p.members.count;
    }
    out.speed_mbps = middle->speed;
    out.port = middle->port;
    out.latency_us = middle->latency;
    out.max_comms = middle->max_comms;
    out.max_recvs = middle->max_recvs;
    return 0;
  }

  NetResult merge(const std::vector<int>& members, int& device) override {
    constexpr NetResult kInvalidUsage = 5;
    if constexpr (V >= 9) {
      abi::VirtualProps<V> wanted{};
      if (net_->make_virtual_device == nullptr || members.size() > std::size(wanted.devices))
        return kInvalidUsage;
      wanted.count = static_cast<int>(members.size());
      std::copy(members.begin(), members.end(), wanted.devices);
      return net_->make_virtual_device(&device, &wanted);
    } else {
      return kInvalidUsage;
    }
  }

  NetResult listen(int device, NetHandle& handle, void** comm) override {
    if constexpr (V >= 11)
      return net_->listen(context_, device, handle.data(), comm);
    else
      return net_->listen(device, handle.data(), comm);
  }
  NetResult connect(int device, NetHandle& handle, void** comm) override {
    void* offload = nullptr;  // for plugins with device-side networking; we have none
    if constexpr (V >= 11)
      return net_->connect(context_, device, handle.data(), comm, &offload);
    else if constexpr (V == 10)
      return net_->connect(device, &config_, handle.data(), comm, &offload);
    else
      return net_->connect(device, handle.data(), comm, &offload);
  }
  NetResult accept(void* listen_comm, void** comm) override {
    void* offload = nullptr;
    return net_->accept(listen_comm, comm, &offload);
  }
  NetResult reg_mr(void* comm, void* data, std::size_t bytes, int type, void** memory) override {
    return net_->reg_mr(comm, data, bytes, type, memory);
  }
  NetResult reg_mr_dmabuf(void* comm, void* data, std::size_t bytes, int type, std::uint64_t offset,
                          int fd, void** memory) override {
    return net_->reg_mr_dmabuf(comm, data, bytes, type, offset, fd, memory);
  }
  NetResult dereg_mr(void* comm, void* memory) override { return net_->dereg_mr(comm, memory); }

  NetResult isend(void* comm, void* data, std::size_t bytes, int tag, void* memory,
                  void** request) override {
    *request = nullptr;
    if constexpr (V >= 10)
      return net_->isend(comm, data, bytes, tag, memory, nullptr, request);
    else
      return net_->isend(comm, data, static_cast<typename abi::Net<V>::Size>(bytes), tag, memory,
                         request);
  }
  NetResult irecv(void* comm, int n, void** data, std::size_t* bytes, int* tags, void** memories,
                  void** request) override {
    if constexpr (V >= 10) {
      void* profile[16] = {};
      return net_->irecv(comm, n, data, bytes, tags, memories, profile, request);
    } else if constexpr (V == 9) {
      return net_->irecv(comm, n, data, bytes, tags, memories, request);
    } else {
      int narrow[16] = {};
      for (int i = 0; i < n && i < 16; ++i) narrow[i] = static_cast<int>(bytes[i]);
      *request = nullptr;  // v8 has no optional completion
      return net_->irecv(comm, n, data, narrow, tags, memories, request);
    }
  }
  NetResult iflush(void* comm, int n, void** data, int* bytes, void** memories,
                   void** request) override {
    *request = nullptr;
    return net_->iflush(comm, n, data, bytes, memories, request);
  }
  NetResult test(void* request, int* done, int* bytes) override {
    return net_->test(request, done, bytes);
  }
  NetResult close_send(void* comm) override { return net_->close_send(comm); }
  NetResult close_recv(void* comm) override { return net_->close_recv(comm); }
  NetResult close_listen(void* comm) override { return net_->close_listen(comm); }

 private:
  Library library_;
  const abi::Net<V>* net_;
  void* context_ = nullptr;
  abi::CommConfig config_{-1};
  bool initialised_ = false;
};

template <int V>
std::unique_ptr<NetPlugin> adapt(Library library, void* symbol, NetLog log, NetJob job,
                                 abi::Result& result) {
  auto plugin =
      std::make_unique<Adapter<V>>(std::move(library), static_cast<const abi::Net<V>*>(symbol));
  result = plugin->init(log == NetLog::kept       ? log_kept
                        : log == NetLog::warnings ? log_warnings
                                                  : log_all,
                        job);
  if (result != 0) return nullptr;
  return plugin;
}

}  // namespace

std::string take_warning() { return std::exchange(kept_warning(), {}); }

const char* net_result_name(NetResult r) {
  static constexpr const char* kNames[] = {
      "success",       "unhandled CUDA error", "system error", "internal error", "invalid argument",
      "invalid usage", "remote error",         "in progress",  "timeout"};
  return r >= 0 && r < static_cast<int>(std::size(kNames)) ? kNames[r] : "unknown result";
}

std::unique_ptr<NetPlugin> NetPlugin::open(const std::string& path, int wanted, NetLog log,
                                           std::string& why, NetJob job) {
  if (wanted != 0 && (wanted < abi::kOldest || wanted > abi::kNewest)) {
    why = "net ABI v" + std::to_string(wanted) + " is not known here; give one of v8 to v12";
    return nullptr;
  }
  // By itself it merges only what NCCL's topology could place; there is none here.
  setenv("NCCL_IB_MERGE_NICS", "1", 0);
  Library library(dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL));
  if (!library) {
    const char* error = dlerror();
    why = "cannot load the net plugin: " + std::string(error == nullptr ? path : error) +
          "; give its path with --plugin";
    return nullptr;
  }
  for (int v = abi::kNewest; v >= abi::kOldest; --v) {
    if (wanted != 0 && v != wanted) continue;
    const std::string symbol = "ncclNetPlugin_v" + std::to_string(v);
    void* table = dlsym(library.get(), symbol.c_str());
    if (table == nullptr) continue;
    abi::Result result = 0;
    std::unique_ptr<NetPlugin> plugin;
    switch (v) {
      case 12:
        plugin = adapt<12>(std::move(library), table, log, job, result);
        break;
      case 11:
        plugin = adapt<11>(std::move(library), table, log, job, result);
        break;
      case 10:
        plugin = adapt<10>(std::move(library), table, log, job, result);
        break;
      case 9:
        plugin = adapt<9>(std::move(library), table, log, job, result);
        break;
      default:
        plugin = adapt<8>(std::move(library), table, log, job, result);
        break;
    }
    if (!plugin)
      why = path + ": " + symbol + ".init failed with " + net_result_name(result) +
            "; its warnings above say why (--verbose shows more)";
    return plugin;
  }
  why = path + " exports no " +
        (wanted != 0 ? "ncclNetPlugin_v" + std::to_string(wanted)
                     : std::string("ncclNetPlugin_v8 to _v12")) +
        "; is it an NCCL net plugin? (nm -D shows what it has)";
  return nullptr;
}

namespace {

int find_one_device(NetPlugin& plugin, const std::string& wanted, std::string& why) {
  int count = 0;
  if (const NetResult r = plugin.devices(count); r != 0) {
    why = std::string("devices failed: ") + net_result_name(r) + "; the plugin's warnings say why";
    return -1;
  }
  if (count <= 0) {
    why = "no device: " + reason_for_nothing();
    return -1;
  }
  int index = -1;
  const auto [end, error] = std::from_chars(wanted.data(), wanted.data() + wanted.size(), index);
  if (error == std::errc{} && end == wanted.data() + wanted.size() && index >= 0 && index < count)
    return index;
  std::string names;
  for (int i = 0; i < count; ++i) {
    NetProperties each;
    if (plugin.properties(i, each) != 0) continue;
    if (each.name == wanted) return i;
    names += (i == 0 ? "" : ", ") + std::to_string(i) + " " + each.name;
  }
  why = "no device '" + wanted + "'; there are: " + names;
  return -1;
}

}  // namespace

int find_net_device(NetPlugin& plugin, const std::string& wanted, std::string& why) {
  if (wanted.find('+') == std::string::npos) return find_one_device(plugin, wanted, why);
  // Asked for before (or by NCCL), the merged device may be there already.
  if (const int known = find_one_device(plugin, wanted, why); known >= 0) return known;
  std::vector<int> members;
  std::istringstream words(wanted);
  for (std::string word; std::getline(words, word, '+');) {
    const int member = find_one_device(plugin, word, why);
    if (member < 0) return -1;
    members.push_back(member);
  }
  int device = -1;
  if (const NetResult r = plugin.merge(members, device); r != 0) {
    why = "'" + wanted + "' cannot be merged into one device: " + net_result_name(r) +
          "; it takes net ABI v9 or newer, and a plugin that merges";
    return -1;
  }
  return device;
}

std::string find_plugin(const std::string& given) {
  namespace fs = std::filesystem;
  std::string wanted = given;
  if (wanted.empty())
    if (const char* env = std::getenv("NCCL_NET_PLUGIN"); env != nullptr) wanted = env;
  if (!wanted.empty()) {
    const bool file = wanted.find('/') != std::string::npos || wanted.starts_with("lib");
    return file ? wanted : "libnccl-net-" + wanted + ".so";
  }
  std::error_code ignored;
  const fs::path here = fs::read_symlink("/proc/self/exe", ignored).parent_path();
  // In a build folder, copied together with this program, installed.
  for (const char* folder : {"../../plugin/nccl", "../plugin/nccl", ".", TWINPATH_PLUGIN_FOLDER}) {
    const fs::path candidate = (here / folder / "libnccl-net.so").lexically_normal();
    if (fs::exists(candidate, ignored)) return candidate.string();
  }
  return "libnccl-net-twinpath.so";
}

}  // namespace twinpath::tools
