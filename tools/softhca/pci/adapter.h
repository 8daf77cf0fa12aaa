#pragma once
// One PCI function behind one device ivshmem-doorbell: its BAR, its interrupts, and what is behind
// its registers.
//
// Threads: one at a time.
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "plugin/base/shared_memory.h"
#include "plugin/base/status.h"
#include "tools/softhca/pci/command_queue.h"
#include "tools/softhca/pci/event_queues.h"
#include "tools/softhca/pci/function.h"
#include "tools/softhca/pci/ivshmem.h"
#include "tools/softhca/pci/trace.h"

namespace twinpath::softhca::pci {

class Adapter {
 public:
  static constexpr std::size_t kBarBytes = std::size_t{32} << 20;
  static constexpr std::uint32_t kPageBytes = 4096;
  static constexpr unsigned kVectors = 8;

  // `memory` and `trace` outlive it.
  static Result<std::unique_ptr<Adapter>> create(unsigned number, const std::string& socket,
                                                 const GuestMemory& memory, Trace& trace);
  // Once the memory is there: an adapter of the software HCA, opened, carries the work.  `subnet`
  // outlives it.
  void start(const Verbs& verbs, ibv_context* context, Subnet& subnet);
  // From the next time on that a driver takes it.
  void offer(const Offers& offers) { function_->offer(offers); }
  const Offers& offers() const { return function_->offers(); }

  bool accept() { return ivshmem_.accept(); }
  bool gone() const { return ivshmem_.gone(); }
  // One look at everything; true when there was something to do.
  bool turn(std::int64_t now);
  void set_link(bool up);
  void change_lid();
  // Faults that nobody is told of.
  void lose(soft::PortLoss what);
  void slow_down(std::uint32_t mbps);
  // As an adapter does whose firmware has ended: what it had is gone, and nothing completes.
  void fail(std::int64_t now);
  std::uint64_t rings_lost() const { return commands_.rings_lost(); }

 private:
  Adapter(unsigned number, SharedMemory bar, Ivshmem ivshmem, const GuestMemory& memory,
          Trace& trace);
  void run(unsigned number, const Slot& slot);

  const unsigned number_;
  const GuestMemory& memory_;
  SharedMemory bar_;
  Ivshmem ivshmem_;
  Trace& trace_;
  CommandQueue commands_;
  EventQueues events_;
  std::unique_ptr<DataPath> data_;
  std::unique_ptr<Function> function_;
};

}  // namespace twinpath::softhca::pci
