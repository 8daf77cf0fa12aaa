#pragma once
// Reads one byte back over PCIe after data was received into GPU memory: a read passes no earlier
// write, so when it returns the GPU sees the data.  One loopback queue pair per rail, made the
// first time that GPU memory is met.
//
// Threads: prepare() from any thread; the rest under the hub's lock.
#include <memory>
#include <mutex>
#include <vector>

#include "proxy/queues/queue_set.h"
#include "proxy/queues/registered_buffer.h"

namespace twinpath {

inline constexpr int kFlushSlots = 64;

class FlushQueues {
 public:
  FlushQueues(std::shared_ptr<CompletionHub> hub, std::shared_ptr<Devices> devices,
              std::vector<Rail> rails, CompletionHub::CommId sink)
      : hub_(std::move(hub)), devices_(std::move(devices)), rails_(std::move(rails)), id_(sink) {}

  // Makes the queues if there are none yet.  Never with the hub's lock held.
  Status prepare();
  bool ready() const { return queues_ != nullptr; }
  // Takes them down, to be made anew.  Without the hub's lock.
  void drop();
  // One read of `address` on that rail, completed under WrKind::flush with this slot.  An errno.
  int post(int rail, std::uint64_t address, std::uint32_t rkey, std::uint16_t slot,
           std::uint16_t generation);
  const QueueSet& queues() const { return *queues_; }

 private:
  std::shared_ptr<CompletionHub> hub_;
  std::shared_ptr<Devices> devices_;
  std::vector<Rail> rails_;
  CompletionHub::CommId id_;  // whose completions these are: the receive comm's
  std::mutex making_;
  std::unique_ptr<RegisteredBuffer> sink_;
  std::unique_ptr<QueueSet> queues_;
};

}  // namespace twinpath
