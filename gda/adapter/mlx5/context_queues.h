#pragma once
// The queues of one context on an adapter: a main queue to each peer, for counters a companion
// beside it, which waits for the main's completions and adds in this rank's own memory; one
// doorbell page and one block of memory for all of them.
//
// Queues are numbered as in context_memory.h: mains first, then companions.  Companions, and the
// mains to oneself, are joined to a queue pair of their own that answers them.
//
// Threads: made, raised and destroyed by one thread; look() and stop() from any, one at a time.
#include <memory>
#include <string>
#include <vector>

#include "gda/adapter/mlx5/gpu_doorbell.h"
#include "gda/adapter/mlx5/queue.h"

namespace twinpath::gda::mlx5 {

struct ContextQueuesSetup {
  int gpu = -1;  // CUDA ordinal; -1: a CPU thread plays the GPU
  unsigned log_depth = 8;
  bool collapsed = false;          // completion queues of one entry; NCCL's kernels want none
  bool companions = false;         // for counters
  bool rung_by_cpu = false;        // wanted so; else only where the GPU cannot ring
  bool rung_by_gpu = false;        // or nobody
  bool real_page = true;           // doorbell pages are a device's registers, not memory
  QueueSettings settings;          // of paths
  std::vector<std::string> peers;  // by main queue: "rank 3 (host7)"; empty: not spoken to
  std::function<int(const DeviceBlock& block)> exporter;  // QueueWish::exporter
};

// Of one queue, as device structures carry it (abi.h): addresses as kernels see them.
struct QueueView {
  std::uint64_t sq = 0, cqes = 0;
  std::uint64_t record = 0;        // of the send counter; rung by a CPU: as that sees it
  void* bell = nullptr;            // the adapter's register, as this process sees it
  std::uint64_t gpu_doorbell = 0;  // as kernels see it; 0: they do not
  std::uint32_t qpn = 0, cqn = 0;
};

class ContextQueues {
 public:
  // Refuses by name what the adapter lacks.  The adapter outlives it.  Logs what is wrong.
  static Result<std::unique_ptr<ContextQueues>> make(const Adapter& adapter,
                                                     const ContextQueuesSetup& setup);

  std::size_t mains() const { return setup_.peers.size(); }
  std::size_t queues() const { return setup_.companions ? 2 * mains() : mains(); }
  bool used(std::size_t queue) const { return queues_[queue] != nullptr; }
  QueueEnd end(std::size_t main) const { return queues_[main]->end(); }
  QueueView view(std::size_t queue) const;

  // Joins a main queue with the peer's, and its companion within this adapter.  `far`: null for the
  // queue to oneself.
  Status raise(std::size_t main, const QueueEnd* far, bool here);

  // Of a queue that is used.
  Result<QueueState> look(std::size_t queue) const { return queues_[queue]->look(); }
  // Ends one main queue and its companion, whose waits would not end by themselves.
  Status stop(std::size_t main);

  // Kernels raise counts (DoorbellRinger); because of what, empty if it was wanted so.
  bool rung_by_cpu() const { return setup_.rung_by_cpu; }
  const std::string& why_by_cpu() const { return why_by_cpu_; }

  const QueueMemory& memory() const { return *memory_; }

  // Ends the queues; nothing of the adapter reads or writes memory for them any more.  What kernels
  // may still store to lives on in the result: giving that back waits for kernels, and must come
  // before the adapter's end.
  static std::shared_ptr<void> end(std::unique_ptr<ContextQueues> queues);

 private:
  explicit ContextQueues(const ContextQueuesSetup& setup) : setup_(setup) {}
  Status try_gpu_doorbell(const Adapter& adapter);
  Status make_queues(const Adapter& adapter);

  ContextQueuesSetup setup_;
  std::string why_by_cpu_;
  // An adapter wants them destroyed in this order's reverse: queues, page, memory.
  std::unique_ptr<QueueMemory> memory_;
  std::unique_ptr<DoorbellPage> page_;
  std::unique_ptr<GpuDoorbell> gpu_doorbell_;  // null: none, or a CPU thread plays the GPU
  std::vector<std::unique_ptr<AdapterQueue>> queues_;
};

}  // namespace twinpath::gda::mlx5
