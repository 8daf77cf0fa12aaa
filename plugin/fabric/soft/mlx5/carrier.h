#pragma once
// The queue pair of the software HCA inside a queue pair that was made by commands: it has its
// number, and carries its work, so that keys, rights, retries and copies are the software HCA's one
// way.
//
// Threads: one at a time.  Errors: errno values.
#include <infiniband/verbs.h>

#include <cstdint>
#include <span>

#include "plugin/fabric/soft/mlx5/queues.h"
#include "plugin/fabric/soft/mlx5/surroundings.h"
#include "plugin/fabric/soft/mlx5/work.h"
#include "plugin/fabric/verbs.h"

namespace twinpath::soft::mlx5 {

class Carrier {
 public:
  // `srq`: null for receives of its own; `shared_receives`: those of it that may complete before
  // they are polled.  number() is 0 when there is none to be had.
  Carrier(const Surroundings& around, ibv_pd* pd, ibv_srq* srq, std::uint32_t shared_receives,
          const QueuePairFacts& facts);
  ~Carrier();
  Carrier(const Carrier&) = delete;
  Carrier& operator=(const Carrier&) = delete;

  std::uint32_t number() const { return qp_ == nullptr ? 0 : qp_->qp_num; }
  bool in_error() const;
  // `context`: as in a command (layout.h).
  int change(State to, std::span<const std::uint8_t> context);
  // ENOMEM while the queue is full; EOPNOTSUPP for what verbs have no request for; EMSGSIZE for a
  // message too long and for an atomic without room for what was there; EBADMSG for one that the
  // peer will refuse, as its address is not aligned.
  int post(const Work& work, std::uint64_t id);
  int post_receive(std::span<const Piece> pieces, std::uint64_t id);
  // The next completion of a send (id as given) or of a receive (id with kReceive).
  bool poll(ibv_wc& wc) { return cq_ != nullptr && ibv_poll_cq(cq_, 1, &wc) == 1; }

  static constexpr std::uint64_t kReceive = std::uint64_t{1} << 63;

 private:
  int post_masked(const Work& work, std::uint64_t id);

  const Surroundings& around_;
  ibv_cq* cq_ = nullptr;
  ibv_qp* qp_ = nullptr;
};

}  // namespace twinpath::soft::mlx5
