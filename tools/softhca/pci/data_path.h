#pragma once
// The half of the function that moves data: the software HCA's own protection domains, memory
// regions and queue pairs, for what the guest has made by commands.  Keys, rights, retries and
// errors are the software HCA's; a region has the key that the guest's driver computes.
//
// Threads: one at a time; work is carried out by a thread of its own (Execution).
#include <infiniband/verbs.h>

#include <cstdint>
#include <map>
#include <memory>
#include <span>

#include "plugin/base/owned.h"
#include "plugin/fabric/soft/mlx5/execution.h"
#include "plugin/fabric/soft/mlx5/surroundings.h"
#include "plugin/fabric/verbs.h"
#include "tools/softhca/pci/guest_memory.h"
#include "tools/softhca/pci/guest_view.h"
#include "tools/softhca/pci/layouts.h"

namespace twinpath::softhca::pci {

class DataPath {
 public:
  // All outlive it.  `context`: an adapter of the software HCA, opened.  `bar`: BAR 0, with the
  // doorbell pages.
  DataPath(const Verbs& verbs, ibv_context* context, const GuestMemory& memory,
           std::span<std::uint8_t> bar);
  ~DataPath();
  DataPath(const DataPath&) = delete;
  DataPath& operator=(const DataPath&) = delete;

  mlx5::Queues& queues() { return *execution_; }
  // Everything that was made is gone; queues() is another.
  void reset();

  bool add_domain(std::uint32_t number);
  void remove_domain(std::uint32_t number);
  void add_page(std::uint32_t number);
  void remove_page(std::uint32_t number) { execution_->forget_page(number); }
  // CREATE_MKEY.  `index`: of the key, as the driver is told it.
  mlx5::Refusal add_key(Bytes in, std::uint32_t& index);
  void remove_key(std::uint32_t index);

  std::uint16_t lid() const;
  std::uint64_t port_guid() const;
  void set_link(bool up);

 private:
  struct Key {
    std::unique_ptr<GuestView> view;
    Owned<ibv_mr> region;
  };
  void make_execution();

  ibv_context* const context_;
  const GuestMemory& memory_;
  const std::span<std::uint8_t> bar_;
  mlx5::Surroundings around_;
  std::map<std::uint32_t, Owned<ibv_pd>> domains_;
  std::map<std::uint32_t, Key> keys_;
  std::unique_ptr<mlx5::Execution> execution_;
};

}  // namespace twinpath::softhca::pci
