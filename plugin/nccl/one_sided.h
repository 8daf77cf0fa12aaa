#pragma once
// What the tables of GIN and RMA (gin_tables.cc, rma_tables.cc) have in common: what stands behind
// NCCL's void*, and the entry points that both have.
//
// Seam says what differs: the Comm of gda/gin.h or gda/rma/rma.h, a Handle that each context has
// besides, transport() of a Context, and the entry points' names (OneSidedNames), for the log.
//
// Threads: as the two say.
#include <algorithm>
#include <array>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "gda/one_sided.h"
#include "plugin/nccl/abi/gin.h"
#include "plugin/nccl/boundary.h"
#include "plugin/nccl/context.h"

namespace twinpath {

struct OneSidedNames {
  const char *finalize, *listen, *connect, *close_listen, *close_coll, *destroy_context,
      *query_last_error, *dereg_mr_sym;
};

// What ctx says: a communicator's id, and the release of NCCL that made it (nccl_version_of).
// NCCL 2.28 gives ctx to listen only, may give connect and finalize one of another life, and RMA's
// connect the NET plugin's: so this travels from listen to connect in the listener.
struct OneSidedOurs {
  std::uint64_t comm_id = 0;
  int nccl = 0;
};
using OneSidedInstance = Instance<OneSidedOurs>;

// NCCL's flags of memory that it registers.
constexpr gda::WindowTraits window_traits(std::uint64_t flags) {
  return {.strict = (flags & abi::kMrForceStrictOrder) != 0,
          .never_reset = (flags & abi::kMrSignalNeverReset) != 0};
}

template <class Seam>
struct OneSided {
  using Comm = typename Seam::Comm;
  static constexpr const OneSidedNames& kNames = Seam::kNames;

  // --- what stands behind NCCL's void*

  // listenComm.
  struct ListenComm {
    std::unique_ptr<gda::OneSidedListener> listener;
    OneSidedOurs from;
  };

  struct CollComm;

  // ginCtx or rmaCtx; NCCL keeps a pointer to GIN's `handle`.
  struct CommContext {
    CollComm* owner = nullptr;
    std::unique_ptr<typename Comm::Context> context;  // null once the comm was closed
    typename Seam::Handle handle{};
  };

  // collComm.  NCCL 2.30 closes it with the contexts of device communicators that the program has
  // not given back, as when it aborts, and forgets those.  Their kernels are let go then: NCCL
  // waits for them next.
  struct CollComm {
    std::unique_ptr<Comm> comm;
    int nccl = 0;
    std::vector<CommContext*> contexts;

    ~CollComm() {
      for (CommContext* left : contexts) {
        left->context.reset();
        left->owner = nullptr;
      }
    }
  };

  static CollComm& coll_of(void* p) { return *static_cast<CollComm*>(p); }
  static Comm& comm_of(void* p) { return *coll_of(p).comm; }
  static CommContext* context_of(void* p) { return static_cast<CommContext*>(p); }

  // --- entry points

  static abi::ncclResult_t finalize(void* ctx) {
    return guarded(kNames.finalize, [&] {
      delete static_cast<OneSidedInstance*>(ctx);
      return Status::ok;
    });
  }

  static abi::ncclResult_t listen(void* ctx, int dev, void* handle, void** listen_comm) {
    if (listen_comm != nullptr) *listen_comm = nullptr;
    return guarded(kNames.listen, [&]() -> Status {
      if (handle == nullptr || listen_comm == nullptr)
        return refuse(kNames.listen, "null argument");
      Context* context = nullptr;
      TP_TRY(opened(kNames.listen, context));
      const auto transport = Seam::transport(*context);
      if (!transport) return transport.status();
      auto made = std::make_unique<ListenComm>();
      if (ctx != nullptr) made->from = static_cast<OneSidedInstance*>(ctx)->ours;
      auto listener = (*transport)->listen(dev, handle_bytes(handle));
      if (!listener) return listener.status();
      made->listener = std::move(listener).take();
      *listen_comm = made.release();
      return Status::ok;
    });
  }

  // Collective; waits for the other ranks.
  static abi::ncclResult_t connect(void*, void* handles[], int nranks, int rank, void* listen_comm,
                                   void** coll_comm) {
    if (coll_comm != nullptr) *coll_comm = nullptr;
    return guarded(kNames.connect, [&]() -> Status {
      if (handles == nullptr || listen_comm == nullptr || coll_comm == nullptr)
        return refuse(kNames.connect, "null argument");
      std::vector<std::array<std::uint8_t, kHandleBytes>> all;
      TP_TRY(handles_of_team(kNames.connect, handles, nranks, rank, all));
      Context* context = nullptr;
      TP_TRY(opened(kNames.connect, context));
      const auto transport = Seam::transport(*context);
      if (!transport) return transport.status();
      auto* from = static_cast<ListenComm*>(listen_comm);
      auto comm =
          (*transport)->connect(all, rank, *from->listener, {.comm_id = from->from.comm_id});
      if (!comm) return comm.status();
      *coll_comm = new CollComm{std::move(comm).take(), from->from.nccl, {}};
      return Status::ok;
    });
  }

  // Closing null is allowed, as NCCL may do it for what was never finished.
  static abi::ncclResult_t close_listen(void* listen_comm) {
    return guarded(kNames.close_listen, [&] {
      delete static_cast<ListenComm*>(listen_comm);
      return Status::ok;
    });
  }
  static abi::ncclResult_t close_coll(void* coll_comm) {
    return guarded(kNames.close_coll, [&] {
      delete static_cast<CollComm*>(coll_comm);
      return Status::ok;
    });
  }

  // For createContext; it is its comm's until destroy_context.
  static Result<CommContext*> make_context(void* coll_comm,
                                           const typename Comm::Settings& settings) {
    CollComm& owner = coll_of(coll_comm);
    auto context = owner.comm->create_context(settings);
    if (!context) return context.status();
    std::unique_ptr<CommContext> made(new CommContext{&owner, std::move(context).take(), {}});
    owner.contexts.push_back(made.get());
    return made.release();
  }
  static abi::ncclResult_t destroy_context(void* comm_ctx) {
    return guarded(kNames.destroy_context, [&] {
      const std::unique_ptr<CommContext> context(context_of(comm_ctx));
      if (context != nullptr && context->owner != nullptr)
        std::erase(context->owner->contexts, context.get());
      return Status::ok;
    });
  }

  static abi::ncclResult_t query_last_error(void* comm_ctx, bool* has_error) {
    if (has_error != nullptr) *has_error = false;
    return guarded(kNames.query_last_error, [&]() -> Status {
      if (has_error == nullptr) return refuse(kNames.query_last_error, "no place for the answer");
      if (comm_ctx == nullptr) return Status::ok;
      const auto& context = context_of(comm_ctx)->context;
      *has_error = context == nullptr || context->failed();
      return Status::ok;
    });
  }

  static abi::ncclResult_t dereg_mr_sym(void* coll_comm, void* mhandle) {
    return guarded(kNames.dereg_mr_sym, [&]() -> Status {
      if (coll_comm == nullptr) return refuse(kNames.dereg_mr_sym, "null comm");
      if (mhandle == nullptr) return Status::ok;
      return comm_of(coll_comm).deregister_window(static_cast<typename Comm::Window*>(mhandle));
    });
  }
};

}  // namespace twinpath
