// CUDA allocations of this process that are registered: one id each while any MR uses it.
#include <vector>

#include "plugin/fabric/soft/hca.h"
#include "plugin/fabric/soft/slow_step.h"

namespace twinpath::soft {

std::uint64_t Hca::acquire_allocation(const PointerInfo& info) {
  std::lock_guard hold(allocations_lock_);
  for (auto& [id, a] : allocations_) {
    if (a.info.alloc_base == info.alloc_base && a.info.alloc_bytes == info.alloc_bytes) {
      ++a.users;
      return id;
    }
  }
  std::uint64_t id = next_allocation_++;
  allocations_[id] = {info, 1, nullptr, false};
  return id;
}

void Hca::release_allocation(std::uint64_t alloc_id) {
  std::shared_ptr<ImportedAllocation> drop;
  {
    std::lock_guard hold(allocations_lock_);
    auto it = allocations_.find(alloc_id);
    if (it == allocations_.end() || --it->second.users != 0) return;
    drop = std::move(it->second.mapping);
    allocations_.erase(it);
  }
  Message m{};
  m.kind = MessageKind::gone;
  m.slot = slot_;
  m.a = alloc_id;
  std::vector<std::shared_ptr<Peer>> tell;
  {
    std::lock_guard hold(lock_);
    for (auto& [slot, peer] : peers_) tell.push_back(peer);
  }
  for (auto& peer : tell) {
    if (!peer->dead.load()) (void)peer->wire.send(m);
  }
}

std::shared_ptr<ImportedAllocation> Hca::own_allocation(std::uint64_t alloc_id, bool& failed) {
  std::lock_guard hold(allocations_lock_);
  auto it = allocations_.find(alloc_id);
  if (it == allocations_.end() || it->second.failed) {
    failed = true;
    return nullptr;
  }
  OwnAllocation& a = it->second;
  if (!a.mapping) {
    SlowStep slow("mapping GPU memory for this process");
    auto made = import_local(a.info);
    if (!made) {
      a.failed = failed = true;
      return nullptr;
    }
    a.mapping = std::move(made).take();
  }
  return a.mapping;
}

}  // namespace twinpath::soft
