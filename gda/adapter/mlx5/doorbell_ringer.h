#pragma once
// Rings an adapter for kernels that cannot reach its doorbell register (mode gda-cpu): they raise a
// count in pinned memory, as for a queue that a thread serves (NicHandler::cpu_proxy), and whoever
// calls turn() writes the doorbell record and the register.  That is all that a CPU does; the
// adapter fetches and executes.
//
// Records lie in host memory then (ContextQueuesSetup::rung_by_cpu).
//
// Threads: turn() from one thread, an engine's mostly; it allocates nothing, waits for nothing.
#include <cstdint>
#include <vector>

namespace twinpath::gda::mlx5 {

class DoorbellRinger {
 public:
  struct Queue {
    std::uint64_t* word = nullptr;    // raised by kernels: entries written so far
    std::uint32_t* record = nullptr;  // QueueView::record
    std::uint64_t* bell = nullptr;    // QueueView::bell
    std::uint32_t qpn = 0;
    std::uint64_t rung = 0;  // entries that the adapter was told of
  };
  // All outlive it.
  explicit DoorbellRinger(std::vector<Queue> queues) : queues_(std::move(queues)) {}

  // Rings every queue whose count has risen; true when there was one.
  bool turn();

  const std::vector<Queue>& queues() const { return queues_; }

 private:
  std::vector<Queue> queues_;
};

}  // namespace twinpath::gda::mlx5
