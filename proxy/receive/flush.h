#pragma once
// Reads one byte back over PCIe after data was received into GPU memory: a read passes no earlier
// write, so when it returns the GPU sees the data.  One loopback queue pair per rail, made the
// first time that GPU memory is met, and anew when ports were lost, came back or have other
// addresses.  Of several rails those are left out that cannot be used.
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

  // Makes the queues if there are none yet, for the rails of that mask.  Never with the hub's lock
  // held.  `all`: an error where any of them cannot be used, else where none can.
  Status prepare(std::uint32_t wanted, bool all);
  bool ready() const { return queues_ != nullptr; }
  // Whether a read can be posted on that rail.
  bool serves(int rail) const { return ready() && places_[static_cast<std::size_t>(rail)] >= 0; }
  // Whether it serves the rails of that mask, with the addresses that they have.
  bool fits(const std::vector<Rail>& now, std::uint32_t in_use) const;
  // Takes them out of use, to be made anew; to be destroyed without the hub's lock.
  std::unique_ptr<QueueSet> take() { return std::move(queues_); }
  // One read of `address` on that rail, which it serves, completed under WrKind::flush with this
  // slot.  An errno.
  int post(int rail, std::uint64_t address, std::uint32_t rkey, std::uint16_t slot,
           std::uint16_t generation);
  const QueueSet& queues() const { return *queues_; }

 private:
  // Makes queues for these of the rails, and says which of them is to blame if that fails.
  Status make(const std::vector<Rail>& rails, const std::vector<int>& which, std::size_t& failed,
              std::string& why);

  std::shared_ptr<CompletionHub> hub_;
  std::shared_ptr<Devices> devices_;
  std::vector<Rail> rails_;   // changed with both locks
  std::vector<int> places_;   // by rail: its queue; -1: none
  CompletionHub::CommId id_;  // whose completions these are: the receive comm's
  std::mutex making_;
  std::unique_ptr<RegisteredBuffer> sink_;
  std::unique_ptr<QueueSet> queues_;
};

}  // namespace twinpath
