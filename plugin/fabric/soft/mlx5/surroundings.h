#pragma once
// What the model needs of where it runs: the software HCA's own calls, either in the plugin or
// below the facades of libibverbs and libmlx5.
#include <infiniband/verbs.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "plugin/fabric/soft/address.h"
#include "plugin/fabric/soft/masked_atomic.h"
#include "plugin/fabric/soft/mlx5/datagram.h"
#include "plugin/fabric/soft/mlx5/variant.h"
#include "plugin/fabric/verbs.h"
#include "plugin/gpu/dmabuf.h"

namespace twinpath::soft::mlx5 {

struct Surroundings {
  Verbs verbs;  // those that made the contexts
  // What kind of adapter an opened one is; null: one of the defaults.
  Variant (*variant_of)(ibv_context* context) = nullptr;
  std::uint32_t (*pd_number)(ibv_pd* pd) = nullptr;
  AddressHandle* (*address_of)(ibv_ah* handle) = nullptr;
  int (*post_masked_atomic)(ibv_qp* qp, const MaskedAtomic& atomic) = nullptr;
  // Reads memory of the adapter's own (gpu_words.h: push_by_reading); null: there is nothing that
  // it pushes.
  int (*push_by_reading)(ibv_pd* pd, std::uint64_t address, std::uint32_t bytes,
                         std::uint32_t lkey) = nullptr;
  // Memory that is not the host's; null: there is none.  False: no such memory.  The last `after`
  // bytes become visible after the others.
  bool (*read_elsewhere)(std::uint64_t address, void* to, std::size_t bytes) = nullptr;
  bool (*write_elsewhere)(std::uint64_t address, const void* from, std::size_t bytes,
                          std::size_t after) = nullptr;
  // The memory that a dma-buf is of; null: dma-bufs are not taken.  False: not one of ours.
  bool (*find_dmabuf)(int fd, gpu::DmabufMemory& out) = nullptr;
  // An errno value why memory of queues could not be pinned by its address, or 0; null: all could.
  int (*pin)(ibv_context* context, std::uint64_t address, std::size_t bytes,
             unsigned access) = nullptr;
  // Memory of queues, while it is registered; null: nothing is needed for it.
  std::shared_ptr<void> (*hold_memory)(std::uint64_t address, std::size_t bytes) = nullptr;
  // Kept with a doorbell register, and let go before its page; null: nothing is.
  std::shared_ptr<void> (*adorn_register)(void* doorbell) = nullptr;
  // Changes a key as a work request of the kernel's asks (UMR), whose bytes behind its first
  // segment these are; null: no keys are changed.
  std::function<Syndrome(std::uint32_t key, std::span<const std::uint8_t> entry)> change_key;
  // Datagrams, by keys of the software HCA (extended.h); null: there are none.
  DatagramPort* datagrams = nullptr;
  bool (*read_region)(ibv_pd* pd, std::uint64_t address, std::uint32_t lkey, void* to,
                      std::size_t bytes) = nullptr;
  // The next of receives that queue pairs share, for a datagram; null: datagrams take none of
  // these.
  bool (*take_receive)(ibv_srq* srq, std::uint64_t& id, std::vector<ibv_sge>& pieces) = nullptr;
  bool (*write_region)(ibv_pd* pd, std::uint64_t address, std::uint32_t lkey, const void* from,
                       std::size_t bytes) = nullptr;
  // The device's clock, which completions tell; null: they tell 0.
  std::uint64_t (*clock)() = nullptr;
  // A line for the user, of an entry that is not carried out.
  void (*say)(const char* line) = nullptr;
};

}  // namespace twinpath::soft::mlx5
