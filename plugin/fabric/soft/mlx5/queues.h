#pragma once
// Who carries out what stands in queues, as the device model sees him: he is told of each queue
// that is made, changed and destroyed.
//
// Threads: the device calls with its lock held; it must not be called back.
#include <cstdint>
#include <functional>
#include <span>

namespace twinpath::soft::mlx5 {

// States of a queue pair as the device numbers them.
enum class State : std::uint8_t {
  reset = 0,
  init = 1,
  ready_to_receive = 2,
  ready_to_send = 3,
  error = 6
};

// Addresses are of memory that the device may reach.
struct CompletionQueueFacts {
  std::uint32_t number = 0;
  std::uint64_t address = 0;
  std::uint64_t record = 0;  // 8 bytes: consumer index, arming
  unsigned log_entries = 0;
  unsigned entry_bytes = 64;
  bool collapsed = false;        // every completion goes to the first entry
  bool ignores_overrun = false;  // nobody tells a consumer index
  std::uint32_t uar = 0;         // where it is armed
  // Called when a completion comes, or is there, and the queue was armed; null: nobody waits.
  std::function<void(std::uint32_t cqn)> notify{};
  // Called once, when a completion has no place: the queue and its queue pairs have ended.  Null:
  // completions are held back until there is one.
  std::function<void(std::uint32_t cqn)> overflowed{};
};

// As the device numbers the services of queue pairs (st).
enum class Service : std::uint8_t {
  reliable = 0,  // RC
  dynamic = 5,   // DCI, whose work has its destination in each entry
  // The kernel's own.
  datagram = 2,          // UD
  management = 7,        // QP0
  general_services = 8,  // QP1
  key_changes = 12,      // UMR
};

constexpr bool is_datagram(Service service) {
  return service == Service::datagram || service == Service::management ||
         service == Service::general_services;
}

struct QueuePairFacts {
  Service service = Service::reliable;
  std::uint32_t pd = 0;
  std::uint32_t uar = 0;
  std::uint32_t send_cq = 0, receive_cq = 0;  // 0: none
  std::uint64_t receives = 0, sends = 0;      // where the queues begin
  std::uint64_t record = 0;                   // 8 bytes: receive counter, send counter
  std::uint64_t receive_entries = 0;          // 0: none
  std::uint64_t receive_bytes = 0;            // of an entry
  std::uint64_t send_blocks = 0;              // 0: none
  std::uint32_t user_index = 0;
  std::uint32_t srq = 0;
};

// Receives that queue pairs share, as entries in memory each of which names the next.
struct SharedReceivesFacts {
  std::uint32_t number = 0;
  std::uint32_t pd = 0;
  std::uint64_t receives = 0;  // where the entries lie
  std::uint64_t record = 0;    // 4 bytes: how many were given
  std::uint32_t entries = 0;
  std::uint32_t entry_bytes = 0;
};

class Queues {
 public:
  virtual ~Queues() = default;
  virtual void make(const CompletionQueueFacts& cq) = 0;
  // `to`: another memory, and its size; the last entry in the old one says so.  False: what waits
  // has no room there, and nothing is changed.
  virtual bool resize(const CompletionQueueFacts& to) = 0;
  // The number of the new queue pair, or 0 when it cannot be had.
  virtual std::uint32_t make(const QueuePairFacts& qp) = 0;
  // `context`: as in a command (layout.h), after the transition.  False: it cannot be done.
  virtual bool change(std::uint32_t qpn, State to, std::span<const std::uint8_t> context) = 0;
  // Whether an error of its work has ended it.
  virtual bool failed(std::uint32_t qpn) = 0;
  virtual void destroy_cq(std::uint32_t number) = 0;
  virtual void destroy_qp(std::uint32_t number) = 0;
};

}  // namespace twinpath::soft::mlx5
