#include "gda/adapter/mlx5/doorbell_ringer.h"

#include <atomic>

#include "gda/abi/wqe.h"
#include "plugin/base/device_fence.h"

namespace twinpath::gda::mlx5 {
bool DoorbellRinger::turn() {
  bool rang = false;
  for (Queue& q : queues_) {
    // Acquire: the kernel raised the count after it had written the entries.
    const std::uint64_t count =
        std::atomic_ref<std::uint64_t>(*q.word).load(std::memory_order_acquire);
    if (count <= q.rung) continue;
    q.rung = count;
    // Release: an adapter that is software sees the entries, too, when it sees the record; and it
    // finds the record when a later bell of another queue has hidden ours.
    std::atomic_ref<std::uint32_t>(*q.record).store(doorbell_record(count),
                                                    std::memory_order_release);
    device_store_fence();
    std::atomic_ref<std::uint64_t>(*q.bell).store(adapter_doorbell(count, q.qpn),
                                                  std::memory_order_release);
    rang = true;
  }
  // Registers that gather writes are not used (page.h), yet a core may hold the last store back.
  if (rang) device_store_fence();
  return rang;
}

}  // namespace twinpath::gda::mlx5
