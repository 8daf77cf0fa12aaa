#include "gda/mlx5/bell_ringer.h"

#include <atomic>

#include "gda/abi/wqe.h"

namespace twinpath::gda::mlx5 {
namespace {

// What was stored to memory before is there when the adapter sees a later store to its register:
// order between ordinary memory and a device's, which the language's fences do not promise.
void memory_before_register() {
#if defined(__x86_64__)
  asm volatile("sfence" ::: "memory");
#elif defined(__aarch64__)
  asm volatile("dsb st" ::: "memory");
#else
  std::atomic_thread_fence(std::memory_order_seq_cst);
#endif
}

}  // namespace

bool BellRinger::turn() {
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
    memory_before_register();
    std::atomic_ref<std::uint64_t>(*q.bell).store(adapter_doorbell(count, q.qpn),
                                                  std::memory_order_release);
    rang = true;
  }
  // Registers that gather writes are not used (page.h), yet a core may hold the last store back.
  if (rang) memory_before_register();
  return rang;
}

}  // namespace twinpath::gda::mlx5
