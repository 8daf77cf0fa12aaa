// ncclNetPlugin_v6 to _v12: every table from one template.
//
// Each entry point is written once, in the newest form.  Where an older NCCL calls it with
// another signature, one more overload just below converts and forwards.  The type of the
// table's member picks the overload, so a table that asks for a signature nobody wrote does not
// compile.
//
// Threads: as plugin/transport.h says.  isend, irecv, iflush and test take no lock here.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <new>
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
    if (type != abi::kPtrHost && type != abi::kPtrCuda) {
      TP_WARN("regMr: memory type %d; known are %d (host) and %d (CUDA)", type, abi::kPtrHost,
              abi::kPtrCuda);
      return Status::bad_argument;
    }
    const auto memory = comm_of(comm)->register_memory(
        data, size, type == abi::kPtrCuda ? MemoryType::cuda : MemoryType::host, offset, fd);
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

// The request to give NCCL for an operation of the comm that has begun.
TP_ALWAYS_INLINE inline Request* watched(Comm* comm, Request* started, void* const* handles,
                                         int count) {
  Companion* const events = comm->companion.get();
  if (events == nullptr) [[likely]]
    return started;
  if (started == nullptr) return nullptr;
  return static_cast<NetEvents*>(events)->watch(
      started, {handles, handles == nullptr ? 0 : static_cast<std::size_t>(count)});
}

ncclResult_t isend(void* comm, void* data, std::size_t size, int tag, void* mhandle, void* phandle,
                   void** request) {  // v10
  if (request != nullptr) *request = nullptr;
  return guarded("isend", [&]() TP_ALWAYS_INLINE -> Status {
    if (comm == nullptr || request == nullptr) [[unlikely]]
      return refuse("isend", "null argument");
    Request* started = nullptr;
    TP_TRY(send_comm_of(comm)->isend(data, size, tag, memory_of(mhandle), &started));
    *request = watched(comm_of(comm), started, &phandle, 1);
    return Status::ok;
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

// Room for the buffers of one call.  Nothing is cleared: mostly there is one, of kMaxRecvs.
class Buffers {
 public:
  void add(const RecvBuffer& buffer) { std::construct_at(begin() + count_++, buffer); }
  std::span<const RecvBuffer> all() { return {std::launder(begin()), count_}; }

 private:
  RecvBuffer* begin() { return reinterpret_cast<RecvBuffer*>(bytes_); }

  static_assert(std::is_trivially_destructible_v<RecvBuffer>);
  std::size_t count_ = 0;
  alignas(RecvBuffer) std::byte bytes_[sizeof(RecvBuffer) * kMaxRecvs];
};

// Gathers NCCL's parallel arrays.  `sizes`, `tags` and `mhandles` may be null (iflush has no
// tags; without bytes there is nothing to register).
template <class Size>
TP_ALWAYS_INLINE inline Status gather(const char* entry, int n, void** data, const Size* sizes,
                                      const int* tags, void** mhandles, Buffers& out) {
  if (n < 1 || n > kMaxRecvs) [[unlikely]] {
    TP_WARN("%s: %d buffers in one call; 1 to %d are possible (maxRecvs)", entry, n, kMaxRecvs);
    return Status::bad_argument;
  }
  if (data == nullptr) [[unlikely]]
    return refuse(entry, "null argument");
  for (std::size_t i = 0; i < static_cast<std::size_t>(n); ++i) {
    if constexpr (std::is_signed_v<Size>) {
      if (sizes != nullptr && sizes[i] < 0) [[unlikely]]
        return refuse(entry, "negative size");
    }
    out.add({.data = data[i],
             .bytes = sizes == nullptr ? 0 : static_cast<std::size_t>(sizes[i]),
             .tag = tags == nullptr ? 0 : tags[i],
             .memory = mhandles == nullptr ? nullptr : memory_of(mhandles[i])});
  }
  return Status::ok;
}

template <class Size>
TP_ALWAYS_INLINE inline ncclResult_t irecv_any(void* comm, int n, void** data, Size* sizes,
                                               int* tags, void** mhandles, void** phandles,
                                               void** request) {
  const bool optional = request != nullptr &&
                        reinterpret_cast<std::uintptr_t>(*request) == abi::kOptionalRecvCompletion;
  if (request != nullptr) *request = nullptr;  // whatever happens, 0x1 must not stay
  return guarded("irecv", [&]() TP_ALWAYS_INLINE -> Status {
    if (comm == nullptr || request == nullptr) [[unlikely]]
      return refuse("irecv", "null argument");
    Buffers buffers;
    TP_TRY(gather("irecv", n, data, sizes, tags, mhandles, buffers));
    Request* started = nullptr;
    TP_TRY(recv_comm_of(comm)->irecv(buffers.all(), optional, &started));
    *request = watched(comm_of(comm), started, phandles, n);
    return Status::ok;
  });
}
ncclResult_t irecv(void* comm, int n, void** data, std::size_t* sizes, int* tags, void** mhandles,
                   void** phandles, void** request) {  // v10
  return irecv_any(comm, n, data, sizes, tags, mhandles, phandles, request);
}
ncclResult_t irecv(void* comm, int n, void** data, std::size_t* sizes, int* tags, void** mhandles,
                   void** request) {  // v9
  return irecv_any(comm, n, data, sizes, tags, mhandles, nullptr, request);
}
ncclResult_t irecv(void* comm, int n, void** data, int* sizes, int* tags, void** mhandles,
                   void** request) {  // v6 to v8
  return irecv_any(comm, n, data, sizes, tags, mhandles, nullptr, request);
}

ncclResult_t iflush(void* comm, int n, void** data, int* sizes, void** mhandles, void** request) {
  if (request != nullptr) *request = nullptr;
  return guarded("iflush", [&]() -> Status {
    if (comm == nullptr || request == nullptr) [[unlikely]]
      return refuse("iflush", "null argument");
    Buffers buffers;
    TP_TRY(gather<int>("iflush", n, data, sizes, nullptr, mhandles, buffers));
    Request* started = nullptr;
    TP_TRY(recv_comm_of(comm)->iflush(buffers.all(), &started));
    *request = started;
    return Status::ok;
  });
}

ncclResult_t test(void* request, int* done, int* sizes) {
  if (done != nullptr) *done = 0;
  return guarded("test", [&]() TP_ALWAYS_INLINE -> Status {
    if (done == nullptr ||
        reinterpret_cast<std::uintptr_t>(request) <= abi::kOptionalRecvCompletion) [[unlikely]]
      return refuse("test", "not a request of this plugin");
    Completion completion;
    TP_TRY(static_cast<Request*>(request)->test(completion));
    if (!completion.done) return Status::ok;
    if (sizes != nullptr) {
      for (int i = 0; i < completion.count; ++i) {
        sizes[i] = static_cast<int>(std::min<std::size_t>(
            completion.bytes[static_cast<std::size_t>(i)], std::numeric_limits<int>::max()));
      }
    }
    *done = 1;
    return Status::ok;
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
