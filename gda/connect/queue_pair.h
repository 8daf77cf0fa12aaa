#pragma once
// One RC queue pair of the fabric behind a kernel's queue: only RDMA; receives only for
// signals without atomics.  It serves both directions of a pair of ranks: this rank posts on its
// end, the peer on the other.
//
// Threads: made, raised and destroyed by one thread; the engine's thread posts.
#include <cstdint>
#include <memory>
#include <string>

#include "plugin/base/owned.h"
#include "plugin/base/status.h"
#include "plugin/base/wire.h"
#include "plugin/rdma/path.h"

namespace twinpath::gda {

// What the far end must know of this one.
struct QueueEnd {
  HelloRail rail;
  QueueAddress queue;
  std::uint8_t reads_in = 1;  // READs and atomics that may be under way towards it
};
void encode_end(const QueueEnd& end, Writer& out);
// The Reader's ok() tells whether it was whole.
QueueEnd decode_end(Reader& in);

// What the adapter can do, asked once.
struct AdapterLimits {
  bool atomics = false;
  bool atomics_global = false;  // with CPUs', too (IBV_ATOMIC_GLOB)
  std::uint8_t reads_in = 1, reads_out = 1;
  int max_work_requests = 1;
  int max_cqes = 1;
};
Result<AdapterLimits> adapter_limits(const Verbs& verbs, const Rail& rail);

class QueuePair {
 public:
  // In state INIT.  `settings` gives depth, inline bytes and path attributes.
  static Result<std::unique_ptr<QueuePair>> make(const Verbs& verbs, const Rail& rail, ibv_cq* cq,
                                                 const QueueSettings& settings,
                                                 const AdapterLimits& limits);
  ~QueuePair();
  QueuePair(const QueuePair&) = delete;
  QueuePair& operator=(const QueuePair&) = delete;

  QueueEnd end() const;
  // To RTR and RTS.  Logs what is wrong; `peer` names the far end, `here` is whether it is on this
  // host.
  Status raise(const QueueEnd& far, const std::string& peer, bool here);
  // Nothing more is read from or written to memory here for what was posted, there or here.  False:
  // the adapter has not confirmed that.
  bool stop();

  ibv_qp* qp() const { return qp_.get(); }
  // The port with the addresses that it was made with.
  const Rail& rail() const { return rail_; }
  std::uint32_t inline_bytes() const { return inline_bytes_; }

 private:
  QueuePair(const Verbs& verbs, const Rail& rail, const QueueSettings& settings,
            const AdapterLimits& limits)
      : verbs_(verbs), rail_(rail), settings_(settings), limits_(limits) {}
  int to_rtr(const QueueEnd& far);
  int to_rts(const QueueEnd& far);

  const Verbs& verbs_;
  const Rail rail_;
  const QueueSettings settings_;
  const AdapterLimits limits_;
  Owned<ibv_qp> qp_;
  std::uint32_t psn_ = 0;
  std::uint32_t inline_bytes_ = 0;
};

}  // namespace twinpath::gda
