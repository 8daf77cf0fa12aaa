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
#include <memory>
#include <utility>
#include <vector>

#include "gda/gin.h"
#include "plugin/nccl/abi/gin.h"
#include "plugin/nccl/abi/gin_layout.h"
#include "plugin/nccl/boundary.h"
#include "plugin/nccl/caller.h"
#include "plugin/nccl/context.h"
#include "plugin/nccl/properties.h"

namespace twinpath {
namespace {

using abi::ncclGinConfig_v14_t;
using abi::ncclGinProperties_v14_t;
using abi::ncclNetDeviceHandle_t;
using abi::ncclResult_t;

// --- what stands behind NCCL's void* ---------------------------------------------------

// A communicator's id, and the release of NCCL that made it (nccl_version_of).
struct GinOurs {
  std::uint64_t comm_id = 0;
  int nccl = 0;
};

// ctx.  NCCL 2.28 gives it to listen only; connect and finalize may get null, or one of another
// life, for every communicator but the first.
using GinInstance = Instance<GinOurs>;

// listenComm; brings to connect what its ctx said.
struct ListenComm {
  std::unique_ptr<gda::OneSidedListener> listener;
  GinOurs from;
};

struct CollComm;

// ginCtx; NCCL keeps a pointer to `handle`.
struct KernelContext {
  CollComm* owner = nullptr;
  std::unique_ptr<gda::GinContext> context;  // null once the comm was closed
  ncclNetDeviceHandle_t handle{};
};

// collComm.  NCCL 2.30 closes it with the contexts of device communicators that the program has not
// given back, as when it aborts, and forgets those.  Their kernels are let go then: NCCL waits for
// them next.
struct CollComm {
  std::unique_ptr<gda::GinComm> comm;
  int nccl = 0;
  std::vector<KernelContext*> contexts;

  ~CollComm() {
    for (KernelContext* left : contexts) {
      left->context.reset();
      left->owner = nullptr;
    }
  }
};

gda::GinComm& gin_comm_of(void* p) { return *static_cast<CollComm*>(p)->comm; }
KernelContext* kernel_context_of(void* p) { return static_cast<KernelContext*>(p); }

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
    if ((*context)->offers_gin()) *ctx = new GinInstance{{}, {comm_id, nccl_version_of(log)}};
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

ncclResult_t finalize(void* ctx) {
  return guarded("GIN finalize", [&] {
    delete static_cast<GinInstance*>(ctx);
    return Status::ok;
  });
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
// carries both.  VA signals are atomics on windows; NCCL 2.30.7 refuses a device communicator that
// requires them, as it does by default, where they are not offered.
ncclResult_t get_gin_properties(ncclGinProperties_v14_t* out) {
  return guarded("getGinProperties", [&]() -> Status {
    if (out == nullptr) return refuse("getGinProperties", "no place for the properties");
    *out = {.supportsStrongSignals = true, .supportsVASignals = false};
    Context* context = nullptr;
    TP_TRY(opened("getGinProperties", context));
    // Where it cannot be had, listen says why.
    if (const auto gin = context->gin()) out->supportsVASignals = (*gin)->window_signals();
    return Status::ok;
  });
}

// --- connections -----------------------------------------------------------------------

ncclResult_t listen(void* ctx, int dev, void* handle, void** listen_comm) {
  if (listen_comm != nullptr) *listen_comm = nullptr;
  return guarded("GIN listen", [&]() -> Status {
    if (handle == nullptr || listen_comm == nullptr) return refuse("GIN listen", "null argument");
    Context* context = nullptr;
    TP_TRY(opened("GIN listen", context));
    const auto gin = context->gin();
    if (!gin) return gin.status();
    auto made = std::make_unique<ListenComm>();
    if (ctx != nullptr) made->from = static_cast<GinInstance*>(ctx)->ours;
    auto listener = (*gin)->listen(dev, handle_bytes(handle));
    if (!listener) return listener.status();
    made->listener = std::move(listener).take();
    *listen_comm = made.release();
    return Status::ok;
  });
}

// Collective; waits for the other ranks.
ncclResult_t connect(void*, void* handles[], int nranks, int rank, void* listen_comm,
                     void** coll_comm) {
  if (coll_comm != nullptr) *coll_comm = nullptr;
  return guarded("GIN connect", [&]() -> Status {
    if (handles == nullptr || listen_comm == nullptr || coll_comm == nullptr)
      return refuse("GIN connect", "null argument");
    std::vector<std::array<std::uint8_t, kHandleBytes>> all;
    TP_TRY(handles_of_team("GIN connect", handles, nranks, rank, all));
    Context* context = nullptr;
    TP_TRY(opened("GIN connect", context));
    const auto gin = context->gin();
    if (!gin) return gin.status();
    auto* from = static_cast<ListenComm*>(listen_comm);
    auto comm = (*gin)->connect(all, rank, *from->listener, {.comm_id = from->from.comm_id});
    if (!comm) return comm.status();
    *coll_comm = new CollComm{std::move(comm).take(), from->from.nccl, {}};
    return Status::ok;
  });
}

// Closing null is allowed, as NCCL may do it for what was never finished.
ncclResult_t close_listen(void* listen_comm) {
  return guarded("GIN closeListen", [&] {
    delete static_cast<ListenComm*>(listen_comm);
    return Status::ok;
  });
}
ncclResult_t close_coll(void* coll_comm) {
  return guarded("closeColl", [&] {
    delete static_cast<CollComm*>(coll_comm);
    return Status::ok;
  });
}

// --- contexts --------------------------------------------------------------------------

Status make_context(void* coll_comm, const gda::ContextSettings& settings, int version,
                    void** gin_ctx, ncclNetDeviceHandle_t** dev_handle) {
  auto& owner = *static_cast<CollComm*>(coll_comm);
  auto context = owner.comm->create_context(settings);
  if (!context) return context.status();
  auto made = std::make_unique<KernelContext>();
  made->owner = &owner;
  made->context = std::move(context).take();
  made->handle = {.netDeviceType = abi::kNetDeviceGinGdaki,
                  .netDeviceVersion = version,
                  .handle = device_pointer(made->context->device_handle()),
                  .size = 0,
                  .needsProxyProgress = 0};  // our engine has threads of its own
  owner.contexts.push_back(made.get());
  *dev_handle = &made->handle;
  *gin_ctx = made.release();
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
    const bool old = static_cast<CollComm*>(coll_comm)->nccl < kFirstWithNewQueues;
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

ncclResult_t destroy_context(void* gin_ctx) {
  return guarded("destroyContext", [&] {
    const std::unique_ptr<KernelContext> context(kernel_context_of(gin_ctx));
    if (context != nullptr && context->owner != nullptr)
      std::erase(context->owner->contexts, context.get());
    return Status::ok;
  });
}

ncclResult_t query_last_error(void* gin_ctx, bool* has_error) {
  if (has_error != nullptr) *has_error = false;
  return guarded("queryLastError", [&]() -> Status {
    if (has_error == nullptr) return refuse("queryLastError", "no place for the answer");
    if (gin_ctx == nullptr) return Status::ok;
    const auto& context = kernel_context_of(gin_ctx)->context;
    *has_error = context == nullptr || context->failed();
    return Status::ok;
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
    const auto window = gin_comm_of(coll_comm).register_window(
        data, size, kind, offset, fd, (flags & abi::kMrForceStrictOrder) != 0);
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

ncclResult_t dereg_mr_sym(void* coll_comm, void* mhandle) {
  return guarded("deregMrSym", [&]() -> Status {
    if (coll_comm == nullptr) return refuse("deregMrSym", "null comm");
    if (mhandle == nullptr) return Status::ok;
    return gin_comm_of(coll_comm).deregister_window(static_cast<gda::GinWindow*>(mhandle));
  });
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

template <class Gin>
constexpr Gin make_gin() {
  Gin t{};
  t.name = kPluginName;
  t.init = init;
  t.devices = devices;
  t.getProperties = get_properties;
  t.listen = listen;
  t.connect = connect;
  t.createContext = create_context;
  t.regMrSym = reg_mr_sym;
  t.regMrSymDmaBuf = reg_mr_sym_dmabuf;
  t.deregMrSym = dereg_mr_sym;
  t.destroyContext = destroy_context;
  t.closeColl = close_coll;
  t.closeListen = close_listen;
  t.ginProgress = gin_progress;
  t.queryLastError = query_last_error;
  t.finalize = finalize;
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
