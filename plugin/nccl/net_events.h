#pragma once
// Events of our transport in whatever profiler NCCL runs: one for each rail that carries a send,
// and for each buffer of a receive, below NCCL's own event of the step that the message is.
//
// Who asks for them.  NCCL gives init a callback, and each isend and irecv a handle; the callback
// makes no event unless NCCL has a profiler that wants networks' events for this operation.  From
// NCCL 2.28 on, and so only from the v11 tables: what 2.27 puts into the handle is null in places
// that its callback reads.  Where the profiler is our own (profiler_tables.cc) nobody asks, and a
// message costs one comparison.
//
// From when to when.  An event starts when isend or irecv has accepted the message, which mostly
// has been posted by then, and ends in the first test after its part has arrived, in that which
// says done or an error at the latest.  Those of a comm that is closed before stay open: whose
// events they are below may have gone.
//
// Threads: as isend, irecv and test; the callback is called without a lock of ours.
#include <array>
#include <cstdint>
#include <memory>
#include <span>

#include "plugin/nccl/abi/types.h"
#include "plugin/transport.h"

namespace twinpath {

// What a listener keeps for the connections that it accepts.
struct EventSource final : Companion {
  explicit EventSource(abi::ncclProfilerCallback_t c) : callback(c) {}
  const abi::ncclProfilerCallback_t callback;
};

class NetEvents final : public Companion {
 public:
  // Which way messages of the comm go: what their events say of it.
  enum class Direction { send, receive };
  NetEvents(abi::ncclProfilerCallback_t callback, Direction direction)
      : callback_(callback), direction_(direction) {}

  // A connection's own, if anybody could want its events; `callback` may be null.
  static void attach(Comm& comm, abi::ncclProfilerCallback_t callback, Direction direction);

  // Starts the events of an operation.  `handles`: NCCL's, one a buffer; any may be null.  The
  // request to give NCCL: another one where there are events.
  Request* watch(Request* request, std::span<void* const> handles);

 private:
  using Handles = std::array<void*, kMaxParts>;
  // Stands before the transport's own request: NCCL's tests go through it.
  class Watched final : public Request {
   public:
    Status test(int& done, int* sizes) override;

   private:
    friend class NetEvents;
    Request* inner_ = nullptr;
    NetEvents* events_ = nullptr;
    Watched* next_free_ = nullptr;
    Handles handles_{};
    int count_ = 0;  // of parts
  };
  // As many as may be under way.
  static constexpr std::size_t kMost = std::size_t{kMaxRequests} * kMaxRecvs;

  Watched* take();
  // Those in `which`, a bit each, that are open.
  void stop(Handles& handles, std::uint32_t which);

  const abi::ncclProfilerCallback_t callback_;
  const Direction direction_;
  // Made for the first event.
  std::unique_ptr<std::array<Watched, kMost>> all_;
  Watched* free_ = nullptr;
};

}  // namespace twinpath
