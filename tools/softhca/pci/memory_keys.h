#pragma once
// The guest's memory keys as regions of the software HCA, with the keys that the guest's driver
// computes.  Made by commands, changed by work requests too (UMR): a key that is free, or whose
// pages are not all there, is nobody's.
//
// Threads: any; one lock.
#include <infiniband/verbs.h>

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "plugin/base/owned.h"
#include "plugin/fabric/soft/mlx5/completion.h"
#include "plugin/fabric/verbs.h"
#include "tools/softhca/pci/guest_view.h"
#include "tools/softhca/pci/layouts.h"

namespace twinpath::softhca::pci {

class MemoryKeys {
 public:
  // All outlive it.
  MemoryKeys(const Verbs& verbs, ibv_context* context, const GuestMemory& memory)
      : verbs_(verbs), context_(context), memory_(memory) {}
  ~MemoryKeys() { clear(); }
  MemoryKeys(const MemoryKeys&) = delete;
  MemoryKeys& operator=(const MemoryKeys&) = delete;

  void clear();  // domains, too
  // Null when none can be had.
  ibv_pd* add_domain(std::uint32_t number);
  void remove_domain(std::uint32_t number);
  ibv_pd* domain(std::uint32_t number);  // null: there is none

  // CREATE_MKEY.  `index`: of the key, as the driver is told it.
  mlx5::Refusal add(Bytes in, std::uint32_t& index);
  void remove(std::uint32_t index);
  // A work request's change; `entry`: its bytes behind the first segment.
  mlx5::Syndrome change(std::uint32_t key, Bytes entry);

 private:
  struct Key {
    bool free = false, physical = false;
    unsigned access = 0;
    std::uint32_t domain = 0;
    std::uint64_t start = 0, length = 0;
    std::uint64_t log_page = 0;
    std::uint8_t low = 0;  // byte of the key
    // With flags in the low bits: what may be done there.
    std::vector<std::uint64_t> pages;
    std::unique_ptr<GuestView> view;
    Owned<ibv_mr> region;
  };
  mlx5::Refusal apply(Key& key);
  bool load(Key& key, Bytes list, std::uint64_t from);
  bool read_list(Bytes piece, std::vector<std::uint8_t>& to);

  const Verbs& verbs_;
  ibv_context* const context_;
  const GuestMemory& memory_;
  std::mutex lock_;
  std::map<std::uint32_t, Owned<ibv_pd>> domains_;
  std::map<std::uint32_t, Key> keys_;
};

}  // namespace twinpath::softhca::pci
