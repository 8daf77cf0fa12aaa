#pragma once
// One queue that kernels fill and the adapter serves: a completion queue and an RC queue pair over
// places of a QueueMemory.  It serves both directions of a pair of ranks, as QueuePair does.
//
// Threads: made, raised and destroyed by one thread; look() and stop() from any, one at a time.
#include <memory>
#include <string>

#include "gda/adapter/mlx5/page.h"
#include "gda/adapter/mlx5/path.h"
#include "gda/adapter/mlx5/queue_memory.h"

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
  // In state INIT.  All outlive it, and stay where they are.  `waits`: a companion, which executes
  // WAIT.  `what` is for messages: "queue to rank 3 (host7)".
  static Result<std::unique_ptr<AdapterQueue>> make(const Adapter& adapter,
                                                    const QueueMemory& memory,
                                                    const DoorbellPage& page, std::size_t queue,
                                                    const QueueSettings& settings, bool waits,
                                                    std::string what);
  AdapterQueue(const AdapterQueue&) = delete;
  AdapterQueue& operator=(const AdapterQueue&) = delete;

  std::uint32_t qpn() const { return own_.qp.number; }
  std::uint32_t cqn() const { return cq_.number; }
  QueueEnd end() const { return told(own_); }

  // To RTR and RTS.  Logs what is wrong.  `here`: the far end is on this host.
  Status raise(const QueueEnd& far, bool here) { return raise(own_, far, here); }
  // To a queue pair that answers it and does nothing else, made here: what an adapter does with one
  // that is joined to itself is known for READs only (NCCL's flush), not for atomics behind a WAIT,
  // and NCCL's own transport joins none so.
  Status loop();

  // As the adapter says.
  Result<QueueState> look() const;
  // To ERR: what stands in the queue is flushed with error completions, nothing more is read from
  // or written to memory here for it.
  Status stop();

 private:
  // A queue pair of this queue, and the number of its first packet.
  struct End {
    Adapter::Made qp;
    std::uint32_t psn = 0;
  };
  AdapterQueue(const Adapter& adapter, const QueueMemory& memory, const DoorbellPage& page,
               std::size_t queue, const QueueSettings& settings, std::string what)
      : adapter_(adapter),
        memory_(memory),
        page_(page),
        queue_(queue),
        settings_(settings),
        what_(std::move(what)) {}
  Result<Adapter::Made> make_cq() const;
  // In state INIT.
  Result<End> make_end(std::uint64_t record, bool waits, const std::string& what) const;
  QueueEnd told(const End& end) const;
  Status raise(const End& end, const QueueEnd& far, bool here) const;
  Status modify(const End& end, const Command& command, const char* step,
                const QueueEnd* far) const;

  const Adapter& adapter_;
  const QueueMemory& memory_;
  const DoorbellPage& page_;
  const std::size_t queue_;
  const QueueSettings settings_;
  const std::string what_;
  Adapter::Made cq_;  // queue pairs go first
  End own_, answering_;
};

}  // namespace twinpath::gda::mlx5
