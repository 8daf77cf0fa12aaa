// ncclGinPlugin_v11 and _v14: NCCL's GIN plugin of type GDAKI, whose queues kernels fill by
// themselves.  As in net_tables.cc each entry point is written once, and overloads serve the
// version that has another signature.
//
// All that a process pays for having these tables is init: no socket, thread or CUDA context is
// made before NCCL asks for the first connection, which it does when the first kernel needs one.
//
// Threads: as gda/gin.h says.  queryLastError and ginProgress take no lock.
#include <algorithm>
#include <array>
#include <cstdint>

#include "gda/gin.h"
#include "plugin/nccl/abi/gin.h"
#include "plugin/nccl/abi/gin_layout.h"
#include "plugin/nccl/caller.h"
#include "plugin/nccl/one_sided.h"
#include "plugin/nccl/properties.h"

namespace twinpath {
namespace {

using abi::ncclGinConfig_v14_t;
using abi::ncclGinProperties_v14_t;
using abi::ncclNetDeviceHandle_t;
using abi::ncclResult_t;

struct GinSeam {
  using Comm = gda::GinComm;
  using Handle = ncclNetDeviceHandle_t;
  static Result<gda::GinTransport*> transport(Context& context) { return context.gin(); }
  static constexpr OneSidedNames kNames = {.finalize = "GIN finalize",
                                           .listen = "GIN listen",
                                           .connect = "GIN connect",
                                           .close_listen = "GIN closeListen",
                                           .close_coll = "closeColl",
                                           .destroy_context = "destroyContext",
                                           .query_last_error = "queryLastError",
                                           .dereg_mr_sym = "deregMrSym"};
};
using Gin = OneSided<GinSeam>;

// NCCL declares what is an address on the device as void*.
void* device_pointer(std::uint64_t address) {
  return reinterpret_cast<void*>(static_cast<std::uintptr_t>(address));
}

// --- init, devices, finalize -----------------------------------------------------------

ncclResult_t init(void** ctx, std::uint64_t comm_id, LogSink log) {
  if (ctx != nullptr) *ctx = nullptr;
  set_log_sink(log);
  return guarded("GIN init", [&]() -> Status {
    if (ctx == nullptr) return refuse("GIN init", "no place for the context");
    const auto context = Context::open();
    if (!context) return context.status();
    // Without devices NCCL 2.28 forgets the context instead of giving it back.
    if ((*context)->offers_gin()) *ctx = new OneSidedInstance{{}, {comm_id, nccl_version_of(log)}};
    return Status::ok;
  });
}

template <class Count>
ncclResult_t tell_devices(int* count, Count&& of) {
  if (count != nullptr) *count = 0;
  return guarded("GIN devices", [&]() -> Status {
    if (count == nullptr) return refuse("GIN devices", "no place for the count");
    Context* context = nullptr;
    TP_TRY(opened("GIN devices", context));
    if (context->offers_gin()) *count = of(*context);
    return Status::ok;
  });
}
// The numbers are those of the NET plugin's devices: NCCL 2.28 uses them for both.
ncclResult_t devices(int* count) {
  return tell_devices(count, [](Context& c) { return c.device_count(); });
}
// NCCL 2.30 gives each connection a port of its own, and its kernels may add to words of windows
// over all of them: merged devices are NET's alone.
ncclResult_t physical_devices(int* count) {
  return tell_devices(count, [](Context& c) { return c.physical_count(); });
}

ncclResult_t get_properties(int dev, abi::ncclNetProperties_v11_t* out) {
  return guarded("GIN getProperties", [&] {
    return fill_properties(dev, out, {abi::kNetDeviceGinGdaki, abi::kGdakiVersion_2_28});
  });
}
ncclResult_t get_properties(int dev, abi::ncclNetProperties_v12_t* out) {
  return guarded("GIN getProperties", [&] {
    return fill_properties(dev, out, {abi::kNetDeviceGinGdaki, abi::kGdakiVersion_2_30});
  });
}

// Strong: a signal follows all that its rank sent to the peer before, because one queue pair
// carries both.  VA signals raise words of windows; NCCL from 2.30.7 on refuses a device
// communicator that requires them, as it does by default, where they are not offered.
ncclResult_t get_gin_properties(ncclGinProperties_v14_t* out) {
  return guarded("getGinProperties", [&]() -> Status {
    if (out == nullptr) return refuse("getGinProperties", "no place for the properties");
    *out = {.supportsStrongSignals = true, .supportsVASignals = true};
    return Status::ok;
  });
}

// --- contexts --------------------------------------------------------------------------

Status make_context(void* coll_comm, const gda::ContextSettings& settings, int version,
                    void** gin_ctx, ncclNetDeviceHandle_t** dev_handle) {
  auto made = Gin::make_context(coll_comm, settings);
  if (!made) return made.status();
  (*made)->handle = {.netDeviceType = abi::kNetDeviceGinGdaki,
                     .netDeviceVersion = version,
                     .handle = device_pointer((*made)->context->device_handle()),
                     .size = 0,
                     .needsProxyProgress = 0};  // our engine has threads of its own
  *dev_handle = &(*made)->handle;
  *gin_ctx = *made;
  return Status::ok;
}

// Clears the places for the results and says whether the call can be made.
bool context_arguments(void* coll_comm, void** gin_ctx, ncclNetDeviceHandle_t** dev_handle) {
  if (gin_ctx != nullptr) *gin_ctx = nullptr;
  if (dev_handle != nullptr) *dev_handle = nullptr;
  return coll_comm != nullptr && gin_ctx != nullptr && dev_handle != nullptr;
}

// v11 does not say what kernels were compiled for: with 2.30.3 and 2.30.4, which know no v14, it is
// other queues than before, and NCCL does not compare versions.
constexpr int kFirstWithNewQueues = 23000;

ncclResult_t create_context(void* coll_comm, int signals, int counters, void** gin_ctx,
                            ncclNetDeviceHandle_t** dev_handle) {  // v11
  const bool good = context_arguments(coll_comm, gin_ctx, dev_handle);
  return guarded("createContext", [&]() -> Status {
    if (!good) return refuse("createContext", "null argument");
    if (signals < 0 || counters < 0) return refuse("createContext", "negative count");
    const bool old = Gin::coll_of(coll_comm).nccl < kFirstWithNewQueues;
    const gda::ContextSettings settings{
        .signals = signals,
        .counters = counters,
        .layout = old ? gda::DeviceLayout::v2_28 : gda::DeviceLayout::v2_30_72};
    return make_context(coll_comm, settings,
                        old ? abi::kGdakiVersion_2_28 : abi::kGdakiVersion_2_30, gin_ctx,
                        dev_handle);
  });
}

// Which structures the kernels know.  Null for a number of a future NCCL.
const gda::DeviceLayout* layout_of(int backend_version) {
  static constexpr std::array kLayouts = {gda::DeviceLayout::v2_30_72, gda::DeviceLayout::v2_30_72,
                                          gda::DeviceLayout::v2_30_88};
  if (backend_version < 0 || static_cast<std::size_t>(backend_version) >= kLayouts.size())
    return nullptr;
  return &kLayouts[static_cast<std::size_t>(backend_version)];
}

ncclResult_t create_context(void* coll_comm, ncclGinConfig_v14_t* config, void** gin_ctx,
                            ncclNetDeviceHandle_t** dev_handle) {  // v14
  const bool good = context_arguments(coll_comm, gin_ctx, dev_handle);
  return guarded("createContext", [&]() -> Status {
    if (!good || config == nullptr) return refuse("createContext", "null argument");
    if (config->nSignals < 0 || config->nCounters < 0)
      return refuse("createContext", "negative count");
    const gda::DeviceLayout* layout = layout_of(config->backendVersion);
    if (layout == nullptr) {
      TP_WARN(
          "createContext: kernels want device structures of version %d, known are 0 to 2; "
          "this plugin is too old for them",
          config->backendVersion);
      return Status::unsupported;
    }
    // A traffic class that nobody set is -1 or INT_MIN.  A queue depth that is not positive is a
    // wish for the default, in NCCL's own transport too.
    const gda::ContextSettings settings{
        .signals = config->nSignals,
        .counters = config->nCounters,
        .contexts = std::max(1, config->nContexts),
        .queue_depth = std::max(0, config->queueDepth),
        .traffic_class = std::max(abi::kUndefined, config->trafficClass),
        .rank_stride = std::max(1, config->rankStride),
        .layout = *layout};
    return make_context(coll_comm, settings, abi::kGdakiVersion_2_30, gin_ctx, dev_handle);
  });
}

// Never needed, see needsProxyProgress; NCCL's threads may call it all the same.
ncclResult_t gin_progress(void*) { return abi::ncclSuccess; }

// --- memory ----------------------------------------------------------------------------

// Collective.
ncclResult_t reg_mr_sym_dmabuf(void* coll_comm, void* data, std::size_t size, int type,
                               std::uint64_t offset, int fd, std::uint64_t flags, void** mhandle,
                               void** gin_handle) {
  if (mhandle != nullptr) *mhandle = nullptr;
  if (gin_handle != nullptr) *gin_handle = nullptr;
  return guarded("regMrSym", [&]() -> Status {
    if (coll_comm == nullptr || mhandle == nullptr || gin_handle == nullptr)
      return refuse("regMrSym", "null argument");
    MemoryType kind{};
    TP_TRY(memory_type("regMrSym", type, kind));
    const auto window =
        Gin::comm_of(coll_comm).register_window(data, size, kind, offset, fd, window_traits(flags));
    if (!window) return window.status();
    *mhandle = *window;
    *gin_handle = device_pointer((*window)->device_handle());
    return Status::ok;
  });
}
ncclResult_t reg_mr_sym(void* coll_comm, void* data, std::size_t size, int type,
                        std::uint64_t flags, void** mhandle, void** gin_handle) {
  return reg_mr_sym_dmabuf(coll_comm, data, size, type, 0, -1, flags, mhandle, gin_handle);
}

// --- puts by the host ------------------------------------------------------------------

// v11 has them for plugins of type PROXY, whose kernels hand requests to NCCL's thread.
ncclResult_t not_a_proxy(const char* entry, void** request) {
  if (request != nullptr) *request = nullptr;
  return guarded(entry, [&] {
    TP_WARN(
        "%s: this GIN plugin is of type GDAKI: kernels write work requests by themselves and "
        "the host does not; see NCCL_GIN_TYPE",
        entry);
    return Status::unsupported;
  });
}
ncclResult_t iput(void*, std::uint64_t, void*, std::size_t, std::uint64_t, void*, std::uint32_t,
                  void** request) {
  return not_a_proxy("iput", request);
}
ncclResult_t iput_signal(void*, std::uint64_t, void*, std::size_t, std::uint64_t, void*,
                         std::uint32_t, std::uint64_t, void*, std::uint64_t, std::uint32_t,
                         void** request) {
  return not_a_proxy("iputSignal", request);
}
ncclResult_t test(void*, void*, int* done) {
  if (done != nullptr) *done = 0;
  return not_a_proxy("GIN test", nullptr);
}

// --- tables ----------------------------------------------------------------------------

template <class Table>
constexpr Table make_gin() {
  Table t{};
  t.name = kPluginName;
  t.init = init;
  t.devices = devices;
  t.getProperties = get_properties;
  t.listen = Gin::listen;
  t.connect = Gin::connect;
  t.createContext = create_context;
  t.regMrSym = reg_mr_sym;
  t.regMrSymDmaBuf = reg_mr_sym_dmabuf;
  t.deregMrSym = Gin::dereg_mr_sym;
  t.destroyContext = Gin::destroy_context;
  t.closeColl = Gin::close_coll;
  t.closeListen = Gin::close_listen;
  t.ginProgress = gin_progress;
  t.queryLastError = Gin::query_last_error;
  t.finalize = Gin::finalize;
  if constexpr (requires { t.iput; }) {  // v11 to v13
    t.iput = iput;
    t.iputSignal = iput_signal;
    t.test = test;
  }
  if constexpr (requires { t.getGinProperties; }) {  // v14
    t.devices = physical_devices;
    t.getGinProperties = get_gin_properties;
  }
  return t;
}

}  // namespace
}  // namespace twinpath

#define TP_EXPORT(version)                                                                         \
  extern "C"                                                                                       \
      __attribute__((visibility("default"))) constinit const twinpath::abi::ncclGin_v##version##_t \
          ncclGinPlugin_v##version = twinpath::make_gin<twinpath::abi::ncclGin_v##version##_t>()
TP_EXPORT(11);
TP_EXPORT(14);
