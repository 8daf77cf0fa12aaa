// CUDA allocations of this process that are registered: one id each while any MR uses it.
#include <vector>

#include "plugin/fabric/soft/hca.h"
#include "plugin/fabric/soft/slow_step.h"

namespace twinpath::soft {

std::uint64_t Hca::known_allocation(const PointerInfo& info) {
  for (auto& [id, a] : allocations_) {
    if (a.info.alloc_base == info.alloc_base && a.info.alloc_bytes == info.alloc_bytes) {
      ++a.users;
      return id;
    }
  }
  return 0;
}

std::uint64_t Hca::acquire_allocation(const PointerInfo& info) {
  {
    const std::lock_guard hold(allocations_lock_);
    if (const std::uint64_t id = known_allocation(info); id != 0) return id;
  }
  OwnAllocation made{info, 1, nullptr, nullptr, false};
  if (gpu::copied_elsewhere()) {
    // All that needs the driver is done now, by the caller: the engine, which a peer asks for the
    // memory later, must not wait for a lock of the driver's.  Nor may it wait for ours meanwhile.
    auto exported = export_allocation(info);
    if (!exported) return 0;
    made.exported = std::make_shared<const ExportedAllocation>(std::move(exported).take());
    auto mapping = import_local(info);
    if (!mapping) return 0;
    made.mapping = std::move(mapping).take();
  }
  const std::lock_guard hold(allocations_lock_);
  if (const std::uint64_t id = known_allocation(info); id != 0) return id;
  const std::uint64_t id = next_allocation_++;
  allocations_[id] = std::move(made);
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
