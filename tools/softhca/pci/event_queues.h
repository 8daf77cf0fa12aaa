#pragma once
// Event queues: rings in the guest's memory that the device writes and whose interrupt it raises.
//
// Threads: any; one lock.
#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <span>
#include <vector>

#include "plugin/fabric/soft/mlx5/refusal.h"
#include "tools/softhca/pci/guest_memory.h"
#include "tools/softhca/pci/layouts.h"

namespace twinpath::softhca::pci {

// As the device numbers them.
enum class Event : std::uint8_t {
  completion = 0x00,
  established = 0x02,
  drained = 0x03,
  completions_lost = 0x04,
  broken = 0x05,
  port_change = 0x09,
  command = 0x0a,
  page_request = 0x0b,
  invalid_request = 0x10,
  access_violated = 0x11,
  last_receive = 0x13,
  shared_limit = 0x14,
};
enum class PortChange : std::uint8_t { down = 1, active = 4, lid = 6 };

class EventQueues {
 public:
  using Interrupt = std::function<void(unsigned vector)>;
  EventQueues(const GuestMemory& memory, unsigned vectors, Interrupt interrupt)
      : memory_(memory), vectors_(vectors), interrupt_(std::move(interrupt)) {}

  // CREATE_EQ, checked and made as number `eqn`.
  mlx5::Refusal make(std::uint32_t eqn, Bytes in);
  void destroy(std::uint32_t eqn);
  void clear();

  // Whether a queue takes such events.
  bool takes(Event event) const;
  // To each queue that takes them; false when none does.
  bool tell(Event event, std::uint8_t kind, std::span<const std::uint8_t> data);
  // Of a queue pair, or a shared receive queue.
  void tell_of_queue(Event event, std::uint32_t number);
  // Of a completion queue that has overflowed.
  void tell_of_overflow(std::uint32_t cqn);
  // To one queue: a completion of queue `cqn`.
  void tell_completion(std::uint32_t eqn, std::uint32_t cqn);

 private:
  struct Queue {
    std::uint64_t page_bytes = 0;
    std::vector<std::uint8_t*> pages;
    std::uint64_t mask = 0;  // of event types
    std::uint64_t written = 0;
    unsigned log_entries = 0;
    unsigned vector = 0;
  };
  void write(Queue& queue, Event event, std::uint8_t kind, std::span<const std::uint8_t> data);

  const GuestMemory& memory_;
  const unsigned vectors_;
  const Interrupt interrupt_;
  mutable std::mutex lock_;
  std::map<std::uint32_t, Queue> queues_;
};

}  // namespace twinpath::softhca::pci
