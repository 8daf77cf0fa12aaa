#pragma once
// The half of the function that moves data: the software HCA's own protection domains, memory
// regions and queue pairs, for what the guest has made by commands.  Keys, rights, retries and
// errors are the software HCA's.
//
// Threads: one at a time; work is carried out by a thread of its own (Execution).
#include <infiniband/verbs.h>

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>

#include "plugin/base/owned.h"
#include "plugin/fabric/soft/extended.h"
#include "plugin/fabric/soft/mlx5/execution.h"
#include "plugin/fabric/soft/mlx5/surroundings.h"
#include "plugin/fabric/verbs.h"
#include "tools/softhca/pci/event_queues.h"
#include "tools/softhca/pci/guest_memory.h"
#include "tools/softhca/pci/layouts.h"
#include "tools/softhca/pci/memory_keys.h"
#include "tools/softhca/pci/subnet.h"

namespace twinpath::softhca::pci {

class DataPath {
 public:
  // All outlive it.  `context`: an adapter of the software HCA, opened.  `bar`: BAR 0, with the
  // doorbell pages.
  DataPath(const Verbs& verbs, ibv_context* context, const GuestMemory& memory,
           std::span<std::uint8_t> bar, Subnet& subnet);
  ~DataPath();
  DataPath(const DataPath&) = delete;
  DataPath& operator=(const DataPath&) = delete;

  // Everything that was made is gone; execution() is another.
  void reset();

  bool add_domain(std::uint32_t number);
  void remove_domain(std::uint32_t number) { keys_.remove_domain(number); }
  void add_page(std::uint32_t number);
  void remove_page(std::uint32_t number) { execution_->forget_page(number); }
  MemoryKeys& keys() { return keys_; }
  mlx5::Execution& execution() { return *execution_; }

  // Receives that queue pairs share.  False: the software HCA makes no further.
  bool add_shared_receives(const mlx5::SharedReceivesFacts& facts);
  void remove_shared_receives(std::uint32_t number);
  // An event tells, once, that fewer than so many are left; 0: none does.
  bool set_limit(std::uint32_t number, std::uint32_t limit);
  std::uint32_t limit(std::uint32_t number) const;

  std::uint16_t lid() const;
  std::uint64_t port_guid() const;
  // Another of those that its adapter may have; gives it.
  std::uint16_t change_lid();
  void set_link(bool up);
  void lose(soft::PortLoss what);
  void slow_down(std::uint32_t mbps);  // datagrams are few, and are not

  // What happened to a queue without a command.  None for what is told otherwise.
  struct Told {
    std::optional<Event> event;
    std::uint32_t number = 0;
  };
  std::optional<Told> next_event();

 private:
  void make_execution();
  std::uint32_t number_of(const ibv_srq* srq) const;

  ibv_context* const context_;
  const std::span<std::uint8_t> bar_;
  mlx5::Surroundings around_;
  MemoryKeys keys_;
  Subnet::Port* port_ = nullptr;
  std::map<std::uint32_t, Owned<ibv_srq>> shared_receives_;
  std::unique_ptr<mlx5::Execution> execution_;
};

}  // namespace twinpath::softhca::pci
