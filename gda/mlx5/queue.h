#pragma once
// One queue that kernels fill and the adapter serves: a completion queue and an RC queue pair over
// places of a QueueMemory.  It serves both directions of a pair of ranks, as QueuePair does.
//
// Threads: made, raised and destroyed by one thread; look() and stop() from any, one at a time.
#include <memory>
#include <string>

#include "gda/mlx5/page.h"
#include "gda/mlx5/path.h"
#include "gda/mlx5/queue_memory.h"

namespace twinpath::gda::mlx5 {

// As the adapter numbers them.
enum class QueueState : std::uint8_t {
  reset = 0,
  init = 1,
  ready_to_receive = 2,
  ready_to_send = 3,
  error = 6,
};

class AdapterQueue {
 public:
  // In state INIT.  All outlive it.  `waits`: a companion, which executes WAIT.  `what` is for
  // messages: "queue to rank 3 (host7)".
  static Result<std::unique_ptr<AdapterQueue>> make(const Adapter& adapter,
                                                    const QueueMemory& memory,
                                                    const DoorbellPage& page, std::size_t queue,
                                                    const QueueSettings& settings, bool waits,
                                                    std::string what);
  AdapterQueue(const AdapterQueue&) = delete;
  AdapterQueue& operator=(const AdapterQueue&) = delete;

  std::uint32_t qpn() const { return qp_.number; }
  std::uint32_t cqn() const { return cq_.number; }
  QueueEnd end() const;

  // To RTR and RTS.  Logs what is wrong.  `here`: the far end is on this host.
  Status raise(const QueueEnd& far, bool here);
  // To itself.
  Status loop() { return raise(end(), true); }

  // As the adapter says.
  Result<QueueState> look() const;
  // To ERR: what stands in the queue is flushed with error completions, nothing more is read from
  // or written to memory here for it.
  Status stop();

 private:
  AdapterQueue(const Adapter& adapter, const QueueSettings& settings, std::string what)
      : adapter_(adapter), settings_(settings), what_(std::move(what)) {}
  Status modify(const Command& command, const char* step, const QueueEnd* far) const;

  const Adapter& adapter_;
  const QueueSettings settings_;
  const std::string what_;
  std::uint32_t psn_ = 0;
  Adapter::Made cq_, qp_;  // the queue pair goes first
};

}  // namespace twinpath::gda::mlx5
