// ncclNetPlugin_v6 to _v12: every table from one template.
//
// Each entry point is written once, in the newest form.  Where an older NCCL calls it with
// another signature, one more overload just below converts and forwards.  The type of the
// table's member picks the overload, so a table that asks for a signature nobody wrote does not
// compile.
//
// Threads: as plugin/transport.h says.  isend, irecv, iflush and test take no lock here.
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <type_traits>
#include <utility>

#include "plugin/nccl/abi/layout.h"
#include "plugin/nccl/abi/net.h"
#include "plugin/nccl/boundary.h"
#include "plugin/nccl/context.h"
#include "plugin/nccl/net_attr.h"
#include "plugin/nccl/net_events.h"
#include "plugin/nccl/properties.h"

namespace twinpath {
namespace {

using abi::ncclNetAttr_t;
using abi::ncclNetCommConfig_t;
using abi::ncclNetDeviceHandle_t;
using abi::ncclProfilerCallback_t;
using abi::ncclResult_t;

// --- init, devices, finalize ----------------------------------------------------------

ncclResult_t init(void** ctx, std::uint64_t comm_id, ncclNetCommConfig_t* config, LogSink log,
                  ncclProfilerCallback_t events) {  // v11
  if (ctx != nullptr) *ctx = nullptr;
  set_log_sink(log);
  return guarded("init", [&]() -> Status {
    if (ctx == nullptr) return refuse("init", "no place for the context");
    auto context = Context::open();
    if (!context) return context.status();
    (*context)->note_init();
    const int traffic_class = config == nullptr ? abi::kUndefined : config->trafficClass;
    auto session = (*context)->open_session({.comm_id = comm_id, .traffic_class = traffic_class});
    if (!session) return session.status();
    *ctx = new NetInstance{{traffic_class}, {*session, events}};
    return Status::ok;
  });
}
ncclResult_t init(LogSink log, ncclProfilerCallback_t) {  // v10
  set_log_sink(log);
  return guarded("init", [&]() -> Status {
    auto context = Context::open();
    if (!context) return context.status();
    (*context)->note_init();
    return (*context)->shared_session(abi::kUndefined).status();
  });
}
ncclResult_t init(LogSink log) { return init(log, nullptr); }  // v6 to v9

ncclResult_t devices(int* count) {
  if (count != nullptr) *count = 0;
  return guarded("devices", [&]() -> Status {
    if (count == nullptr) return refuse("devices", "no place for the count");
    Context* context = nullptr;
    TP_TRY(opened("devices", context));
    *count = context->device_count();
    return Status::ok;
  });
}

// Null is what NCCL passes when init failed, and older NCCL at the end.
ncclResult_t finalize(void* ctx) {
  return guarded("finalize", [&] {
    if (Context* context = Context::get(); context != nullptr && ctx != nullptr) {
      context->close_session(session_of(ctx));
      delete static_cast<NetInstance*>(ctx);
    }
    return Status::ok;
  });
}

// Hints about the operations to come, of that communicator.  The progress thread calls it, too.
ncclResult_t set_net_attr(void* ctx, ncclNetAttr_t* attr) {
  return guarded("setNetAttr", [&] {
    if (Session* session = session_of(ctx); session != nullptr && attr != nullptr)
      session->expect(hints_of(*attr));
    return Status::ok;
  });
}

template <class Props>
ncclResult_t get_properties(int dev, Props* out) {
  return guarded("getProperties", [&] {
    return fill_properties(dev, out, {abi::kNetDeviceHost, 0});
  });
}

template <class VProps>
ncclResult_t make_vdevice(int* dev, VProps* props) {  // v9
  return guarded("makeVDevice", [&]() -> Status {
    if (dev == nullptr || props == nullptr) return refuse("makeVDevice", "null argument");
    if (props->ndevs < 1 || props->ndevs > VProps::kMaxDevices) {
      TP_WARN("makeVDevice: %d devices; 1 to %d can be merged", props->ndevs, VProps::kMaxDevices);
      return Status::bad_argument;
    }
    Context* context = nullptr;
    TP_TRY(opened("makeVDevice", context));
    const auto merged =
        context->merge(std::span<const int>(props->devs, static_cast<std::size_t>(props->ndevs)));
    if (!merged) return merged.status();
    *dev = *merged;
    return Status::ok;
  });
}

// --- connections ----------------------------------------------------------------------

// The session to use: NCCL's context, or the shared one when it gives none.
Status find_session(const char* entry, void* ctx, int traffic_class, Session*& session) {
  Context* context = nullptr;
  TP_TRY(opened(entry, context));
  session = session_of(ctx);
  if (session != nullptr) return Status::ok;
  const auto shared = context->shared_session(traffic_class);
  if (!shared) return shared.status();
  session = *shared;
  return Status::ok;
}

ncclResult_t listen(void* ctx, int dev, void* handle, void** listen_comm) {  // v11
  if (listen_comm != nullptr) *listen_comm = nullptr;
  return guarded("listen", [&]() -> Status {
    if (handle == nullptr || listen_comm == nullptr) return refuse("listen", "null argument");
    Session* session = nullptr;
    TP_TRY(find_session("listen", ctx, abi::kUndefined, session));
    std::unique_ptr<Listener> listener;
    TP_TRY(session->listen(dev, handle_bytes(handle), listener));
    if (const auto events = ours_of(ctx).events; events != nullptr)
      listener->companion = std::make_unique<EventSource>(events);
    *listen_comm = listener.release();
    return Status::ok;
  });
}
ncclResult_t listen(int dev, void* handle, void** listen_comm) {  // v6 to v10
  return listen(nullptr, dev, handle, listen_comm);
}

// *comm stays null while the handshake goes on; its state is in the 128 bytes of the handle.
ncclResult_t connect_any(void* ctx, int traffic_class, int dev, void* handle, void** comm) {
  if (comm != nullptr) *comm = nullptr;
  return guarded("connect", [&]() -> Status {
    if (handle == nullptr || comm == nullptr) return refuse("connect", "null argument");
    Session* session = nullptr;
    TP_TRY(find_session("connect", ctx, traffic_class, session));
    std::unique_ptr<SendComm> connected;
    TP_TRY(session->connect(dev, handle_bytes(handle), connected));
    NetEvents::attach(*connected, ours_of(ctx).events, NetEvents::Direction::send);
    *comm = comm_to_nccl(connected.release());
    return Status::ok;
  });
}
ncclResult_t connect(void* ctx, int dev, void* handle, void** comm,
                     ncclNetDeviceHandle_t**) {  // v11
  return connect_any(ctx, abi::kUndefined, dev, handle, comm);
}
ncclResult_t connect(int dev, ncclNetCommConfig_t* config, void* handle, void** comm,
                     ncclNetDeviceHandle_t**) {  // v10
  const int traffic_class = config == nullptr ? abi::kUndefined : config->trafficClass;
  return connect_any(nullptr, traffic_class, dev, handle, comm);
}
ncclResult_t connect(int dev, void* handle, void** comm, ncclNetDeviceHandle_t**) {  // v7 to v9
  return connect_any(nullptr, abi::kUndefined, dev, handle, comm);
}
ncclResult_t connect(int dev, void* handle, void** comm) {  // v6
  return connect_any(nullptr, abi::kUndefined, dev, handle, comm);
}

ncclResult_t accept(void* listen_comm, void** comm, ncclNetDeviceHandle_t**) {  // v7
  if (comm != nullptr) *comm = nullptr;
  return guarded("accept", [&]() -> Status {
    if (listen_comm == nullptr || comm == nullptr) return refuse("accept", "null argument");
    std::unique_ptr<RecvComm> accepted;
    Listener* const listener = listener_of(listen_comm);
    TP_TRY(listener->accept(accepted));
    if (const auto* source = static_cast<const EventSource*>(listener->companion.get()))
      NetEvents::attach(*accepted, source->callback, NetEvents::Direction::receive);
    *comm = comm_to_nccl(accepted.release());
    return Status::ok;
  });
}
ncclResult_t accept(void* listen_comm, void** comm) {  // v6
  return accept(listen_comm, comm, nullptr);
}

// Closing null is allowed: NCCL does it for connections that were never finished.
ncclResult_t close_comm(void* comm) {
  return guarded("close", [&] {
    delete comm_of(comm);
    return Status::ok;
  });
}
ncclResult_t close_listen(void* listen_comm) {
  return guarded("closeListen", [&] {
    delete listener_of(listen_comm);
    return Status::ok;
  });
}

// --- memory ---------------------------------------------------------------------------

ncclResult_t reg_mr_dmabuf(void* comm, void* data, std::size_t size, int type, std::uint64_t offset,
                           int fd, void** mhandle) {
  if (mhandle != nullptr) *mhandle = nullptr;
  return guarded("regMr", [&]() -> Status {
    if (comm == nullptr || mhandle == nullptr) return refuse("regMr", "null argument");
    MemoryType kind{};
    TP_TRY(memory_type("regMr", type, kind));
    const auto memory = comm_of(comm)->register_memory(data, size, kind, offset, fd);
    if (!memory) return memory.status();
    *mhandle = *memory;
    return Status::ok;
  });
}
ncclResult_t reg_mr(void* comm, void* data, std::size_t size, int type, void** mhandle) {  // v8
  return reg_mr_dmabuf(comm, data, size, type, 0, -1, mhandle);
}
ncclResult_t reg_mr(void* comm, void* data, int size, int type, void** mhandle) {  // v6, v7
  if (size < 0) return to_nccl(refuse("regMr", "negative size"));
  return reg_mr(comm, data, static_cast<std::size_t>(size), type, mhandle);
}

ncclResult_t dereg_mr(void* comm, void* mhandle) {
  return guarded("deregMr", [&]() -> Status {
    if (comm == nullptr) return refuse("deregMr", "null comm");
    if (mhandle == nullptr) return Status::ok;
    return comm_of(comm)->deregister_memory(memory_of(mhandle));
  });
}

// --- data path ------------------------------------------------------------------------

// These three are called for each message.  Where nobody wants its events, which is nearly always,
// they hand NCCL's own arguments on, and keep nothing over the call.

// NCCL's place for a request, as ours: a pointer to an object is kept as one to void.
inline Request** request_place(void** request) { return reinterpret_cast<Request**>(request); }

// Whether somebody is told of the events of an operation with these handles of NCCL's.
TP_ALWAYS_INLINE inline bool watched(const Comm* comm, void* const* handles, int count) {
  if (comm->companion == nullptr || handles == nullptr) [[likely]]
    return false;
  for (int i = 0; i != count; ++i)
    if (handles[i] != nullptr) return true;
  return false;
}
// The request to give NCCL for a watched operation that has begun.
Request* watch(Comm* comm, Request* started, void* const* handles, int count) {
  if (started == nullptr) return nullptr;
  return static_cast<NetEvents*>(comm->companion.get())
      ->watch(started, {handles, static_cast<std::size_t>(count)});
}

[[gnu::noinline]] ncclResult_t isend_watched(void* comm, void* data, std::size_t size, int tag,
                                             void* mhandle, void* phandle, void** request) {
  *request = nullptr;
  return guarded("isend", [&]() -> Status {
    Request* started = nullptr;
    send_comm_of(comm)->watch_next();
    TP_TRY(send_comm_of(comm)->isend(data, size, tag, memory_of(mhandle), &started));
    *request = watch(comm_of(comm), started, &phandle, 1);
    return Status::ok;
  });
}

ncclResult_t isend(void* comm, void* data, std::size_t size, int tag, void* mhandle, void* phandle,
                   void** request) {  // v10
  if (request == nullptr || comm == nullptr) [[unlikely]] {
    if (request != nullptr) *request = nullptr;
    return to_nccl(refuse("isend", "null argument"));
  }
  if (watched(comm_of(comm), &phandle, 1)) [[unlikely]]
    return isend_watched(comm, data, size, tag, mhandle, phandle, request);
  *request = nullptr;
  return guarded("isend", [&]() TP_ALWAYS_INLINE -> Status {
    return send_comm_of(comm)->isend(data, size, tag, memory_of(mhandle), request_place(request));
  });
}
ncclResult_t isend(void* comm, void* data, std::size_t size, int tag, void* mhandle,
                   void** request) {  // v9
  return isend(comm, data, size, tag, mhandle, nullptr, request);
}
ncclResult_t isend(void* comm, void* data, int size, int tag, void* mhandle,
                   void** request) {  // v6 to v8
  if (size < 0) return to_nccl(refuse("isend", "negative size"));
  return isend(comm, data, static_cast<std::size_t>(size), tag, mhandle, nullptr, request);
}

[[gnu::cold]] Status too_many(const char* entry, int n) {
  TP_WARN("%s: %d buffers in one call; 1 to %d are possible (maxRecvs)", entry, n, kMaxRecvs);
  return Status::bad_argument;
}

// What makes no sense, or is not given: no tags, and without bytes no registrations.
[[gnu::cold]] Status complete(int n, void** data, const void* comm, RecvBuffers& buffers) {
  static constexpr std::array<std::size_t, kMaxRecvs> no_bytes{};
  static constexpr std::array<int, kMaxRecvs> no_tags{};
  static constexpr std::array<void*, kMaxRecvs> no_memories{};
  if (comm == nullptr || data == nullptr) return refuse("irecv", "null argument");
  if (n < 1 || n > kMaxRecvs) return too_many("irecv", n);
  if (buffers.bytes == nullptr) buffers.bytes = no_bytes.data();
  if (buffers.tags == nullptr) buffers.tags = no_tags.data();
  if (buffers.memories == nullptr) buffers.memories = no_memories.data();
  return Status::ok;
}

// Whatever is not plain about it; its place for the request is empty.
TP_APART ncclResult_t irecv_unusual(void* comm, int n, void** data, const std::size_t* sizes,
                                    const int* tags, void** mhandles, void** phandles,
                                    bool optional, void** request) {
  return guarded("irecv", [&]() -> Status {
    RecvBuffers buffers{static_cast<std::size_t>(n), data, sizes, tags, mhandles};
    TP_TRY(complete(n, data, comm, buffers));
    if (!watched(comm_of(comm), phandles, n))
      return recv_comm_of(comm)->irecv(buffers, optional, request_place(request));
    Request* started = nullptr;
    TP_TRY(recv_comm_of(comm)->irecv(buffers, optional, &started));
    *request = watch(comm_of(comm), started, phandles, n);
    return Status::ok;
  });
}

ncclResult_t irecv(void* comm, int n, void** data, std::size_t* sizes, int* tags, void** mhandles,
                   void** phandles, void** request) {  // v10
  if (request == nullptr) [[unlikely]]
    return to_nccl(refuse("irecv", "null argument"));
  const bool optional = reinterpret_cast<std::uintptr_t>(*request) == abi::kOptionalRecvCompletion;
  *request = nullptr;  // whatever happens, 0x1 must not stay
  if (comm == nullptr || data == nullptr || sizes == nullptr || tags == nullptr ||
      mhandles == nullptr || n < 1 || n > kMaxRecvs || watched(comm_of(comm), phandles, n))
      [[unlikely]]
    return irecv_unusual(comm, n, data, sizes, tags, mhandles, phandles, optional, request);
  return guarded("irecv", [&]() TP_ALWAYS_INLINE -> Status {
    return recv_comm_of(comm)->irecv({static_cast<std::size_t>(n), data, sizes, tags, mhandles},
                                     optional, request_place(request));
  });
}
ncclResult_t irecv(void* comm, int n, void** data, std::size_t* sizes, int* tags, void** mhandles,
                   void** request) {  // v9
  return irecv(comm, n, data, sizes, tags, mhandles, nullptr, request);
}
ncclResult_t irecv(void* comm, int n, void** data, int* sizes, int* tags, void** mhandles,
                   void** request) {  // v6 to v8
  std::array<std::size_t, kMaxRecvs> wide;
  for (int i = 0; sizes != nullptr && i < std::min(n, kMaxRecvs); ++i) {
    if (sizes[i] < 0) {
      if (request != nullptr) *request = nullptr;
      return to_nccl(refuse("irecv", "negative size"));
    }
    wide[static_cast<std::size_t>(i)] = static_cast<std::size_t>(sizes[i]);
  }
  return irecv(comm, n, data, sizes == nullptr ? nullptr : wide.data(), tags, mhandles, nullptr,
               request);
}

ncclResult_t iflush(void* comm, int n, void** data, int* sizes, void** mhandles, void** request) {
  if (request != nullptr) *request = nullptr;
  return guarded("iflush", [&]() -> Status {
    if (comm == nullptr || request == nullptr || data == nullptr)
      return refuse("iflush", "null argument");
    if (n < 1 || n > kMaxRecvs) return too_many("iflush", n);
    std::array<RecvBuffer, kMaxRecvs> buffers;
    for (std::size_t i = 0; i < static_cast<std::size_t>(n); ++i) {
      if (sizes != nullptr && sizes[i] < 0) return refuse("iflush", "negative size");
      buffers[i] = {.data = data[i],
                    .bytes = sizes == nullptr ? 0 : static_cast<std::size_t>(sizes[i]),
                    .tag = 0,
                    .memory = mhandles == nullptr ? nullptr : memory_of(mhandles[i])};
    }
    return recv_comm_of(comm)->iflush({buffers.data(), static_cast<std::size_t>(n)},
                                      request_place(request));
  });
}

ncclResult_t test(void* request, int* done, int* sizes) {
  if (done == nullptr || reinterpret_cast<std::uintptr_t>(request) <= abi::kOptionalRecvCompletion)
      [[unlikely]] {
    if (done != nullptr) *done = 0;
    return to_nccl(refuse("test", "not a request of this plugin"));
  }
  *done = 0;
  return guarded("test", [&]() TP_ALWAYS_INLINE -> Status {
    return static_cast<Request*>(request)->test(*done, sizes);
  });
}

// --- tables ---------------------------------------------------------------------------

// getDeviceMr and irecvConsumed stay null: they serve networks that GPU code drives.
template <class Net>
constexpr Net make_net() {
  Net t{};
  t.name = kPluginName;
  t.init = init;
  t.devices = devices;
  t.getProperties = get_properties;
  t.listen = listen;
  t.connect = connect;
  t.accept = accept;
  t.regMr = reg_mr;
  t.regMrDmaBuf = reg_mr_dmabuf;
  t.deregMr = dereg_mr;
  t.isend = isend;
  t.irecv = irecv;
  t.iflush = iflush;
  t.test = test;
  t.closeSend = close_comm;
  t.closeRecv = close_comm;
  t.closeListen = close_listen;
  if constexpr (requires { t.makeVDevice; }) t.makeVDevice = make_vdevice;  // v9
  if constexpr (requires { t.finalize; }) {                                 // v11
    t.finalize = finalize;
    t.setNetAttr = set_net_attr;
  }
  return t;
}

}  // namespace
}  // namespace twinpath

#define TP_EXPORT(version)                                                                         \
  extern "C"                                                                                       \
      __attribute__((visibility("default"))) constinit const twinpath::abi::ncclNet_v##version##_t \
          ncclNetPlugin_v##version = twinpath::make_net<twinpath::abi::ncclNet_v##version##_t>()
TP_EXPORT(6);
TP_EXPORT(7);
TP_EXPORT(8);
TP_EXPORT(9);
TP_EXPORT(10);
TP_EXPORT(11);
TP_EXPORT(12);
