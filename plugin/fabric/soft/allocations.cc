#include "plugin/fabric/soft/allocations.h"

#include "plugin/fabric/soft/slow_step.h"

namespace twinpath::soft {

std::uint64_t Allocations::known(const PointerInfo& info) {
  for (auto& [id, a] : entries_) {
    if (a.info.alloc_base == info.alloc_base && a.info.alloc_bytes == info.alloc_bytes) {
      ++a.users;
      return id;
    }
  }
  return 0;
}

std::uint64_t Allocations::acquire(const PointerInfo& info) {
  {
    const std::lock_guard hold(lock_);
    if (const std::uint64_t id = known(info); id != 0) return id;
  }
  Entry made{info, 1, nullptr, nullptr, false};
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
  const std::lock_guard hold(lock_);
  if (const std::uint64_t id = known(info); id != 0) return id;
  const std::uint64_t id = next_++;
  entries_[id] = std::move(made);
  return id;
}

bool Allocations::release(std::uint64_t id) {
  std::shared_ptr<ImportedAllocation> drop;  // not with the lock held
  const std::lock_guard hold(lock_);
  auto it = entries_.find(id);
  if (it == entries_.end() || --it->second.users != 0) return false;
  drop = std::move(it->second.mapping);
  entries_.erase(it);
  return true;
}

std::shared_ptr<ImportedAllocation> Allocations::mapping(std::uint64_t id, bool& failed) {
  std::lock_guard hold(lock_);
  auto it = entries_.find(id);
  if (it == entries_.end() || it->second.failed) {
    failed = true;
    return nullptr;
  }
  Entry& a = it->second;
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

std::shared_ptr<const ExportedAllocation> Allocations::exported(std::uint64_t id) {
  PointerInfo info;
  {
    const std::lock_guard hold(lock_);
    if (auto it = entries_.find(id); it != entries_.end()) {
      if (it->second.exported) return it->second.exported;
      info = it->second.info;
    }
  }
  if (info.kind == MemoryKind::cuda) {
    auto made = export_allocation(info);
    if (made) return std::make_shared<const ExportedAllocation>(std::move(made).take());
  }
  return std::make_shared<const ExportedAllocation>();
}

}  // namespace twinpath::soft
