#pragma once
// SEAM of one-sided transfers by the host: what plugin/nccl offers to NCCL as its RMA plugin.
// Nothing here knows NCCL's types.  The rules that a caller may rely on are in README.md.
// What it shares with GIN, and which calls are collective, is in gda/one_sided.h.
//
// Threads: setup calls of one comm one at a time; put, get, flush, progress and test of one context
// one at a time, beside those of other contexts and beside setup calls; failed from any.
#include <cstdint>

#include "gda/one_sided.h"

namespace twinpath::gda {

class RmaWindow {
 public:
  virtual ~RmaWindow() = default;
};

// A place in a window; which rank's memory it is says the call.
struct RmaPlace {
  RmaWindow* window = nullptr;
  std::uint64_t offset = 0;
};
// The 8-byte word there grows by `add`.
struct RmaSignal {
  RmaPlace at;
  std::uint64_t add = 1;
};
struct RmaTransfer {
  RmaPlace local, remote;  // no windows where `bytes` is 0
  std::uint64_t bytes = 0;
};

class RmaRequest {
 public:
  // Once `done`, the request is gone.  After an error it stays till its context ends, and says so
  // again.
  virtual Status test(bool& done) = 0;

 protected:
  ~RmaRequest() = default;
};

struct RmaSettings {
  int contexts = 1;
  int traffic_class = -1;
  int rank_stride = 1;  // only ranks at this stride from the own one are spoken to
};

class RmaContext {
 public:
  // Never waits for a peer.
  virtual ~RmaContext() = default;
  // `context` is one of RmaSettings::contexts.  A signal comes behind the data, and behind all that
  // was put to that rank before.
  virtual Result<RmaRequest*> put(int context, int rank, const RmaTransfer& transfer,
                                  const RmaSignal* signal) = 0;
  virtual Result<RmaRequest*> get(int context, int rank, const RmaTransfer& transfer) = 0;
  // Null: there is nothing to wait for.
  virtual Result<RmaRequest*> flush(int context, int rank) = 0;
  virtual Status progress() = 0;
  virtual bool failed() const = 0;
};

class RmaComm : public OneSidedComm<RmaWindow, RmaContext, RmaSettings> {
 public:
  // Whether any signal that is seen here, of whatever peer and queue, makes visible all that was
  // put here before by puts that have completed.
  virtual bool any_signal_shows_all() const = 0;
};

class RmaTransport : public OneSidedTransport<RmaComm> {
 public:
  // Whether all devices reach the memory of GPUs, or the program has none.
  virtual bool reaches_gpus() const = 0;
};

}  // namespace twinpath::gda
