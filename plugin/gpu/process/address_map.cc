#include "plugin/gpu/process/address_map.h"

#include <algorithm>
#include <utility>

namespace twinpath::gpu::process {

void AddressMap::publish(Table table) {
  table_ = std::make_shared<const Table>(std::move(table));
  version_.fetch_add(1, std::memory_order_release);
}

void AddressMap::add(const Mapped& range) {
  const std::lock_guard lock(mutex_);
  Table table = *table_;
  std::erase_if(table, [&](const Mapped& m) {
    return m.start < range.start + range.bytes && range.start < m.start + m.bytes;
  });
  const auto at =
      std::upper_bound(table.begin(), table.end(), range.start,
                       [](std::uint64_t start, const Mapped& m) { return start < m.start; });
  table.insert(at, range);
  publish(std::move(table));
}

void AddressMap::remove(std::uint64_t id) {
  const std::lock_guard lock(mutex_);
  Table table = *table_;
  std::erase_if(table, [id](const Mapped& m) { return m.id == id; });
  publish(std::move(table));
}

std::shared_ptr<const AddressMap::Table> AddressMap::newest() const {
  const std::lock_guard lock(mutex_);
  return table_;
}

const Mapped* AddressView::find(std::uint64_t address, std::uint64_t bytes) {
  // The version first: a table that is newer than it is read again, one that is older never kept.
  if (const std::uint64_t now = map_.version(); now != version_) {
    table_ = map_.newest();
    version_ = now;
  }
  auto at = std::upper_bound(table_->begin(), table_->end(), address,
                             [](std::uint64_t a, const Mapped& m) { return a < m.start; });
  if (at == table_->begin()) return nullptr;
  --at;
  const std::uint64_t offset = address - at->start;
  return offset <= at->bytes && bytes <= at->bytes - offset ? &*at : nullptr;
}

}  // namespace twinpath::gpu::process
