// ncclRmaPlugin_v14 to _v16: puts, gets and signals that the host asks for.  NCCL's ncclPutSignal
// and its likes come here, and its own proxy of kernels that communicate (GIN type PROXY), which
// takes init, devices, getProperties and finalize of this table for its own.
//
// All that a process pays for having these tables is init, as for GIN's.
//
// Threads: as gda/rma/rma.h says.
#include <algorithm>
#include <cstdint>

#include "gda/rma/rma.h"
#include "plugin/nccl/abi/rma.h"
#include "plugin/nccl/abi/rma_layout.h"
#include "plugin/nccl/one_sided.h"
#include "plugin/nccl/properties.h"

namespace twinpath {
namespace {

using abi::ncclResult_t;
using abi::ncclRmaConfig_v14_t;

struct RmaSeam {
  using Comm = gda::RmaComm;
  struct Handle {};
  static Result<gda::RmaTransport*> transport(Context& context) { return context.rma(); }
  static constexpr OneSidedNames kNames = {.finalize = "RMA finalize",
                                           .listen = "RMA listen",
                                           .connect = "RMA connect",
                                           .close_listen = "RMA closeListen",
                                           .close_coll = "RMA closeColl",
                                           .destroy_context = "RMA destroyContext",
                                           .query_last_error = "RMA queryLastError",
                                           .dereg_mr_sym = "RMA deregMrSym"};
};
using Rma = OneSided<RmaSeam>;

gda::RmaPlace place_of(void* mhandle, std::uint64_t offset) {
  return {static_cast<gda::RmaWindow*>(mhandle), offset};
}

// NCCL's numbers are unsigned; one that is too large is none of a rank.
int rank_of(std::uint32_t rank) {
  return static_cast<int>(std::min(rank, std::uint32_t{0x7fffffff}));
}

// Null where RMA is not offered: NCCL would reach GPU memory through it in any case.
Status offered(const char* entry, gda::RmaTransport*& transport) {
  transport = nullptr;
  Context* context = nullptr;
  TP_TRY(opened(entry, context));
  if (!context->offers_rma()) return Status::ok;
  const auto rma = context->rma();
  if (!rma) return rma.status();
  if ((*rma)->reaches_gpus()) transport = *rma;
  return Status::ok;
}

// --- init, devices, finalize -----------------------------------------------------------

ncclResult_t init(void** ctx, std::uint64_t comm_id, LogSink log) {
  if (ctx != nullptr) *ctx = nullptr;
  set_log_sink(log);
  return guarded("RMA init", [&]() -> Status {
    if (ctx == nullptr) return refuse("RMA init", "no place for the context");
    if (const auto context = Context::open(); !context) return context.status();
    gda::RmaTransport* rma = nullptr;
    TP_TRY(offered("RMA init", rma));
    // Without devices NCCL forgets the context instead of giving it back.
    if (rma != nullptr)
      *ctx = new OneSidedInstance{{}, {.comm_id = comm_id}};
    else
      TP_INFO(net,
              "RMA is not offered: TWINPATH_RMA is 0, or -1 on the soft HCA, or an adapter "
              "does not reach GPU memory");
    return Status::ok;
  });
}

// The numbers are those of the NET plugin's devices.  NCCL gives each connection a port of its own:
// merged devices are NET's alone.
ncclResult_t devices(int* count) {
  if (count != nullptr) *count = 0;
  return guarded("RMA devices", [&]() -> Status {
    if (count == nullptr) return refuse("RMA devices", "no place for the count");
    gda::RmaTransport* rma = nullptr;
    TP_TRY(offered("RMA devices", rma));
    if (rma != nullptr) *count = Context::get()->physical_count();
    return Status::ok;
  });
}

ncclResult_t get_properties(int dev, abi::ncclNetProperties_v12_t* out) {
  return guarded("RMA getProperties", [&] {
    return fill_properties(dev, out, {abi::kNetDeviceGinProxy, abi::kGinProxyVersion});
  });
}

ncclResult_t get_rma_properties(void* coll_comm, abi::ncclRmaProperties_v16_t* out) {
  if (out != nullptr) *out = {};
  return guarded("RMA getRmaProperties", [&]() -> Status {
    if (coll_comm == nullptr || out == nullptr)
      return refuse("RMA getRmaProperties", "null argument");
    out->flushesAllPutsOnAnySignal = Rma::comm_of(coll_comm).any_signal_shows_all();
    return Status::ok;
  });
}

// --- contexts --------------------------------------------------------------------------

// Collective.
ncclResult_t create_context(void* coll_comm, ncclRmaConfig_v14_t* config, void** rma_ctx) {
  if (rma_ctx != nullptr) *rma_ctx = nullptr;
  return guarded("RMA createContext", [&]() -> Status {
    if (coll_comm == nullptr || config == nullptr || rma_ctx == nullptr)
      return refuse("RMA createContext", "null argument");
    // A traffic class that nobody set is -1 or INT_MIN.
    const auto made = Rma::make_context(
        coll_comm, {.contexts = std::max(1, config->nContexts),
                    .traffic_class = std::max(abi::kUndefined, config->trafficClass),
                    .rank_stride = std::max(1, config->rankStride)});
    if (!made) return made.status();
    *rma_ctx = *made;
    return Status::ok;
  });
}

// --- memory ----------------------------------------------------------------------------

// Collective.
ncclResult_t reg_mr_sym_dmabuf(void* coll_comm, void* data, std::size_t size, int type,
                               std::uint64_t offset, int fd, std::uint64_t flags, void** mhandle) {
  if (mhandle != nullptr) *mhandle = nullptr;
  return guarded("RMA regMrSym", [&]() -> Status {
    if (coll_comm == nullptr || mhandle == nullptr) return refuse("RMA regMrSym", "null argument");
    MemoryType kind{};
    TP_TRY(memory_type("RMA regMrSym", type, kind));
    const auto window =
        Rma::comm_of(coll_comm).register_window(data, size, kind, offset, fd, window_traits(flags));
    if (!window) return window.status();
    *mhandle = *window;
    return Status::ok;
  });
}
ncclResult_t reg_mr_sym(void* coll_comm, void* data, std::size_t size, int type,
                        std::uint64_t flags, void** mhandle) {
  return reg_mr_sym_dmabuf(coll_comm, data, size, type, 0, -1, flags, mhandle);
}

// --- data ------------------------------------------------------------------------------

// Runs `body` with the context; its Result<RmaRequest*> goes to `request`.
template <class Body>
ncclResult_t requested(const char* entry, void* rma_ctx, void** request, Body&& body) {
  if (request != nullptr) *request = nullptr;
  return guarded(entry, [&]() -> Status {
    if (rma_ctx == nullptr || request == nullptr) return refuse(entry, "null argument");
    const auto& context = Rma::context_of(rma_ctx)->context;
    if (context == nullptr) return refuse(entry, "the communicator of the context was closed");
    const Result<gda::RmaRequest*> made = body(*context);
    if (!made) return made.status();
    *request = *made;
    return Status::ok;
  });
}

// From v15 on; the hints (NCCL would let requests wait for others) change nothing that a caller may
// see.
ncclResult_t iput(void* rma_ctx, int context, std::uint64_t src_off, void* src_mhandle,
                  std::size_t size, std::uint64_t dst_off, void* dst_mhandle, std::uint32_t rank,
                  std::uint32_t, void** request) {
  return requested("iput", rma_ctx, request, [&](gda::RmaContext& rma) {
    return rma.put(context, rank_of(rank),
                   {place_of(src_mhandle, src_off), place_of(dst_mhandle, dst_off), size}, nullptr);
  });
}
ncclResult_t iput(void* rma_ctx, int context, std::uint64_t src_off, void* src_mhandle,
                  std::size_t size, std::uint64_t dst_off, void* dst_mhandle, std::uint32_t rank,
                  void** request) {
  return iput(rma_ctx, context, src_off, src_mhandle, size, dst_off, dst_mhandle, rank, 0, request);
}

// Every signal is a strong one.
ncclResult_t iput_signal(void* rma_ctx, int context, std::uint64_t src_off, void* src_mhandle,
                         std::size_t size, std::uint64_t dst_off, void* dst_mhandle,
                         std::uint32_t rank, std::uint64_t signal_off, void* signal_mhandle,
                         std::uint64_t signal_value, std::uint32_t signal_op, bool, std::uint32_t,
                         void** request) {
  return requested(
      "iputSignal", rma_ctx, request, [&](gda::RmaContext& rma) -> Result<gda::RmaRequest*> {
        if (signal_op != abi::kSignalInc && signal_op != abi::kSignalAdd) {
          TP_WARN("iputSignal: signal operation %u; known are %u (INC) and %u (ADD)", signal_op,
                  abi::kSignalInc, abi::kSignalAdd);
          return Status::bad_argument;
        }
        const gda::RmaSignal signal{place_of(signal_mhandle, signal_off),
                                    signal_op == abi::kSignalInc ? std::uint64_t{1} : signal_value};
        return rma.put(context, rank_of(rank),
                       {place_of(src_mhandle, src_off), place_of(dst_mhandle, dst_off), size},
                       &signal);
      });
}
ncclResult_t iput_signal(void* rma_ctx, int context, std::uint64_t src_off, void* src_mhandle,
                         std::size_t size, std::uint64_t dst_off, void* dst_mhandle,
                         std::uint32_t rank, std::uint64_t signal_off, void* signal_mhandle,
                         std::uint64_t signal_value, std::uint32_t signal_op, bool strong,
                         void** request) {
  return iput_signal(rma_ctx, context, src_off, src_mhandle, size, dst_off, dst_mhandle, rank,
                     signal_off, signal_mhandle, signal_value, signal_op, strong, 0, request);
}

ncclResult_t iget(void* rma_ctx, int context, std::uint64_t remote_off, void* remote_mhandle,
                  std::size_t size, std::uint64_t local_off, void* local_mhandle,
                  std::uint32_t rank, std::uint32_t, void** request) {
  return requested("iget", rma_ctx, request, [&](gda::RmaContext& rma) {
    return rma.get(
        context, rank_of(rank),
        {place_of(local_mhandle, local_off), place_of(remote_mhandle, remote_off), size});
  });
}
ncclResult_t iget(void* rma_ctx, int context, std::uint64_t remote_off, void* remote_mhandle,
                  std::size_t size, std::uint64_t local_off, void* local_mhandle,
                  std::uint32_t rank, void** request) {
  return iget(rma_ctx, context, remote_off, remote_mhandle, size, local_off, local_mhandle, rank, 0,
              request);
}

// A null request says that there was nothing to wait for.
ncclResult_t iflush(void* rma_ctx, int context, void*, std::uint32_t rank, void** request) {
  return requested("iflush", rma_ctx, request,
                   [&](gda::RmaContext& rma) { return rma.flush(context, rank_of(rank)); });
}

ncclResult_t test(void*, void* request, int* done) {
  if (done != nullptr) *done = 0;
  return guarded("RMA test", [&]() -> Status {
    if (request == nullptr || done == nullptr) return refuse("RMA test", "null argument");
    bool is_done = false;
    TP_TRY(static_cast<gda::RmaRequest*>(request)->test(is_done));
    *done = is_done ? 1 : 0;
    return Status::ok;
  });
}

ncclResult_t rma_progress(void* rma_ctx) {
  return guarded("rmaProgress", [&]() -> Status {
    if (rma_ctx == nullptr) return refuse("rmaProgress", "null context");
    const auto& context = Rma::context_of(rma_ctx)->context;
    return context != nullptr ? context->progress() : Status::ok;
  });
}

// --- tables ----------------------------------------------------------------------------

template <class Table>
constexpr Table make_rma() {
  Table t{};
  t.name = kPluginName;
  t.init = init;
  t.devices = devices;
  if constexpr (Table::kVersion >= 16) t.getRmaProperties = get_rma_properties;
  t.getProperties = get_properties;
  t.listen = Rma::listen;
  t.connect = Rma::connect;
  t.createContext = create_context;
  t.regMrSym = reg_mr_sym;
  t.regMrSymDmaBuf = reg_mr_sym_dmabuf;
  t.deregMrSym = Rma::dereg_mr_sym;
  t.destroyContext = Rma::destroy_context;
  t.closeColl = Rma::close_coll;
  t.closeListen = Rma::close_listen;
  t.iput = iput;
  t.iputSignal = iput_signal;
  t.iget = iget;
  t.iflush = iflush;
  t.test = test;
  t.rmaProgress = rma_progress;
  t.queryLastError = Rma::query_last_error;
  t.finalize = Rma::finalize;
  return t;
}

}  // namespace
}  // namespace twinpath

#define TP_EXPORT(version)                                                                         \
  extern "C"                                                                                       \
      __attribute__((visibility("default"))) constinit const twinpath::abi::ncclRma_v##version##_t \
          ncclRmaPlugin_v##version = twinpath::make_rma<twinpath::abi::ncclRma_v##version##_t>()
TP_EXPORT(14);
TP_EXPORT(15);
TP_EXPORT(16);
